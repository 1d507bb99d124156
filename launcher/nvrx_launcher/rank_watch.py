"""What this node's ranks say of themselves, and whether they get on: their pages, the socket, the hang monitor.

The monitor names the moment it wants to look next; until then nothing is looked at. What it finds becomes
an event for the machines, which decide.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from nvrx_async.faults import RankState
from nvrx_async.hang import flight_recorder
from nvrx_async.hang.computed import merged
from nvrx_async.hang.evidence import gather, sample
from nvrx_async.hang.monitor import Finding, HangMonitor, Look, Seen
from nvrx_async.hang.patience import OpenSection, Waits, to_wire
from nvrx_async.hang.policy import HangPolicy
from nvrx_async.job.records import Assignment, Mark
from nvrx_async.probe import QuestionRefusedError
from nvrx_async.ranklink.agent import RankLinkServer
from nvrx_async.ranklink.messages import (
    PAGE_VARIABLE,
    SOCKET_VARIABLE,
    STACKS_VARIABLE,
    AllowGrow,
    Message,
    StepReached,
)
from nvrx_async.ranklink.page import H_ASKED, H_STOP, STOP_HOLD, STOP_NONE, Page, PageView
from nvrx_async.rounds.events import Event, GrowthAllowed, RankHung
from nvrx_async.rounds.limits import limits_in
from nvrx_launcher.link_folder import make_link_folder, remove_link_folder
from nvrx_launcher.neighbours import Neighbours, ask_ahead_s, first_probe
from nvrx_launcher.rank_watch_round import RankLook, WatchedRound, make_pages
from nvrx_launcher.step_waits import StepWaits
from nvrx_launcher.warm.quiet import quiet_in_s
from nvrx_launcher.wording import duration

EVIDENCE_WITHIN_S = 2.0
"""Time for evidence before hung ranks are killed."""

_PAUSES_PER_TTL = 1.0
_LEAST_PAUSE_S = 5.0
HELD_AFTER_S = 0.01


class RankWatch:
    """See the module. `policy` None: pages and socket only, nobody is judged. `inherited`: the ranks' environment.

    `steps`: answers who waits for a step.
    `neighbours`: who tells what ranks of other nodes do, None where there are none. `say`: a line for people.
    """

    def __init__(
        self,
        policy: HangPolicy | None,
        *,
        lease_ttl_s: float,
        warn: Callable[[str], None],
        inherited: Mapping[str, str],
        neighbours: Neighbours | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self._policy = policy
        self._neighbours = neighbours
        self._say = say or warn
        self._inherited = inherited
        self._pause_s = max(_LEAST_PAUSE_S, lease_ttl_s * _PAUSES_PER_TTL)
        self._warn = warn
        self._folder: Path | None = None
        self._server: RankLinkServer | None = None
        self._tasks: TaskGroup | None = None
        self._round: WatchedRound | None = None
        self._expected = False
        self._due_s = math.inf
        self._changed = anyio.Event()
        self._tell: Callable[[Event], None] = _nobody_listens
        self.steps = StepWaits(self._pages_of)

    @property
    def folder(self) -> Path | None:
        """This agent's private folder, None while there is none."""
        return self._folder

    # For the agent ------------------------------------------------------------------------------------

    def listen(self, tell: Callable[[Event], None]) -> None:
        """Tell another life's machines from now on."""
        self._tell = tell

    def alive(self) -> None:
        """This agent lives: a renewal was acknowledged. Long gaps between these say that it did not."""
        if self._round is not None and self._round.monitor is not None:
            self._round.monitor.alive(time.monotonic())

    async def serve(self, *, task_status: TaskStatus[None]) -> None:
        """Serve socket and monitor until cancelled. Without a folder ranks run unwatched, which is said once."""
        try:
            self._folder = await anyio.to_thread.run_sync(make_link_folder)
        except OSError as error:
            self._warn(f"hangs are not detected: the folder of the socket cannot be made ({error})")
        try:
            async with anyio.create_task_group() as self._tasks:
                if self._folder is not None:
                    self._server = RankLinkServer(str(self._folder / "agent.sock"), self._warn, self._hear)
                    await self._tasks.start(self._server.serve)
                if self._neighbours is not None:
                    await self._tasks.start(self._neighbours.serve)
                task_status.started()
                await self._watch()
        finally:
            self._tasks = None
            self._close()
            if self._folder is not None:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(remove_link_folder, self._folder)

    # For the ranks ------------------------------------------------------------------------------------

    @property
    def lasting(self) -> dict[str, str]:
        """What each rank of this node has in its environment in every round."""
        return {SOCKET_VARIABLE: str(self._folder / "agent.sock")} if self._folder is not None else {}

    def prepare(self, assignment: Assignment, folders: Mapping[int, Path]) -> dict[int, dict[str, str]]:
        """Make a page for each rank of a round, by local rank; returns what to add to their environments."""
        self._close()
        if self._folder is None:
            return {}
        try:
            pages = make_pages(assignment, folders)
        except OSError as error:
            self._warn(f"round {assignment.round}: hangs are not detected, no page can be made ({error})")
            return {}
        known = limits_in(assignment.extra)
        self._expected = self._expected or bool(known)
        added = {
            one: flight_recorder.variables(self._inherited, self._folder, folder)
            for one, folder in folders.items()
        }
        recorders = {one: flight_recorder.places(self._inherited, names) for one, names in added.items()}
        self._round = WatchedRound(assignment, pages, dict(folders), None, known, time.monotonic(), recorders)
        return {
            local_rank: {
                **self.lasting,
                PAGE_VARIABLE: pages[local_rank].path,
                STACKS_VARIABLE: str(folder / "stacks.txt"),
                **added[local_rank],
            }
            for local_rank, folder in folders.items()
        }

    def started(self, number: int, local_rank: int, pid: int) -> None:
        """A rank's process exists; the first of a round starts its clock."""
        watched = self._round
        if watched is None or watched.assignment.round != number:
            return
        watched.pids[local_rank] = pid
        watched.started_s[local_rank] = time.monotonic()
        if self._policy is not None and watched.monitor is None:
            watched.monitor = HangMonitor(
                self._policy,
                watched.pages,
                time.monotonic(),
                known=watched.known,
                expected=self._expected,
                pause_s=self._pause_s,
                ask_ahead_s=ask_ahead_s(watched.assignment),
                first_rank=watched.assignment.seat.first_rank,
                node=watched.where,
            )
        self._look_at(time.monotonic())

    def wrote(self, local_rank: int) -> None:
        """A rank wrote something."""
        if self._round is not None:
            self._round.output_s[local_rank] = time.monotonic()

    def lost_output(self, lost_bytes: int) -> None:
        """Output of ranks was lost. Of no use here; telemetry counts it."""

    def halt(self, number: int) -> None:
        """The ranks of a round are being stopped: they are not judged any more."""
        if self._round is not None and self._round.assignment.round == number:
            self._look_at(math.inf)
            self._round.judged = False

    def ended(self, number: int, local_rank: int) -> None:
        """A rank's process is gone."""
        watched = self._round
        if watched is not None and watched.assignment.round == number and watched.monitor is not None:
            self._learn(watched)
            watched.monitor.ended(local_rank)

    def is_ready(self, number: int, local_rank: int) -> bool:
        """Whether a rank of this round has said hello or reported anything."""
        page = self._page(number, local_rank)
        return page is not None and page.is_ready

    def state(self, number: int, local_rank: int) -> tuple[RankState | None, Finding | None]:
        """What a rank was doing when a hang was found, and why it was taken for hung itself."""
        watched = self._round
        if watched is None or watched.assignment.round != number:
            return None, None
        return watched.states.get(watched.rank(local_rank)), watched.hung.get(local_rank)

    def learned(self, number: int) -> dict[str, float]:
        """Limits for the next round."""
        watched = self._round
        if watched is None or watched.assignment.round != number or watched.monitor is None:
            return {}
        self._learn(watched)
        return merged(watched.known, watched.monitor.seen)

    def progress(self, number: int) -> dict[str, float]:
        """How far this node's ranks came, as in `records.PROGRESS`; empty where none reports steps."""
        watched = self._of(number)
        return watched.progress() if watched is not None else {}

    def looks(self) -> tuple[int | None, list[RankLook]]:
        """The round, and all its ranks as they are now; None and nothing where no rank is watched."""
        watched = self._round
        return (watched.assignment.round, watched.looks()) if watched is not None else (None, [])

    async def sections(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """A handler of the probe port: the sections of this node's ranks that other nodes may be waiting for.

        Raises:
            QuestionRefusedError: no rank of that round is judged here.
        """
        watched = self._of(payload["round"]) if isinstance(payload.get("round"), int) else None
        if watched is None or watched.monitor is None or not watched.judged:
            raise QuestionRefusedError("no rank of that round is watched here")
        found = watched.monitor.open_sections(watched.views())
        now_s = time.monotonic()
        return {"sections": [to_wire(one, now_s) for one in found]}

    def marks(self, number: int) -> dict[Mark, float]:
        """When the last of this node's ranks came to each point of its start, in seconds of CLOCK_BOOTTIME."""
        watched = self._of(number)
        return watched.marks() if watched is not None else {}

    def quiet_in_s(self) -> float:
        """When to look again whether ranks here save or evaluate, in seconds; 0: none does."""
        pages = self._round.pages.values() if self._round is not None else ()
        return quiet_in_s(page.view(time.monotonic_ns()) for page in pages)

    def explain_then(self, number: int, kill: Callable[[], None]) -> None:
        """Note what all ranks of the round do, for 2 s at most, then kill. The kill comes whatever happens."""
        if self._tasks is None or self._round is None or self._round.assignment.round != number:
            kill()
            return
        self._tasks.start_soon(self._explain_then, self._round, kill)

    async def hold(self, number: int) -> int | None:
        """Let no rank pass its next `should_stop`; the highest step that one has asked about, None if none asks.

        The pause outlasts what a processor may hold back of a rank's write: who has not seen the word has
        its step on the page by then.
        """
        watched = self._of(number)
        if watched is None:
            return None
        for page in watched.pages.values():
            page.words[H_STOP] = STOP_HOLD
        await anyio.sleep(HELD_AFTER_S)
        if self._of(number) is not watched:
            return None
        steps = [page.words[H_ASKED] - 1 for page in watched.pages.values()]
        return max(steps) if min(steps) >= 0 else None

    def stop_at(self, number: int, step: int | None) -> None:
        """Tell the ranks at which step to stop, None to go on; those that wait are woken."""
        watched = self._of(number)
        if watched is None:
            return
        for page in watched.pages.values():
            page.words[H_STOP] = STOP_NONE if step is None else step + 1
        if self._tasks is not None and self._server is not None:
            self._tasks.start_soon(self._server.tell_stop, number, -1 if step is None else step)

    def _hear(self, message: Message) -> None:
        if isinstance(message, AllowGrow):
            self._tell(GrowthAllowed(message.round))
        elif isinstance(message, StepReached):
            self.steps.news()

    # Inside -------------------------------------------------------------------------------------------

    async def _explain_then(self, watched: WatchedRound, kill: Callable[[], None]) -> None:
        try:
            watched.states = await gather(watched.asked(), EVIDENCE_WITHIN_S)
        finally:
            kill()

    async def _watch(self) -> None:
        while True:
            due_s = self._due_s
            with anyio.move_on_after(max(0.0, due_s - time.monotonic())):
                await self._changed.wait()
            if self._changed.is_set():
                self._changed = anyio.Event()
            elif self._round is not None and self._round.monitor is not None and self._round.judged:
                await self._look(self._round, self._round.monitor, due_s)
            else:
                self._due_s = math.inf

    def _look_at(self, moment_s: float) -> None:
        self._due_s = moment_s
        self._changed.set()

    async def _look(self, watched: WatchedRound, monitor: HangMonitor, due_s: float) -> None:
        now_s = time.monotonic()
        pids = {one: pid for one, pid in watched.pids.items() if one in watched.pages}
        outputs = {one: watched.output_s.get(one, 0.0) for one in pids}
        samples = await anyio.to_thread.run_sync(
            lambda: {one: sample(pid, now_s, outputs[one]) for one, pid in pids.items()}
        )
        now_s = time.monotonic()
        if watched is not self._round or not watched.judged:
            return
        seen = {
            one: Seen(page, samples[one])
            for one in pids
            if (page := self._page(watched.assignment.round, one)) is not None and samples[one].states
        }
        look = monitor.look(now_s, due_s, seen, () if self._neighbours is None else None)
        self._take(watched, monitor, look)
        if self._neighbours is not None and look.ask:
            elsewhere = await self._neighbours.sections(
                watched.assignment.round, first_probe(watched.assignment)
            )
            if watched is self._round and watched.judged:
                self._take(watched, monitor, _again(monitor, watched.views(), seen, elsewhere))

    def _take(self, watched: WatchedRound, monitor: HangMonitor, look: Look) -> None:
        """Note and tell what a look found."""
        self._due_s = look.next_s
        self._expected = monitor.expected
        watched.hung.update({one.local_rank: one for one in look.findings if one.hung})
        for waits in look.waits:
            self._tell_of_patience(watched, waits)
        for finding in look.findings:
            if finding.hung:
                rank, limit = watched.rank(finding.local_rank), duration(finding.limit_s)
                sentence = f"{finding.sentence}, for more than {limit}"
                self._tell(RankHung(watched.assignment.round, rank, sentence))
            elif self._tasks is not None:
                self._tasks.start_soon(self._tell_of_suspect, watched, finding)

    def _tell_of_patience(self, watched: WatchedRound, waits: Waits) -> None:
        """Once for each section that is waited for."""
        section, here = waits.section, [watched.rank(one) for one in waits.local_ranks]
        if (section.rank, section.mark) in watched.waited_for:
            return
        watched.waited_for.add((section.rank, section.mark))
        wait = f"rank {here[0]} waits" if len(here) == 1 else f"{len(here)} ranks wait"
        open_s = time.monotonic() - section.since_s
        self._say(
            f"rank {section.rank} on {section.node} has been in section {section.name} for {duration(open_s)} "
            f"(limit {duration(section.limit_s)}), {wait} for it on this node: not taken for hung"
        )

    async def _tell_of_suspect(self, watched: WatchedRound, finding: Finding) -> None:
        rank, limit = watched.rank(finding.local_rank), duration(finding.limit_s)
        await gather(watched.asked(), EVIDENCE_WITHIN_S)
        folder = watched.folders[finding.local_rank]
        self._warn(
            f"rank {rank} may hang: it {finding.sentence}, for more than {limit}; not killed, "
            f"what it does is in {folder}/hang.json"
        )

    def _page(self, number: int, local_rank: int) -> PageView | None:
        watched = self._round
        if watched is None or watched.assignment.round != number or local_rank not in watched.pages:
            return None
        return watched.pages[local_rank].view(time.monotonic_ns())

    def _of(self, number: int) -> WatchedRound | None:
        """The round's ranks, if it is this round that is watched."""
        watched = self._round
        return watched if watched is not None and watched.assignment.round == number else None

    def _pages_of(self, number: int) -> Iterable[Page] | None:
        watched = self._of(number)
        return watched.pages.values() if watched is not None else None

    def _learn(self, watched: WatchedRound) -> None:
        """Take the maxima of all pages, also of ranks that are ending."""
        if watched.monitor is not None:
            watched.monitor.learn([page.view(time.monotonic_ns()) for page in watched.pages.values()])
            self._expected = watched.monitor.expected

    def _close(self) -> None:
        watched, self._round = self._round, None
        self._due_s = math.inf
        self.steps.news()
        if watched is not None:
            watched.close()


def _nobody_listens(event: Event) -> None:
    """Before the first life there is nobody to tell, and nothing runs."""
    del event


def _again(
    monitor: HangMonitor,
    views: Mapping[int, PageView],
    seen: Mapping[int, Seen],
    elsewhere: Sequence[OpenSection],
) -> Look:
    """The same look with what others say, at pages as they are by now."""
    now_s = time.monotonic()
    fresh = {one: Seen(views[one], seen[one].sample) for one in seen}
    return monitor.look(now_s, now_s, fresh, elsewhere)
