"""This node's ranks: starts them under the keeper, gathers the evidence of their ends, tells the machines.

Implements `nvrx_async.rounds.drivers.Ranks`. A keeper that dies is replaced; its ranks died with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
from anyio.abc import TaskStatus

from nvrx_async.aside import aside
from nvrx_async.job.records import IMPORTS, Assignment, EndedBy, FaultKind, Node, RankEnd, Seat
from nvrx_async.rounds.events import (
    Event,
    KeeperLost,
    KeeperReady,
    PortReserved,
    Proof,
    Proven,
    RankEnded,
    RankHung,
    RanksGone,
    RanksHeld,
)
from nvrx_launcher import keeper_events as reports
from nvrx_launcher.cgroup import oom_kills
from nvrx_launcher.clock import boottime_s, utc
from nvrx_launcher.config import WorkersConfig
from nvrx_launcher.countdown import Countdown
from nvrx_launcher.early_exit import EarlyExit
from nvrx_launcher.errors import KeeperStartError, RequeueError
from nvrx_launcher.keeper.errors import FrameError
from nvrx_launcher.keeper_link import Keeper
from nvrx_launcher.output import Output
from nvrx_launcher.rank_ends import TAIL_LIMIT_S, RunningRanks, end_of, unstarted
from nvrx_launcher.rank_watch import RankWatch
from nvrx_launcher.round_ports import RoundPorts
from nvrx_launcher.sweep import Verdict, prove_dead
from nvrx_launcher.warm import WarmCrew
from nvrx_launcher.workers import NO_FILE, RankCommand, RankJob, make_folders, rank_command, unlogged

FOLDERS_LIMIT_S = 5.0
"""How long a log disk may take to make folders: the ranks start without them then."""
KEEPER_LIVES_S = 10.0
KEEPERS_AT_ONCE = 5
"""So many keepers that die this young are no accident, and each costs the whole job a round."""


class NodeRanks:
    """See the module. `keep` is given the round and the end of every rank, for the record of this node."""

    def __init__(
        self,
        *,
        workers: WorkersConfig,
        tag: str,
        base_env: Mapping[str, str],
        cwd: str,
        output: Output,
        warn: Callable[[str], None],
        watch: RankWatch,
        countdown: Countdown,
        keep: Callable[[int, RankEnd], None],
        crew: WarmCrew,
        early: EarlyExit | None = None,
        life_sign: int | None = None,
    ) -> None:
        self._life_sign = life_sign
        self._early = early or EarlyExit(None, warn)
        self._watch = watch
        self._workers = workers
        self._crew = crew
        self._tag = tag
        self._base_env = base_env
        self._cwd = cwd
        self._output = output
        self._warn = warn
        self._countdown = countdown
        self._keep = keep
        self._tell: Callable[[Event], None] = _nobody_listens
        self._job: RankJob | None = None
        self._keeper: Keeper | None = None
        self._round: RunningRanks | None = None
        self._ports = RoundPorts()
        self._good_until_s = 0.0
        self._stopped = -1
        self._was_ready = False

    # For the agent ------------------------------------------------------------------------------------

    def listen(self, tell: Callable[[Event], None]) -> None:
        """Tell another life's machines from now on; a keeper that is ready is told at once."""
        self._tell = tell
        self._watch.listen(tell)
        if self._keeper is not None:
            tell(KeeperReady(self._keeper.generation))

    def enter(self, job: RankJob) -> None:
        """Ranks belong to this attempt, and to this node's id in it, from now on."""
        self._job = job

    def good_until(self, moment_s: float) -> None:
        """Ranks may live and start before this moment (CLOCK_BOOTTIME)."""
        self._good_until_s = moment_s
        if self._keeper is not None:
            self._keeper.good_until(moment_s)

    def extend(self, number: int, until_s: float) -> None:
        """The ranks of this round, and no others, may live until this moment."""
        if self._keeper is not None:
            self._keeper.extend(number, until_s)

    def signal(self, number: int) -> bool:
        """Pass a signal on to all ranks that handle it; False if none runs."""
        if self._keeper is None or self._round is None:
            return False
        self._keeper.signal(self._round.assignment.round, number)
        return True

    def resize(self, terminal: tuple[int, int] | None) -> None:
        """The terminals of all ranks, and of those to come, have these rows and columns from now on."""
        if self._job is None or terminal is None:
            return
        self._job = replace(self._job, terminal=terminal)
        if self._keeper is not None:
            self._keeper.resize(terminal)

    def kill(self) -> None:
        """Kill all ranks at once."""
        if self._round is not None:
            self.stop(self._round.assignment.round, grace=False)

    async def serve(self, *, task_status: TaskStatus[None]) -> None:
        """Keep a keeper: started once the first is ready, replaced when it dies. Runs until cancelled."""
        generation, short_lived = 0, 0
        try:
            while True:
                generation += 1
                began_s = boottime_s()
                try:
                    await self._follow(generation, task_status)
                except KeeperStartError as error:
                    if short_lived + 1 >= KEEPERS_AT_ONCE:
                        raise
                    self._warn(f"{error}; another is started")
                short_lived = short_lived + 1 if boottime_s() - began_s < KEEPER_LIVES_S else 0
                if short_lived >= KEEPERS_AT_ONCE:
                    raise RequeueError(
                        f"{short_lived} keepers in a row died within {KEEPER_LIVES_S:g} s: this node cannot run ranks",
                        "see what kills processes here: dmesg, limits of the container",
                    )
        finally:
            self._crew.keeper(None)
            self._ports.close()

    def stand_by(self, slots: int) -> None:
        """This node is a spare: what it would start is known but for its place in the world."""
        if self._job is not None:
            seat = Seat(self._job.node_id, "", "", group_rank=0, first_rank=0, slots=slots)
            anywhere = Assignment(0, seat, slots, 1, "", 0)
            lasting = self._watch.lasting
            self._crew.awaits(
                tuple(
                    replace(command, env={**command.env, **lasting})
                    for command in self._commands(anywhere, self._job)
                )
            )

    def _commands(self, assignment: Assignment, job: RankJob) -> tuple[RankCommand, ...]:
        return tuple(
            rank_command(
                assignment,
                local_rank,
                workers=self._workers,
                job=job,
                base_env=self._base_env,
                cwd=self._cwd,
            )
            for local_rank in range(assignment.seat.slots)
        )

    async def _follow(self, generation: int, task_status: TaskStatus[None]) -> None:
        """Listen to one keeper until it dies."""
        async with Keeper.start(generation, self._tag, life_sign=self._life_sign) as keeper:
            self._keeper = keeper
            self._crew.keeper(keeper)
            keeper.good_until(self._good_until_s)
            self._tell(KeeperReady(generation))
            if not self._was_ready:
                self._was_ready = True
                task_status.started()
            async for event in keeper.events:
                await self._on(event, keeper)

    # For the interpreter ------------------------------------------------------------------------------

    async def start(self, assignment: Assignment, generation: int) -> None:
        """Start the ranks of an assignment. Whatever keeps them from it comes back as RanksGone."""
        job = self._job
        if job is None:
            raise RuntimeError("ranks are started before the agent has entered a job")
        commands = self._commands(assignment, job)
        answers = await self._make_folders(assignment.round, commands)
        folders = {command.local_rank: Path(command.stderr_path).parent for command in commands}
        linked = self._watch.prepare(assignment, folders)
        commands = tuple(
            replace(command, env={**command.env, **linked.get(command.local_rank, {})})
            for command in commands
        )
        self._round = RunningRanks(assignment, commands, oom_kills())
        if self._keeper is None or self._keeper.generation != generation:
            self._gone_unstarted(FaultKind.KEEPER_LOST, "its keeper is gone")
            return
        if assignment.round <= self._stopped:
            self._gone_unstarted(FaultKind.STOPPED_BY_US, "stopped before it was started")
            return
        self._output.expect(assignment, commands if answers else ())
        self._crew.told(assignment.extra.get(IMPORTS))
        try:
            dressed = self._crew.dress(commands)
            self._keeper.start_ranks(assignment.round, dressed if answers else unlogged(dressed))
        except FrameError as error:
            self._gone_unstarted(
                FaultKind.START_FAILED, f"the environment of the ranks is too large: {error}"
            )
            return
        self._crew.runs(commands)

    async def _make_folders(self, number: int, commands: tuple[RankCommand, ...]) -> bool:
        """Whether the disk of the logs answers: the keeper, which has one thread, must not touch it else."""
        try:
            with anyio.fail_after(FOLDERS_LIMIT_S):
                await aside(make_folders, commands)
        except TimeoutError:
            self._warn(
                f"output of round {number} is lost: its folders could not be made within {FOLDERS_LIMIT_S:g} s"
            )
            return False
        except OSError as error:
            self._warn(f"output of round {number} is lost: {error}")
        return True

    def stop(self, number: int, *, grace: bool) -> None:
        """Stop the ranks of a round, also those whose start is still under way."""
        self._stopped = max(self._stopped, number)
        self._watch.halt(number)
        self._early.over()
        if self._keeper is not None:
            grace_s = self._workers.grace_s(time.time()) if grace else 0.0
            self._keeper.stop(number, grace_s)
            self._countdown.begin(self._running, grace_s)

    def _running(self) -> list[int]:
        """Global numbers of the ranks that have not ended."""
        if self._round is None:
            return []
        first = self._round.assignment.seat.first_rank
        return [
            first + command.local_rank
            for command in self._round.commands
            if command.local_rank not in self._round.exits
        ]

    def kill_hung(self, number: int) -> None:
        """Note what the ranks of a round do, for 2 s at most, then kill them."""
        self._watch.explain_then(number, lambda: self.stop(number, grace=False))

    async def hold(self, number: int) -> RanksHeld:
        """Let no rank of a round pass its next `should_stop`, and tell how far they have come."""
        return RanksHeld(number, await self._watch.hold(number))

    def stop_at(self, number: int, step: int | None) -> None:
        """Tell the ranks of a round at which step to stop, None to go on."""
        self._watch.stop_at(number, step)

    async def reserve_port(self, number: int) -> PortReserved:
        """Hold a port for the round's store; those of rounds before the last one are given back."""
        return PortReserved(number, self._ports.reserve(number))

    async def prove(self, node: Node) -> Proven:
        """Find out whether the process behind a registration is dead, sweeping what it left."""
        proof = await anyio.to_thread.run_sync(prove_dead, node, self._tag.partition("/")[0])
        verdicts = {Verdict.ALIVE: Proof.ALIVE, Verdict.DEAD: Proof.DEAD, Verdict.UNKNOWN: Proof.UNKNOWN}
        return Proven(node.incarnation, verdicts[proof.verdict], proof.evidence)

    # What the keeper reports --------------------------------------------------------------------------

    async def _on(self, event: reports.KeeperEvent, keeper: Keeper) -> None:
        match event:
            case reports.RankStarted(round=number, local_rank=local_rank, pid=pid):
                self._watch.started(number, local_rank, pid)
            case reports.RankExited():
                self._watch.ended(event.round, event.local_rank)
                await self._exited(event)
            case reports.RoundGone(round=number, unkillable=unkillable, lost_bytes=lost_bytes):
                if lost_bytes:
                    self._watch.lost_output(lost_bytes)
                    self._warn(
                        f"round {number}: {lost_bytes} bytes of output are lost, the log could not be written"
                    )
                await self._gone(unkillable)
            case reports.Fenced():
                if self._round is not None:
                    self._round.fenced = True
                self._warn(
                    "the lease was not renewed in time: the keeper killed all ranks (etcd out of reach?)"
                )
            case reports.StartRefused(code=code, reason=reason):
                kind = FaultKind.FENCED if code == "fence" else FaultKind.START_FAILED
                self._gone_unstarted(kind, reason)
            case reports.Grew(local_rank=local_rank, stream=stream):
                self._watch.wrote(local_rank)
                self._output.grew(local_rank, stream, keeper)
            case reports.HookTold() | reports.IdleLost():
                self._crew.on(event)
            case reports.SpoolWarning(path=path, error=error) if path != NO_FILE:
                self._warn(f"{path} cannot be written: {error}; the rank goes on, its output is lost")
            case reports.KeeperLost(generation=generation, how=how, alive=alive):
                self._keeper = None
                self._crew.keeper(None)
                self._warn(f"the keeper is lost ({how}), and all ranks of this node with it")
                self._tell(KeeperLost(generation))
                await self._gone(tuple(range(len(alive))))
            case _:
                pass

    async def _exited(self, event: reports.RankExited) -> None:
        running = self._round
        if running is None or running.assignment.round != event.round:
            return
        running.exits[event.local_rank] = (event, utc())
        end = await self._end(running, event.local_rank)
        if end.exit_code == 0 and end.by is EndedBy.ITSELF:
            self._early.left(event.round, end.rank, self._running, self._too_early)
        self._tell(RankEnded(event.round, end))

    def _too_early(self, number: int, rank: int, sentence: str) -> None:
        self._tell(RankHung(number, rank, sentence))

    async def _gone(self, unkillable: tuple[int, ...]) -> None:
        running, self._round = self._round, None
        self._countdown.over()
        self._early.over()
        if running is None:
            return
        await self._output.drain()
        ends = [await self._end(running, command.local_rank) for command in running.commands]
        number = running.assignment.round
        for end in ends:
            self._keep(number, end)
        learned, marks = self._watch.learned(number), self._watch.marks(number)
        progress = {**self._watch.progress(number), **await self._progress_file()}
        self._tell(RanksGone(number, tuple(ends), unkillable, learned, marks, self._crew.seen, progress))

    async def _progress_file(self) -> dict[str, float]:
        """When the script last wrote the file that tells of its progress; nothing is known without one."""
        path, written_s = self._workers.progress_file, None
        if path is not None:
            with anyio.move_on_after(TAIL_LIMIT_S), suppress(OSError):
                written_s = await aside(_written_s, path)
        return {} if written_s is None else {"file_s": written_s}

    def _gone_unstarted(self, kind: FaultKind, reason: str) -> None:
        running, self._round = self._round, None
        if running is None:
            return
        self._tell(RanksGone(running.assignment.round, unstarted(running, kind, reason)))

    async def _end(self, running: RunningRanks, local_rank: int) -> RankEnd:
        return await end_of(running, local_rank, self._watch, self._workers.startup_grace_s)


def _written_s(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _nobody_listens(event: Event) -> None:
    """Before the first life there is nobody to tell, and nothing runs."""
    del event
