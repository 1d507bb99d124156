"""Which rank a hang is to be blamed on: pure, over what every rank of the job was doing when it was found.

In a synchronous training one rank that does not come makes all others wait, and all are late at the same
moment. So the culprit is the one that does *not* wait: stopped by a signal, never connected, in a part of the
work of its own, or at another place than all others. Where nobody stands out, nobody is named.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HANG = "hang"
"""Key of `RankEnd.extra` that holds a rank's state as `as_extra` writes it."""

_OUTLIERS_FROM = 3
_OUTERMOST = 8
_SAME_STALL = 0.5
_WAITING_FILES = ("/torch/distributed/", "/torch/nn/parallel/distributed.py")
_NOT_WAITING_FILES = ("/torch/distributed/checkpoint/",)
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "/nvrx_async/ranklink/", "<frozen ")
_WAITING_FUNCTIONS = frozenset({"_engine_run_backward"})
"""DistributedDataParallel waits for its peers in C++ below this function of torch/autograd/graph.py."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a Python stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True)
class RankState:
    """What a rank was doing when a hang was found.

    `node`: where it ran, as people know it. `hung`: it was late itself. `hello`, `done`: it had connected, it had
    said that training is over. `step`: last it reported. `section`: its innermost open section but "step", and for
    how long. `silent_s`: since its last report. `state`: letter of proc_pid_stat(5) of its main thread. `frames`:
    Python stack of its training thread, innermost first; empty if none could be had. `store`: what keeps it from
    the store that all ranks meet at.
    """

    rank: int
    node: str = ""
    hung: bool = False
    hello: bool = False
    done: bool = False
    ended: bool = False
    step: int | None = None
    section: str | None = None
    section_s: float = 0.0
    silent_s: float = 0.0
    state: str = ""
    frames: tuple[Frame, ...] = ()
    store: str = ""

    @property
    def waits(self) -> bool:
        """Its training thread is inside torch's collectives or its store."""
        return bool(self.frames) and waits_for_peers(self.frames)

    @property
    def own(self) -> tuple[Frame, ...]:
        """Frames of the script itself, innermost first."""
        return tuple(one for one in self.frames if not any(part in one.file for part in _LIBRARIES))

    @property
    def place(self) -> str:
        """The line of the script that it is at, for people and for comparing ranks."""
        own = self.own
        return str(own[0] if own else self.frames[0] if self.frames else "")


@dataclass(frozen=True, slots=True)
class Blame:
    """Who is blamed, None for nobody, and why in a sentence."""

    rank: int | None
    sentence: str


def waits_for_peers(frames: Sequence[Frame]) -> bool:
    """Whether the innermost Python frame belongs to torch's distributed package, or runs DDP's backward."""
    innermost = frames[0]
    if innermost.function in _WAITING_FUNCTIONS:
        return True
    file = innermost.file
    return any(part in file for part in _WAITING_FILES) and not any(
        part in file for part in _NOT_WAITING_FILES
    )


def as_extra(state: RankState) -> dict[str, Any]:
    """The state as it is kept beside a rank's end; rank and node stand there already."""
    return {
        "hung": state.hung,
        "hello": state.hello,
        "done": state.done,
        "ended": state.ended,
        "step": state.step,
        "section": state.section,
        "section_s": round(state.section_s, 3),
        "silent_s": round(state.silent_s, 3),
        "state": state.state,
        "store": state.store,
        "frames": [[one.file, one.line, one.function] for one in _kept(state)],
    }


def _kept(state: RankState) -> tuple[Frame, ...]:
    """The innermost frame, which tells what it does, and the script's outermost ones, which tell ranks apart."""
    own = state.own[-_OUTERMOST:]
    return own if state.frames[:1] == own[:1] else (*state.frames[:1], *own)


def from_extra(rank: int, node: str, extra: Mapping[str, Any]) -> RankState | None:
    """The state that was kept beside a rank's end, None if there is none that can be read."""
    raw = extra.get(HANG)
    if not isinstance(raw, Mapping):
        return None
    frames = raw.get("frames") or ()
    step, section = raw.get("step"), raw.get("section")
    return RankState(
        rank=rank,
        node=node,
        hung=bool(raw.get("hung")),
        hello=bool(raw.get("hello")),
        done=bool(raw.get("done")),
        ended=bool(raw.get("ended")),
        step=step if isinstance(step, int) else None,
        section=section if isinstance(section, str) else None,
        section_s=_number(raw.get("section_s")),
        silent_s=_number(raw.get("silent_s")),
        state=str(raw.get("state", "")),
        store=str(raw.get("store", "")),
        frames=tuple(Frame(str(one[0]), int(one[1]), str(one[2])) for one in frames if _is_frame(one)),
    )


def culprit(states: Sequence[RankState]) -> Blame:
    """Name the rank that a hang is to be blamed on, by the strongest sign that singles one out."""
    alive = [one for one in states if not one.ended]
    if not alive:
        return Blame(None, "all ranks had ended")
    waiting = [one for one in alive if one.waits]
    connected = any(one.hello for one in states)
    stalled = _stalled(alive)
    signs = (
        ([one for one in alive if one.state in ("T", "t")], "is stopped by a signal (state T)"),
        ([one for one in alive if connected and not one.hello], "never connected: it hangs in its start"),
        (
            [one for one in stalled if _ends_late(one, alive)],
            "said that training is done and does not end",
        ),
    )
    for found, what in signs:
        if found:
            return _blame(found, what, states)
    busy = [one for one in stalled if not one.waits and (one.frames or one.section or not waiting)]
    if waiting and busy:
        return _blame([_least(busy)], _doing(_least(busy)), states)
    astray = sorted((one for one in alive if one.store), key=lambda one: one.rank)
    if astray:  # where rank 0 does not serve the store, none of the others can be connected to it
        return _blame(astray[:1] if astray[0].rank == 0 else astray, astray[0].store, states)
    # Who left without a word explains why all others wait, wherever they do.
    left = any(one.ended and one.hello and not one.done for one in states)
    apart = None if left else _outlier(stalled)
    if apart is not None:
        return _blame([apart], f"{_doing(apart)}, apart from all others", states)
    if len(stalled) < len(alive):
        return _blame(stalled, _doing(stalled[0]), states, end=", the others get on")
    if len(alive) == 1:
        return _blame(alive, _doing(alive[0]), states)
    return Blame(None, _nobody(alive, states))


def _ends_late(one: RankState, alive: Sequence[RankState]) -> bool:
    """It ought to have ended: it is late with that itself, or all who are late wait for their peers."""
    return one.done and not one.waits and (one.hung or all(other.waits for other in alive if other.hung))


def _blame(found: Sequence[RankState], what: str, states: Sequence[RankState], *, end: str = "") -> Blame:
    one = found[0]
    others = [other for other in states if other.rank != one.rank and other.waits]
    wait = f" while {_count(others)}" if others else ""
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    step = f", last at step {one.step}" if one.step is not None else ""
    return Blame(one.rank, f"rank {one.rank} on {one.node}{more} {what}{step}{end}{wait}")


def _nobody(alive: Sequence[RankState], states: Sequence[RankState]) -> str:
    """What there is to say where no rank stands out: where most of them are, and who was done before."""
    places = Counter(one.place for one in alive if one.place)
    place, there = places.most_common(1)[0] if places else ("", 0)
    where = f" at {place}" if there == len(alive) else f", {there} of them at {place}" if there > 1 else ""
    said = f"{len(alive)} ranks make no progress{where}, and none stands out"
    over = [one for one in states if one.ended and one.done]
    if over:
        one = min(over, key=lambda one: (math.inf if one.step is None else one.step, one.rank))
        step = f" at step {one.step}" if one.step is not None else ""
        more = f", and {len(over) - 1} more" if len(over) > 1 else ""
        said += f"; rank {one.rank} on {one.node} had said that training is over{step}, and was gone{more}"
    if all(one.waits for one in alive):
        said += "; if one left a collective out, TORCH_DISTRIBUTED_DEBUG=DETAIL makes torch tell which"
    return said


def _doing(one: RankState) -> str:
    if one.section is not None:
        at = f", at {one.place}" if one.place else ""
        return f"has been in section {one.section} for {_long(one.section_s)}{at}"
    if one.waits:
        return f"waits at {one.place}"
    if one.silent_s > 0:
        at = f" and is at {one.place}" if one.place else ""
        return f"has reported nothing for {_long(one.silent_s)}{at}"
    return f"is at {one.place}" if one.place else "stands still and never reported anything"


def _least(ranks: Sequence[RankState]) -> RankState:
    """The one furthest behind."""
    return min(ranks, key=lambda one: (-1 if one.step is None else one.step, one.rank))


def _stalled(alive: Sequence[RankState]) -> Sequence[RankState]:
    """Those that have been silent about as long as the ones found hung: deadlines of one stall differ a little."""
    longest_s = max((one.silent_s for one in alive if one.hung), default=0.0)
    found = [one for one in alive if one.hung or (longest_s > 0 and one.silent_s >= longest_s * _SAME_STALL)]
    return found or alive


def _outlier(ranks: Sequence[RankState]) -> RankState | None:
    """The one rank at another step, or at another place of the script, than all the others."""
    if len(ranks) < _OUTLIERS_FROM:
        steps = sorted({one.step for one in ranks if one.step is not None})
        behind = [one for one in ranks if one.step == steps[0]] if len(steps) > 1 else []
        return behind[0] if len(behind) == 1 else None
    apart = _single([one.step for one in ranks])
    if apart is not None:
        return ranks[apart]
    stacks = [one.own[::-1] for one in ranks]
    for depth in range(max(map(len, stacks))):
        lines = [stack[depth] if depth < len(stack) else None for stack in stacks]
        if len(set(lines)) > 1:  # here they part; deeper lines say nothing of each other
            apart = _single(lines)
            return ranks[apart] if apart is not None else None
    return None


def _single(values: Sequence[object]) -> int | None:
    """Which one differs, where all others are the same."""
    counts = Counter(values)
    single = [value for value, count in counts.items() if count == 1]
    return values.index(single[0]) if len(counts) == 2 and len(single) == 1 else None  # noqa: PLR2004 - it and the others


def _count(others: Sequence[RankState]) -> str:
    if len(others) == 1:
        return f"rank {others[0].rank} waits for it"
    return f"{len(others)} ranks wait for it"


def _long(seconds: float) -> str:
    minute = 60
    return f"{seconds:.1f} s" if seconds < 2 * minute else f"{seconds / minute:.0f} min"


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _is_frame(raw: object) -> bool:
    return isinstance(raw, list | tuple) and len(raw) == 3 and isinstance(raw[1], int)  # noqa: PLR2004 - file, line, function
