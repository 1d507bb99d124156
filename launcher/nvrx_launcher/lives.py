"""Lives of an agent, one after another: a lease, the machines on it, and what watches them.

A lease that ended takes its incarnation with it; what outlives a life (keeper, console, the connection to etcd) is
the agent's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import anyio

from nvrx_async.etcd import EtcdClient, EtcdError, Feed, Session, UnavailableError
from nvrx_async.rounds.coordinator import Coordinator
from nvrx_async.rounds.effects import Finish, Notice
from nvrx_async.rounds.holding import RETURN_LIMIT_S
from nvrx_async.rounds.identity import Identity
from nvrx_async.rounds.interpreter import Interpreter
from nvrx_async.rounds.member import Member
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.promises import Book
from nvrx_async.rounds.tolerance import Tolerance
from nvrx_launcher.agent_inject import FailPoints
from nvrx_launcher.clock import boottime_s, now
from nvrx_launcher.config import LaunchConfig
from nvrx_launcher.current_life import CurrentLife
from nvrx_launcher.errors import RequeueError
from nvrx_launcher.log_folder import ETCD_LOG
from nvrx_launcher.ranks import NodeRanks
from nvrx_launcher.reach import Reached
from nvrx_launcher.recorded_store import RecordedStore, ToldRecord
from nvrx_launcher.stop_requests import StopRequests
from nvrx_launcher.store import EtcdStore
from nvrx_launcher.tenure import Tenure
from nvrx_launcher.tracing_off import Tracing

RETRY_S = 0.5
REVOKE_LIMIT_S = 1.0


class Lives:
    """See the module. `current` is told of each life; `stops` are repeated to it.

    Args:
        config: what was asked for.
        token: the job's token, None without one.
        current: what the rest of the agent finds the life of now by.
        stops: wishes to stop, which outlive a life.
        ranks: this node's.
        tracing: watches machines, store and ranks.
        points: faults on order.
        renewed: told the send time of each acknowledged renewal (CLOCK_BOOTTIME).
        keep: told every record that is seen.
        notify: told what people are to hear.
        explain: told why each decision was taken.
        say: a line for people.
    """

    def __init__(
        self,
        config: LaunchConfig,
        *,
        token: str | None,
        current: CurrentLife,
        stops: StopRequests,
        ranks: NodeRanks,
        tracing: Tracing,
        points: FailPoints,
        renewed: Callable[[float], None],
        keep: Callable[[ToldRecord], None],
        notify: Callable[[Notice], None],
        explain: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self._config = config
        self._token = token
        self._current = current
        self._stops = stops
        self._ranks = ranks
        self._tracing = tracing
        self._points = points
        self._renewed = renewed
        self._keep = keep
        self._notify = notify
        self._explain = explain
        self._say = say
        self._book = Book()
        self._cut_short: int | None = None

    async def live(
        self, etcd: Reached, identity: Callable[[int], Identity], settle: Callable[[], Awaitable[None]]
    ) -> Finish:
        """Lead one life after another; returns the end of the last one.

        `identity` makes the incarnation on a lease; `settle` is awaited at the end of each life, while this agent is
        registered: etcd waits for it.

        Raises:
            EtcdError: etcd gives no lease.
            RequeueError: etcd stayed away for longer than a job can be saved by waiting.
        """
        while True:
            finish = await self._one(etcd, identity, settle)
            if not finish.again:
                return finish
            self._say(f"{finish.reason}; this node starts anew as a newcomer")

    async def _one(
        self, etcd: Reached, identity: Callable[[int], Identity], settle: Callable[[], Awaitable[None]]
    ) -> Finish:
        spec = self._config.job
        finished = False
        tenure = Tenure(
            etcd.client,
            spec,
            self._ranks,
            token=self._token,
            renewed=self._renewed,
            store_ended=lambda: _store_ended(etcd),
        )
        first = tenure.session
        async with AsyncExitStack() as stack:
            await self._begin(stack, first, etcd)
            feed = await stack.enter_async_context(Feed(etcd.client))
            interpreter, tolerance = self._machines(identity(first.lease_id), etcd.client, feed, tenure)
            self._current.begin(interpreter, tenure)
            tenure.serve_life(interpreter.tell, tolerance)
            self._ranks.listen(interpreter.tell)
            self._stops.repeat(interpreter.tell)
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(tenure.serve)
                    finish = await interpreter.run()
                    await settle()
                    tenure.end()
                    tasks.cancel_scope.cancel()
                finished = True
            finally:
                self._current.end()
                if not finished:
                    first.orphan()
                    self._cut_short = tenure.session.lease_id
        return finish

    def _machines(
        self, me: Identity, client: EtcdClient, feed: Feed, tenure: Tenure
    ) -> tuple[Interpreter, Tolerance]:
        """The machines of one life and what does their will; faults on order come closest to the interpreter."""
        spec, book, mirror = self._config.job, self._book, Mirror()
        member = Member(me, spec, mirror, book)
        tolerance = Tolerance(spec, mirror, member, book)
        coordinator = Coordinator(me, spec, mirror, book, agree_s=self._config.workers.stop_timeout_s)
        onlookers = self._tracing.life(me, mirror)
        store = self._tracing.store(RecordedStore(EtcdStore(client, feed), me.run_id, self._keep))
        interpreter = Interpreter(
            (*onlookers, *self._points.machines(member, coordinator, tolerance)),
            mirror,
            self._points.store(store),
            self._points.ranks(self._tracing.ranks(self._ranks)),
            now,
            self._notify,
            self._explain,
            peers=self._points.peers(tenure),
        )
        return interpreter, tolerance

    async def _begin(self, stack: AsyncExitStack, session: Session, etcd: Reached) -> None:
        """Take a lease. etcd may be away, for as long as a job can be saved by waiting."""
        limit_s = boottime_s() + self._config.job.outage_limit_s + RETURN_LIMIT_S
        while True:
            try:
                await stack.enter_async_context(session)
            except UnavailableError as error:
                if why := _store_ended(etcd):
                    log = self._config.logs.folder / ETCD_LOG
                    raise RequeueError(why, f"see why in {log}; the job can be requeued") from error
                if boottime_s() >= limit_s:
                    raise RequeueError(
                        f"etcd did not answer for {RETURN_LIMIT_S:g} s: {error.cause}",
                        "this node's ranks are stopped; the job can be requeued once etcd is back",
                    ) from error
                await anyio.sleep(RETRY_S)
            else:
                return

    @asynccontextmanager
    async def registered_to_the_end(self, client: EtcdClient) -> AsyncIterator[None]:
        """Give up the lease of a life that was cut short, once the body has ended the keeper and so its ranks.

        Others take ranks for dead as soon as a registration is gone: it must not go before they are.
        """
        try:
            yield
        finally:
            if self._cut_short is not None:
                with anyio.move_on_after(REVOKE_LIMIT_S, shield=True), suppress(EtcdError):
                    await client.revoke(self._cut_short)  # else it lapses by itself


def _store_ended(etcd: Reached) -> str:
    """Why etcd will not come back; empty while it may."""
    if etcd.server is not None and etcd.server.exited.is_set():
        return "the etcd that this agent had started has ended, and the job with it"
    return ""
