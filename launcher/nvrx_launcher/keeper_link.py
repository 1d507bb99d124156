"""The agent's side of the keeper: starts it, gives orders, turns reports into events, survives its death.

No order waits: it is put into the socket's buffer, and what came of it is told by an event. Orders to a
keeper that is gone have no effect; `KeeperLost` tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from nvrx_launcher.errors import KeeperStartError
from nvrx_launcher.keeper import frames
from nvrx_launcher.keeper.errors import FrameError
from nvrx_launcher.keeper.linux import become_subreaper, boottime_s
from nvrx_launcher.keeper_events import (
    Fenced,
    KeeperEvent,
    KeeperLost,
    RankExited,
    RankStarted,
    RoundGone,
    StartRefused,
)
from nvrx_launcher.keeper_process import DYING_S, connect, death, environment, how_it_ended
from nvrx_launcher.keeper_wire import event_of, on_wire
from nvrx_launcher.rank_deaths import TOLD_WITHIN_S, RankDeaths
from nvrx_launcher.sweep import sweep
from nvrx_launcher.workers import Hook, RankCommand

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from anyio.streams.memory import MemoryObjectReceiveStream

PROGRAM = Path(__file__).absolute().parent / "keeper" / "__main__.py"

SWEEP_WITHIN_S = 10.0
"""How long what a lost keeper left is killed again and again; then its node is unfit."""
_READY_WITHIN_S = 10.0
_LEAVE_WITHIN_S = 12.0
# How late a keeper may be with a kill before it is taken for stuck (frozen, or in a write that never ends).
_FENCE_SLACK_S = 0.3
_KILL_SLACK_S = 2.0
# The agent may have been frozen itself: reports that wait in the socket are read before the keeper is judged.
_SECOND_LOOK_S = 0.3


class Keeper:
    """A running keeper. Made by `Keeper.start`; `events` is to be read inside its context."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        *,
        generation: int,
        tag: str,
        unkillable_after_s: float,
        told_within_s: float = TOLD_WITHIN_S,
    ) -> None:
        self.generation = generation
        self.pid = process.pid
        # Unbounded, since reports are few by construction: of growth one per log until it was seen.
        self._reports, events = anyio.create_memory_object_stream[KeeperEvent](math.inf)
        self.events: MemoryObjectReceiveStream[KeeperEvent] = events
        self._process = process
        self._reader, self._writer = streams
        self._tag = tag
        self._unkillable_after_s = unkillable_after_s
        self._ready = asyncio.Event()
        self._closing = False
        self._lost = False
        self._sessions: set[int] = set()
        self._round: int | None = None
        self._good_until_s = 0.0
        self._promised_until_s = 0.0
        self._started = False
        self._fenced = False
        self._gone_by_s = math.inf
        self._judgement: asyncio.TimerHandle | None = None
        self._stuck = False
        self._reading = anyio.CancelScope()
        self._deaths = RankDeaths(told_within_s, self._judge_later)

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        generation: int,
        tag: str,
        *,
        python: str = sys.executable,
        program: Path = PROGRAM,
        unkillable_after_s: float = 10.0,
        told_within_s: float = TOLD_WITHIN_S,
        life_sign: int | None = None,
    ) -> AsyncIterator[Keeper]:
        """Start a keeper; at the end everything it started is killed and it is gone, within 12 s or by force.

        `life_sign`: a descriptor that it and all it starts inherit.
        This process becomes sub-reaper: what a dying keeper leaves must come to it and not to init.

        Raises:
            KeeperStartError: no Python there, or it did not report within 10 s.
        """
        become_subreaper()
        interpreter = (python, "-I", "-S", "-X", "utf8", str(program))
        options = {"--generation": generation, "--unkillable-after-s": unkillable_after_s}
        command = [*interpreter, *(str(word) for option in options.items() for word in option)]
        with anyio.CancelScope(shield=True):  # short, and a cancelled start would lose the process
            process, streams = await connect(command, environment(tag), life_sign)
        keeper = cls(
            process,
            streams,
            generation=generation,
            tag=tag,
            unkillable_after_s=unkillable_after_s,
            told_within_s=told_within_s,
        )
        # Not in a task group, which would wrap errors of the caller's body; `_close` waits for its end.
        serving = asyncio.create_task(keeper._serve(), name=f"keeper {generation}")
        try:
            await keeper._wait_until_ready(serving)
            yield keeper
        finally:
            with anyio.CancelScope(shield=True):
                await keeper._close(serving)

    # --- orders --------------------------------------------------------------------------------------------

    def good_until(self, s: float) -> None:
        """Ranks may live and start before `s` (CLOCK_BOOTTIME). An earlier moment changes nothing."""
        if s > self._good_until_s:
            self._good_until_s = s
            self._order("fence", good_until_s=s)
            self._judge_later()

    def extend(self, round: int, s: float) -> None:  # noqa: A002 - the domain's word
        """The ranks of this round, and of no later one, may live until `s`; none may start by it."""
        if round == self._round and s > self._promised_until_s:
            self._promised_until_s = s
            self._order("fence", good_until_s=s, round=round)
            self._judge_later()

    def start_ranks(self, round: int, commands: Sequence[RankCommand]) -> None:  # noqa: A002 - the domain's word
        """Start these ranks: then RankStarted for each, or StartRefused.

        Raises:
            FrameError: the environments are larger than 16 MiB in all.
        """
        self._order(
            "start",
            round=round,
            generation=self.generation,
            ranks=[on_wire(command) for command in commands],
        )
        if self._round is None:
            self._round, self._started, self._fenced, self._gone_by_s = round, False, False, math.inf
            self._promised_until_s = 0.0
            self._judge_later()

    def stop(self, round: int, grace_s: float) -> None:  # noqa: A002 - the domain's word
        """SIGTERM, after the grace SIGKILL; 0 kills at once. Again only shortens. Then RoundGone."""
        self._order("stop", round=round, grace_s=grace_s)
        if self._round == round:
            self._expect_gone(grace_s)

    def signal(self, round: int, signum: int) -> None:  # noqa: A002 - the domain's word
        """Send a signal to all ranks that run, not to their helpers."""
        self._order("signal", round=round, signum=signum)

    def resize(self, terminal: tuple[int, int]) -> None:
        """Ranks that write to terminals find them with so many rows and columns, and get SIGWINCH."""
        self._order("resize", terminal=terminal)

    def prepare(self, command: RankCommand, hook: Hook) -> None:
        """Start an idle process for a local rank: HookTold "ready", or IdleLost."""
        rank = {**on_wire(command), "hook": asdict(hook)}
        self._order("prepare", generation=self.generation, rank=rank)

    def discard(self, local_rank: int) -> None:
        """Kill the idle process of a local rank."""
        self._order("discard", local_rank=local_rank)

    def seen(self, local_rank: int, stream: str) -> None:
        """The log was read to its end as of now: tell of the next growth."""
        self._order("seen", local_rank=local_rank, stream=stream)

    def _order(self, order: str, **fields: Any) -> None:
        frame = frames.encode({"order": order, **fields})
        if not (self._lost or self._closing):
            self._writer.write(frame)

    # --- reports -------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Read reports until the keeper is gone, then clear up after it."""
        decoder = frames.Decoder()
        try:
            with self._reading:
                while data := await self._reader.read(1 << 16):
                    for message in decoder.feed(data):
                        self._on_report(message)
        except ConnectionError:
            pass  # it died with orders unread
        except FrameError:
            self._kill()  # what it says means nothing any more
        self._lost = True
        self._deaths.forget_all()
        self._judge_later()
        await death(self._process, 0.0 if self._stuck else _LEAVE_WITHIN_S)
        await self._clear_up()
        self._reports.close()

    def _on_report(self, message: Mapping[str, Any]) -> None:
        if message["report"] == "ready":
            self._ready.set()
            return
        event = event_of(message)
        self._note(event)
        self._reports.send_nowait(event)

    def _note(self, event: KeeperEvent) -> None:
        """Keep what must be known when the keeper is stuck or dies."""
        if isinstance(event, RankStarted):
            self._started = True
            self._sessions.add(event.pid)
            self._deaths.watch(event.local_rank, event.pid)
        elif isinstance(event, RankExited):
            self._deaths.told(event.local_rank)
        elif isinstance(event, Fenced):
            self._fenced = True
            self._expect_gone(0)
        elif isinstance(event, StartRefused) and not self._started:  # else an order came twice
            self._over(event.round)
        elif isinstance(event, RoundGone):
            self._over(event.round)
            if not event.unkillable:
                self._sessions.clear()

    def _over(self, number: int) -> None:
        if self._round == number:
            self._round = None
            self._deaths.forget_all()
            self._judge_later()

    # --- a keeper that is stuck ----------------------------------------------------------------------------

    def _expect_gone(self, grace_s: float) -> None:
        self._gone_by_s = min(
            self._gone_by_s, boottime_s() + grace_s + self._unkillable_after_s + _KILL_SLACK_S
        )
        self._judge_later()

    def _overdue_at_s(self) -> float:
        """When a keeper that still has not reported must be taken for stuck."""
        if self._round is None or self._lost:
            return math.inf
        t_s = max(self._good_until_s, self._promised_until_s)
        fence_s = math.inf if self._fenced else t_s + _FENCE_SLACK_S
        return min(fence_s, self._gone_by_s, self._deaths.overdue_at_s)

    def _judge_later(self) -> None:
        if self._judgement is not None:
            self._judgement.cancel()
            self._judgement = None
        due_s = self._overdue_at_s()
        if due_s < math.inf:
            delay_s = max(due_s - boottime_s(), 0.0)
            loop = asyncio.get_running_loop()
            self._judgement = loop.call_later(delay_s, self._suspect)

    def _suspect(self) -> None:
        """The time is over. What lies in the socket may still excuse it: look a last time."""
        self._judgement = asyncio.get_running_loop().call_later(_SECOND_LOOK_S, self._judge)

    def _judge(self) -> None:
        """Ranks must not live on under a frozen keeper: its death is theirs (parent-death signal)."""
        if boottime_s() >= self._overdue_at_s():
            self._give_up()
        else:
            self._judge_later()

    def _give_up(self) -> None:
        """Kill a keeper that is stuck. One that waits for a disk cannot die; what it started is ended without it."""
        self._stuck = True
        self._kill()
        asyncio.get_running_loop().call_later(DYING_S, self._reading.cancel)

    def _kill(self) -> None:
        # Not reaped before `_death`, so the pid is its own.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    # --- beginning and end ---------------------------------------------------------------------------------

    async def _wait_until_ready(self, serving: asyncio.Task[None]) -> None:
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait({ready, serving}, timeout=_READY_WITHIN_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if not self._ready.is_set():
            raise KeeperStartError(
                f"the keeper (pid {self.pid}) did not come up: {how_it_ended(self._process)}; stderr has its message"
            )

    async def _close(self, serving: asyncio.Task[None]) -> None:
        self._closing = True
        if not self._lost:
            self._writer.write_eof()
        await asyncio.wait({serving}, timeout=_LEAVE_WITHIN_S)
        if not serving.done():
            self._give_up()
        await serving
        self._deaths.forget_all()
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        self.events.close()

    async def _clear_up(self) -> None:
        """Kill and reap what a keeper left that could not do it itself."""
        if self._closing and self._process.returncode == 0:
            return
        swept = await anyio.to_thread.run_sync(
            functools.partial(sweep, self._tag, sessions=frozenset(self._sessions), within_s=SWEEP_WITHIN_S)
        )
        if not self._closing:
            how = (
                how_it_ended(self._process)
                if self._process.returncode is not None
                else "stuck: not even SIGKILL ends it"
            )
            lost = KeeperLost(self.generation, how, self._round, swept.killed, swept.alive)
            self._reports.send_nowait(lost)
