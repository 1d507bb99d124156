"""What this agent answers to the question `live`: how its ranks are doing, for people who ask (`nvrx status`)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import orjson

from nvrx_async.aside import aside
from nvrx_async.job.codec import encode
from nvrx_async.job.live import LiveNode, LiveRank
from nvrx_async.job.times import earlier
from nvrx_async.ranklink.page import PageView
from nvrx_async.rounds.events import Now
from nvrx_launcher.rank_watch import RankWatch
from nvrx_launcher.rank_watch_round import RankLook

MOST_LOOKS = 8
LOOK_LIMIT_S = 0.5
STEP = "step"
"""The section that `Rank.steps` opens around each step: a step is told as a number, not as a section."""


class LiveAnswers:
    """Answers about one agent. `warm`: how many idle processes are ready."""

    def __init__(self, watch: RankWatch, warm: Callable[[], int], clock: Callable[[], Now]) -> None:
        self._watch = watch
        self._warm = warm
        self._clock = clock
        self.node_id = ""
        self._may_look = threading.Semaphore(MOST_LOOKS)
        self._renewal_s: float | None = None

    def renewed(self, sent_at_s: float) -> None:
        """The lease's renewal that was sent at this moment (CLOCK_BOOTTIME) has just been acknowledged."""
        self._renewal_s = self._clock().s - sent_at_s

    async def answer(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """A handler of the probe port; the question has no parts."""
        del payload
        number, looks = self._watch.looks()
        sizes = await self._output_bytes([look.folder for look in looks])
        now = self._clock()
        marks = self._watch.marks(number) if number is not None else {}
        told = LiveNode(
            node_id=self.node_id,
            round=number,
            ranks=tuple(_rank(look, size) for look, size in zip(looks, sizes, strict=True)),
            warm=self._warm(),
            etcd_ms=None if self._renewal_s is None else round(self._renewal_s * 1000, 2),
            marks={f"{mark.value}_utc": earlier(now.utc, now.s - at_s) for mark, at_s in marks.items()},
        )
        answer: dict[str, Any] = orjson.loads(encode(told))
        return answer

    async def _output_bytes(self, folders: list[Path]) -> list[int]:
        """Of each folder's logs; zeros from a disk that does not answer, which few look at at once."""

        def look() -> list[int]:
            try:
                return _sizes(folders)
            finally:
                self._may_look.release()

        if self._may_look.acquire(blocking=False):
            try:
                with anyio.move_on_after(LOOK_LIMIT_S):
                    return await aside(look)
            except OSError:  # no thread can be started, so nobody looks
                self._may_look.release()
        return [0] * len(folders)


def _rank(look: RankLook, output_bytes: int) -> LiveRank:
    view = look.view
    section = _innermost(view)
    last_s = _last_s(view)
    return LiveRank(
        rank=look.rank,
        local_rank=look.local_rank,
        pid=look.pid,
        state=_state(look),
        step=view.step,
        beat_age_s=round(view.at_s - last_s, 3) if last_s is not None else None,
        section=section[0] if section else "",
        section_s=round(section[1], 3) if section else 0.0,
        output_bytes=output_bytes,
        log=str(look.folder),
        late_by=look.late.sentence if look.late else "",
        late_since_s=round(view.at_s - look.late.since_s, 3) if look.late else None,
        late_in_s=round(look.late.at_s - view.at_s, 3) if look.late else None,
    )


def _state(look: RankLook) -> str:
    if look.pid and not look.alive:
        return "ended"
    if look.view.done_s is not None:
        return "done"
    return "running" if look.view.is_ready else "started" if look.pid else "starting"


def _last_s(view: PageView) -> float | None:
    spoken = [thread.last_s for thread in view.threads if thread.reports]
    return max(spoken, default=view.hello_s)


def _innermost(view: PageView) -> tuple[str, float] | None:
    """The section that was opened last, and for how long it has been open."""
    opened = sorted((one for one in view.sections if one.name != STEP), key=lambda one: one.start_s)
    return (opened[-1].name, view.at_s - opened[-1].start_s) if opened else None


def _sizes(folders: list[Path]) -> list[int]:
    return [sum(_size(folder / name) for name in ("stdout.log", "stderr.log")) for folder in folders]


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size  # noqa: PTH116 - a pair for each rank, at every question
    except OSError:
        return 0  # no output yet, or a disk that was lost, which is warned of elsewhere
