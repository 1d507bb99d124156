"""The agent's lease, kept alive: one renewal in flight, on one stream, credited with its send time."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Self

import anyio

from nvrx_async.etcd.background import leave
from nvrx_async.etcd.errors import EtcdError, LeaseNotFoundError, UnavailableError
from nvrx_async.etcd.renewal import Lapsed, Renewals, Wait, next_step
from nvrx_async.etcd.streams import Stream, open_stream
from nvrx_async.etcd.wire import messages

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from anyio.abc import TaskGroup

    from nvrx_async.etcd.client import EtcdClient

_REVOKE_S = 1.0


def boottime() -> float:
    """CLOCK_BOOTTIME in seconds: unlike the monotonic clock it goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Session:
    """A lease for as long as the block lasts. A lease that lapsed is never replaced: `lost` is set for good.

    `ttl_s` is asked for, then what was granted. `on_renewed(sent_at_s)` is called for the grant and for
    each acknowledged renewal with its send time on `clock`, before anything else happens. Leaving the block
    revokes the lease, unless `orphan()` was called. With `patient` set, silence alone does not end it: only etcd
    knows whether the lease is over. `failing_since_s`: when the first attempt began that was not acknowledged.
    """

    def __init__(
        self,
        client: EtcdClient,
        *,
        ttl_s: float = 6.0,
        clock: Callable[[], float] = boottime,
        on_renewed: Callable[[float], None] | None = None,
    ) -> None:
        self._client = client
        self._clock = clock
        self._on_renewed = on_renewed or (lambda _sent_at_s: None)
        self._stream: Stream | None = None
        self._hurry = anyio.Event()
        self._renewing = anyio.CancelScope()
        self._keep = False
        self._tasks: TaskGroup | None = None
        self._renewals = Renewals(ttl_s, 0.0)
        self.lease_id = 0
        self.lost = anyio.Event()
        self.lost_because = ""
        self.patient = False
        self.failing_since_s: float | None = None
        self._in_flight = False
        self._last_failure: EtcdError | None = None

    @property
    def ttl_s(self) -> float:
        """What etcd granted, seconds."""
        return self._renewals.ttl_s

    @property
    def renewed_at_s(self) -> float:
        """Send time of the last acknowledged renewal on the session's clock."""
        return self._renewals.acknowledged_sent_at_s

    async def __aenter__(self) -> Self:
        sent_at_s = self._clock()
        lease = await self._client.grant(self._renewals.ttl_s)
        self.lease_id = lease.id
        self._renewals = Renewals(lease.ttl_s, sent_at_s)
        self._on_renewed(sent_at_s)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._keep_alive, name="etcd session")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tasks is not None:
            tasks, self._tasks = self._tasks, None
            try:
                await leave(tasks, kind, error, trace)
            finally:
                await self._revoke()

    async def close(self) -> None:
        """Stop renewing and revoke the lease now; leaving the block then does nothing more."""
        self._renewing.cancel()
        await self._revoke()

    def orphan(self) -> None:
        """Leave the lease to itself when the block ends: its keys stay until its TTL has passed."""
        self._keep = True

    def renew_now(self) -> None:
        """Try a renewal at once; with one in flight that one is the answer."""
        if not self._in_flight:
            self._renewals = self._renewals.hurried()
            self._hurry.set()

    async def _revoke(self) -> None:
        if self._keep or self.lost.is_set():
            return
        self._keep = True
        with anyio.move_on_after(_REVOKE_S, shield=True):
            try:
                await self._client.revoke(self.lease_id)
            except EtcdError:
                return  # nobody renews it any more: it lapses by itself within the TTL

    async def _keep_alive(self) -> None:
        with self._renewing:
            try:
                while not self.lost.is_set():
                    await self._step()
            finally:
                if self._stream is not None:
                    self._stream.cancel()

    async def _step(self) -> None:
        now_s = self._clock()
        jitter = random.random()  # noqa: S311 - spreads load, guards nothing
        longest_s = self._client.config.call_timeout_s
        step = next_step(
            self._renewals, now_s, jitter=jitter, longest_s=longest_s, patient=self._may_come_back
        )
        if isinstance(step, Lapsed):
            because = f"no renewal was acknowledged for the TTL of {self.ttl_s:g} s"
            self._lose(f"{because}. {self._last_failure}" if self._last_failure is not None else because)
        elif isinstance(step, Wait):
            with anyio.move_on_after(step.until_s - now_s):
                await self._hurry.wait()
            self._hurry = anyio.Event()
        else:
            await self._renew_within(step.timeout_s)

    async def _renew_within(self, timeout_s: float) -> None:
        sent_at_s: float | None = None
        self._in_flight = True
        if self.failing_since_s is None:
            self.failing_since_s = self._clock()
        try:
            with anyio.move_on_after(timeout_s):
                sent_at_s = await self._renew()
        except LeaseNotFoundError as error:
            self._lose(str(error))
            return
        except EtcdError as error:
            # The next attempt may succeed; told only if the lease lapses.
            self._last_failure = error
        finally:
            self._in_flight = False
        if sent_at_s is None:
            self._drop_stream()
            self._renewals = self._renewals.failed(self._clock())
        else:
            self._renewals = self._renewals.acknowledged(sent_at_s)
            self._last_failure = self.failing_since_s = None
            self._on_renewed(sent_at_s)

    @property
    def _may_come_back(self) -> bool:
        """An etcd that answers and refuses, such as one that lost its data, will not take the lease again."""
        return self.patient and isinstance(self._last_failure, UnavailableError | None)

    async def _renew(self) -> float:
        """One acknowledged renewal: when it was sent."""
        sent_at_s, ttl_s = await self._exchange()
        if ttl_s <= 0:
            # A leader answers this from its memory. One that was elected a moment ago may not have applied the grant
            # yet: that the lease is over only a quorum can say.
            self._drop_stream()
            await self._fail_if_over()
            sent_at_s, ttl_s = await self._exchange()
        if ttl_s <= 0:
            self._drop_stream()
            if self._clock() >= self._renewals.lapses_at_s:
                raise LeaseNotFoundError("etcd's leader says that the lease is over, and its TTL has passed")
            raise UnavailableError("etcd's leader does not know of the lease yet, its quorum does")
        return sent_at_s

    async def _fail_if_over(self) -> None:
        over = "etcd says that the lease is over: it ran out there or was revoked"
        try:
            if await self._client.is_lease_over(self.lease_id):
                raise LeaseNotFoundError(over)
        except UnavailableError:
            raise
        except EtcdError as error:  # it does not answer such questions, to this user or now
            raise LeaseNotFoundError(over) from error

    async def _exchange(self) -> tuple[float, float]:
        """Send one renewal and read the one answer: send time, and the TTL etcd says."""
        if self._stream is None:
            self._stream = await open_stream(self._client.caller, lambda at: at.lease.LeaseKeepAlive)
        sent_at_s = self._clock()
        await self._stream.send(messages.LeaseKeepAliveRequest(ID=self.lease_id))
        answer = await self._stream.receive()
        return sent_at_s, float(answer.TTL)

    def _drop_stream(self) -> None:
        """End the stream and leave its endpoint. Answers carry no number: a late one must find nobody."""
        if self._stream is not None:
            self._stream.abandon()
            self._stream = None

    def _lose(self, because: str) -> None:
        self.lost_because = because
        self.lost.set()
