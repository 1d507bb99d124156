"""The agent's side of the keeper: starts it, gives orders, turns its reports into events, survives its death.

No order waits: it is put into the socket's buffer, and what came of it is told by an event. Orders to a keeper
that is gone have no effect; `KeeperLost` tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio

from nvrx_async.job.records import EndedBy
from nvrx_launcher.keeper import frames
from nvrx_launcher.keeper.linux import become_subreaper, boottime_s
from nvrx_launcher.sweep import KEEPER_MARK, MARK, sweep
from nvrx_launcher.workers import RankCommand, is_secret

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from anyio.streams.memory import MemoryObjectReceiveStream

PROGRAM = Path(__file__).absolute().parent / "keeper" / "__main__.py"

_READY_WITHIN_S = 10.0
_LEAVE_WITHIN_S = 12.0
# How late a keeper may be with a kill before it is taken for stuck (frozen, or in a write that never ends).
_FENCE_SLACK_S = 0.5
_KILL_SLACK_S = 2.0
# The agent may have been frozen itself: reports that wait in the socket are read before the keeper is judged.
_SECOND_LOOK_S = 0.5


class KeeperStartError(Exception):
    """The keeper did not come up; nothing of it is left."""


@dataclass(frozen=True, slots=True)
class StartFailure:
    """Why a rank could not be started: `step` is fork, session, folder or exec, `path` what it was about."""

    errno: int
    step: str
    path: str


@dataclass(frozen=True, slots=True)
class RankStarted:
    """The rank was forked. If its program cannot be run, RankExited with a failure follows."""

    round: int
    local_rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class RankExited:
    """A rank ended, its last output is in the file. With `failure`, neither code nor signal is set.

    `by` is US if the keeper had sent SIGTERM, SIGKILL or this same signal before.
    """

    round: int
    local_rank: int
    pid: int
    exit_code: int | None
    signal: int | None
    by: EndedBy
    ran_s: float
    failure: StartFailure | None = None


@dataclass(frozen=True, slots=True)
class RoundGone:
    """No process of the round lives, all output is in the files; not true of the ranks in `unkillable`."""

    round: int
    unkillable: tuple[int, ...]
    lost_bytes: int


@dataclass(frozen=True, slots=True)
class Grew:
    """There is more to read in a log. Told once, and again only after `Keeper.seen`."""

    round: int
    local_rank: int
    stream: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """The deadline passed: the keeper killed the round on its own."""

    round: int
    good_until_s: float


@dataclass(frozen=True, slots=True)
class StartRefused:
    """Nothing was started. `code` is generation, fence or busy."""

    round: int
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class SpoolWarning:
    """A log cannot be written; the rank goes on, what is lost is counted in RoundGone. Told once per stream."""

    round: int
    local_rank: int
    stream: str
    path: str
    error: str


@dataclass(frozen=True, slots=True)
class KeeperLost:
    """The keeper died. All that it had started is dead and reaped, but for what `alive` names.

    `round` is the one that ran, if any: it is gone, no RoundGone follows.
    """

    generation: int
    how: str
    round: int | None
    killed: tuple[str, ...]
    alive: tuple[str, ...]


KeeperEvent: TypeAlias = (
    RankStarted | RankExited | RoundGone | Grew | Fenced | StartRefused | SpoolWarning | KeeperLost
)


class Keeper:
    """A running keeper. Made by `Keeper.start`; `events` is to be read inside its context."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        *,
        generation: int,
        job_tag: str,
        unkillable_after_s: float,
    ) -> None:
        self.generation = generation
        self.pid = process.pid
        # Unbounded, since reports are few by construction: two per rank and log until the agent has seen them.
        self._reports, events = anyio.create_memory_object_stream[KeeperEvent](math.inf)
        self.events: MemoryObjectReceiveStream[KeeperEvent] = events
        self._process = process
        self._reader, self._writer = streams
        self._job_tag = job_tag
        self._unkillable_after_s = unkillable_after_s
        self._ready = asyncio.Event()
        self._closing = False
        self._lost = False
        self._sessions: set[int] = set()
        self._round: int | None = None
        self._good_until_s = 0.0
        self._fenced = False
        self._gone_by_s = math.inf
        self._judgement: asyncio.TimerHandle | None = None

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        generation: int,
        job_tag: str,
        *,
        python: str = sys.executable,
        program: Path = PROGRAM,
        unkillable_after_s: float = 10.0,
    ) -> AsyncIterator[Keeper]:
        """Start a keeper; at the end everything it started is killed and it is gone, within 12 s or by force.

        This process becomes sub-reaper: what a dying keeper leaves must come to it and not to init.

        Raises:
            KeeperStartError: no Python there, or it did not report within 10 s.
        """
        become_subreaper()
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as unless_started:
            unless_started.callback(ours.close)
            command = _command(python, program, theirs.fileno(), generation, unkillable_after_s)
            try:
                process = await anyio.to_thread.run_sync(
                    _spawn, command, theirs.fileno(), _environment(job_tag)
                )
            except OSError as error:
                raise KeeperStartError(f"the keeper cannot be started with {python}: {error}") from error
            finally:
                theirs.close()
            unless_started.pop_all()
        ours.setblocking(False)  # noqa: FBT003 - takes no keywords
        streams = await asyncio.open_unix_connection(sock=ours)
        keeper = cls(
            process,
            streams,
            generation=generation,
            job_tag=job_tag,
            unkillable_after_s=unkillable_after_s,
        )
        # Not in a task group, which would wrap errors of the caller's body; `_close` waits for its end always.
        serving = asyncio.create_task(keeper._serve(), name=f"keeper {generation}")
        try:
            await keeper._wait_until_ready(serving)
            yield keeper
        finally:
            with anyio.CancelScope(shield=True):
                await keeper._close(serving)

    # --- orders --------------------------------------------------------------------------------------------

    def good_until(self, s: float) -> None:
        """Ranks may live and start before `s` (CLOCK_BOOTTIME). An earlier moment than known has no effect."""
        if s > self._good_until_s:
            self._good_until_s = s
            self._order("fence", good_until_s=s)
            self._judge_later()

    def start_ranks(self, round: int, commands: Sequence[RankCommand]) -> None:  # noqa: A002 - the domain's word
        """Start these ranks: then RankStarted for each, or StartRefused.

        Raises:
            nvrx_launcher.keeper.frames.FrameError: the environments are larger than 16 MiB in all.
        """
        self._order(
            "start",
            round=round,
            generation=self.generation,
            ranks=[_on_wire(command) for command in commands],
        )
        if self._round is None:
            self._round, self._fenced, self._gone_by_s = round, False, math.inf
            self._judge_later()

    def stop(self, round: int, grace_s: float) -> None:  # noqa: A002 - the domain's word
        """SIGTERM, after the grace SIGKILL; 0 kills at once. Again only shortens. Then RoundGone."""
        self._order("stop", round=round, grace_s=grace_s)
        if self._round == round:
            self._expect_gone(grace_s)

    def signal(self, round: int, signum: int) -> None:  # noqa: A002 - the domain's word
        """Forward a signal to all ranks that run."""
        self._order("signal", round=round, signum=signum)

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
            while data := await self._reader.read(1 << 16):
                for message in decoder.feed(data):
                    self._on_report(message)
        except ConnectionError:
            pass  # it died with orders unread
        except frames.FrameError:
            self._kill()  # what it says means nothing any more
        self._lost = True
        self._judge_later()
        await _death(self._process, _LEAVE_WITHIN_S)
        await self._clear_up()
        self._reports.close()

    def _on_report(self, message: Mapping[str, Any]) -> None:
        kind = message["report"]
        fields = {name: value for name, value in message.items() if name != "report"}
        if kind == "ready":
            self._ready.set()
        elif kind == "started":
            self._sessions.add(fields["pid"])
            self._reports.send_nowait(RankStarted(**fields))
        elif kind == "exited":
            self._reports.send_nowait(_exited(fields))
        elif kind == "grew":
            self._reports.send_nowait(Grew(**fields))
        elif kind == "fenced":
            self._fenced = True
            self._expect_gone(0)
            self._reports.send_nowait(Fenced(**fields))
        elif kind == "refused":
            self._over(fields["round"])
            self._reports.send_nowait(StartRefused(**fields))
        elif kind == "warning":
            self._reports.send_nowait(SpoolWarning(**fields))
        elif kind == "gone":
            self._over(fields["round"])
            if not fields["unkillable"]:
                self._sessions.clear()
            self._reports.send_nowait(
                RoundGone(fields["round"], tuple(fields["unkillable"]), fields["lost_bytes"])
            )

    def _over(self, number: int) -> None:
        if self._round == number:
            self._round = None
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
        fence_s = math.inf if self._fenced else self._good_until_s + _FENCE_SLACK_S
        return min(fence_s, self._gone_by_s)

    def _judge_later(self) -> None:
        if self._judgement is not None:
            self._judgement.cancel()
            self._judgement = None
        due_s = self._overdue_at_s()
        if due_s < math.inf:
            delay_s = max(due_s - boottime_s(), 0.0) + _SECOND_LOOK_S
            loop = asyncio.get_running_loop()
            self._judgement = loop.call_later(delay_s, self._suspect)

    def _suspect(self) -> None:
        """The time is over. What lies in the socket may still excuse it: look a last time."""
        self._judgement = asyncio.get_running_loop().call_later(_SECOND_LOOK_S, self._judge)

    def _judge(self) -> None:
        """Ranks must not live on under a frozen keeper: its death is theirs (parent-death signal)."""
        if boottime_s() >= self._overdue_at_s():
            self._kill()
        else:
            self._judge_later()

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
                f"the keeper (pid {self.pid}) did not come up: {_how(self._process)}. Its own message is on stderr"
            )

    async def _close(self, serving: asyncio.Task[None]) -> None:
        self._closing = True
        if not self._lost:
            self._writer.write_eof()
        await asyncio.wait({serving}, timeout=_LEAVE_WITHIN_S)
        if not serving.done():
            self._kill()
        await serving
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        self.events.close()

    async def _clear_up(self) -> None:
        """Kill and reap what a keeper left that could not do it itself."""
        if self._closing and self._process.returncode == 0:
            return
        swept = await anyio.to_thread.run_sync(
            functools.partial(sweep, self._job_tag, sessions=frozenset(self._sessions))
        )
        if not self._closing:
            lost = KeeperLost(self.generation, _how(self._process), self._round, swept.killed, swept.alive)
            self._reports.send_nowait(lost)


def _command(python: str, program: Path, fd: int, generation: int, unkillable_after_s: float) -> list[str]:
    interpreter = [python, "-I", "-S", "-X", "utf8", str(program)]
    options = {"--control": fd, "--generation": generation, "--unkillable-after-s": unkillable_after_s}
    return interpreter + [str(word) for option in options.items() for word in option]


def _environment(job_tag: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not is_secret(name)}
    return {**kept, MARK: job_tag, KEEPER_MARK: "1"}


def _spawn(command: Sequence[str], fd: int, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C in the terminal reaches the agent only. Its stderr is the agent's."""
    return subprocess.Popen(
        command,
        pass_fds=[fd],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd="/",
        env=env,
    )


async def _death(process: subprocess.Popen[bytes], within_s: float) -> None:
    """Wait for the exit of a keeper that closed its socket, by force at the end, and reap it."""
    pidfd = os.pidfd_open(process.pid)
    dead = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pidfd, dead.set)
    try:
        with anyio.move_on_after(within_s):
            await dead.wait()
        if not dead.is_set():
            process.kill()
            await dead.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
    process.poll()


def _how(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    if code is None:
        return "it says nothing"
    if code >= 0:
        return f"it exited with {code}"
    return f"it was ended by {signal.Signals(-code).name}"


def _exited(fields: Mapping[str, Any]) -> RankExited:
    failure = fields["failure"]
    known = {**fields, "by": EndedBy(fields["by"]), "failure": StartFailure(**failure) if failure else None}
    return RankExited(**known)


def _on_wire(command: RankCommand) -> dict[str, Any]:
    return {
        "local_rank": command.local_rank,
        "argv": [_bytes_kept(word) for word in command.argv],
        "env": {_bytes_kept(name): _bytes_kept(value) for name, value in command.env.items()},
        "cwd": _bytes_kept(command.cwd),
        "stdout_path": _bytes_kept(command.stdout_path),
        "stderr_path": _bytes_kept(command.stderr_path),
    }


def _bytes_kept(text: str) -> str:
    """The same bytes for the keeper, which runs in UTF-8 mode whatever the agent's locale is."""
    return os.fsencode(text).decode("utf-8", "surrogateescape")
