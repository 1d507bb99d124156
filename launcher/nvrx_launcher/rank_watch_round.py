"""One round's ranks as their agent holds them: pages, folders, processes, and what these say at a moment."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nvrx_async.faults import RankState
from nvrx_async.hang.deadlines import Deadline
from nvrx_async.hang.evidence import Asked
from nvrx_async.hang.monitor import Finding, HangMonitor
from nvrx_async.job.records import Assignment, Mark
from nvrx_async.job.where import where
from nvrx_async.ranklink.page import Page, PageView
from nvrx_launcher.clock import boottime_s


class RankLook(NamedTuple):
    """One rank at a moment. `alive`: its process is there; `pid` is 0 before it was started.

    `late`: the deadline that comes first, None where it has none.
    """

    rank: int
    local_rank: int
    pid: int
    alive: bool
    view: PageView
    folder: Path
    late: Deadline | None = None


@dataclass(slots=True)
class WatchedRound:
    """A round's ranks: page, log folder, pid and last output of each, by local rank.

    Moments are seconds of CLOCK_MONOTONIC. `known`: limits that the round began with; `hung`: who was found hung;
    `states`: what all ranks did then, by rank; `waited_for`: sections of which people were told, by rank and mark;
    `judged`: nobody is, once the ranks are being stopped.
    """

    assignment: Assignment
    pages: dict[int, Page]
    folders: dict[int, Path]
    monitor: HangMonitor | None
    known: Mapping[str, float]
    released_s: float
    recorders: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=dict)
    started_s: dict[int, float] = field(default_factory=dict)
    output_s: dict[int, float] = field(default_factory=dict)
    hung: dict[int, Finding] = field(default_factory=dict)
    states: dict[int, RankState] = field(default_factory=dict)
    waited_for: set[tuple[int, str]] = field(default_factory=set)
    judged: bool = True

    def rank(self, local_rank: int) -> int:
        """Its number in the world."""
        return self.assignment.seat.first_rank + local_rank

    @property
    def where(self) -> str:
        """This node, as people know it."""
        return where(self.assignment.seat.node_id, self.assignment.seat.host)

    def views(self) -> dict[int, PageView]:
        """All pages as they are now."""
        now_ns = time.monotonic_ns()
        return {local_rank: page.view(now_ns) for local_rank, page in self.pages.items()}

    def progress(self) -> dict[str, float]:
        """How far these ranks came, as in `records.PROGRESS`; empty where none reports steps."""
        views = self.views().values()
        steps = [view.step for view in views if view.step is not None]
        told = {"finished": 1.0} if all(view.finished for view in views) else {}
        return {"step": max(steps), **told} if steps else {}

    def looks(self) -> list[RankLook]:
        """All ranks as they are now."""
        views = self.views()
        pending = self.monitor.pending(views) if self.monitor is not None and self.judged else {}
        return [
            RankLook(
                self.rank(local_rank),
                local_rank,
                pid := self.pids.get(local_rank, 0),
                pid > 0 and _exists(pid),
                view,
                self.folders[local_rank],
                pending.get(local_rank),
            )
            for local_rank, view in views.items()
        ]

    def marks(self) -> dict[Mark, float]:
        """When the last of these ranks came to each point of its start, in seconds of CLOCK_BOOTTIME."""
        views = self.views().values()
        came: dict[Mark, list[float | None]] = {
            Mark.RELEASED: [self.released_s],
            Mark.STARTED: [self.started_s.get(one) for one in self.pages],
            Mark.HELLO: [view.hello_s for view in views],
            Mark.READY: [view.ready_s for view in views],
            Mark.FIRST_STEP: [view.first_step_s for view in views],
        }
        offset_s = boottime_s() - time.monotonic()
        known = {mark: [at_s for at_s in moments if at_s is not None] for mark, moments in came.items()}
        return {
            mark: max(known[mark]) + offset_s
            for mark, moments in came.items()
            if moments and len(known[mark]) == len(moments)
        }

    def asked(self) -> list[Asked]:
        """All ranks, to be asked for evidence."""
        views = self.views()
        return [
            Asked(
                self.rank(local_rank),
                self.where,
                self._speaker(local_rank, views.get(local_rank)),
                views.get(local_rank),
                folder,
                local_rank in self.hung,
                self.hung[local_rank].late_s if local_rank in self.hung else 0.0,
                self.assignment.master_port,
                self.recorders.get(local_rank, {}),
            )
            for local_rank, folder in self.folders.items()
        ]

    def _speaker(self, local_rank: int, page: PageView | None) -> int:
        """The process that reports for the rank, which need not be the one that was started."""
        if page is not None and page.pid and _exists(page.pid):
            return page.pid
        return self.pids.get(local_rank, 0)

    def close(self) -> None:
        """Give the pages back."""
        for page in self.pages.values():
            page.close()


def make_pages(assignment: Assignment, local_ranks: Iterable[int]) -> dict[int, Page]:
    """New pages for a round, by local rank.

    Raises:
        OSError: no memory, or no descriptor, is left.
    """
    with ExitStack() as undo:
        pages = {}
        for local_rank in local_ranks:
            pages[local_rank] = Page.create(assignment.round, assignment.seat.first_rank + local_rank)
            undo.callback(pages[local_rank].close)
        undo.pop_all()
    return pages


def _exists(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")  # noqa: PTH110 - /proc, at every look
