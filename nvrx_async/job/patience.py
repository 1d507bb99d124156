"""Who follows a job or waits for it does not give up because etcd is away for a moment, as while it elects a leader."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from nvrx_async.etcd.errors import UnavailableError
from nvrx_async.job.status import JobState, JobStatus

T = TypeVar("T")
AWAY_S = 120.0
"""How long etcd may be away: as long as agents let ranks run on without it, unless they are told otherwise."""
AGAIN_S = 0.5
ABSENT_S = 30.0
"""How long a job that was seen alive may have no agent at all: after an outage of etcd their leases may have ended,
and they register anew."""


class Patience:
    """Asks again while an etcd that has answered before does not. `say` is told when it goes, once each time."""

    def __init__(
        self, say: Callable[[UnavailableError], None] | None = None, limit_s: float = AWAY_S
    ) -> None:
        self._say = say
        self._limit_s = limit_s
        self._known = False

    async def of(self, call: Callable[[], Awaitable[T]]) -> T:
        """What `call` returns.

        Raises:
            UnavailableError: etcd has never answered, or has been away for `limit_s`.
        """
        since_s: float | None = None
        while True:
            try:
                answer = await call()
            except UnavailableError as error:
                now_s = anyio.current_time()
                if not self._known or (since_s is not None and now_s - since_s >= self._limit_s):
                    raise
                if since_s is None:
                    since_s = now_s
                    if self._say is not None:
                        self._say(error)
                await anyio.sleep(AGAIN_S)
            else:
                self._known = True
                return answer


class Absence:
    """Tells a job that everybody left from one whose agents are about to come back."""

    def __init__(self, limit_s: float = ABSENT_S) -> None:
        self._limit_s = limit_s
        self._alive = False
        self._since_s: float | None = None

    @property
    def looks_again_s(self) -> float | None:
        """When to look again though nothing changes: None while somebody is there."""
        return AGAIN_S if self._since_s is not None else None

    def passes(self, status: JobStatus) -> bool:
        """Whether nobody is registered, and that may still change: then the job is not over."""
        if status.state is not JobState.ABANDONED:
            self._alive, self._since_s = True, None
            return False
        now_s = anyio.current_time()
        self._since_s = now_s if self._since_s is None else self._since_s
        return self._alive and now_s - self._since_s < self._limit_s
