"""Where the time of a restart went: from the fault that ended a round to the first step of the next one. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from nvrx_async.job.records import Mark
from nvrx_async.job.round_record import RoundRecord
from nvrx_async.job.times import parsed


@dataclass(frozen=True, slots=True)
class Step:
    """A stretch of a restart. `last` names the node that was last to come through, "" where none is known.

    Moments are in UTC and never run backwards: where two nodes' clocks disagree the later step is cut to 0 s.
    """

    name: str
    meaning: str
    start_utc: str
    end_utc: str
    seconds: float
    last: str = ""


@dataclass(frozen=True, slots=True)
class Waterfall:
    """A restart in its steps, in order and without gaps.

    `seconds` is the time from the fault to the last moment that is known; `complete` says that this is the first
    step of the next round, or the end of the job. `missing` names moments that nobody told: the step that follows
    such a one holds its time too.
    """

    steps: tuple[Step, ...]
    seconds: float
    complete: bool
    missing: tuple[str, ...] = ()

    @property
    def covered(self) -> float:
        """Share of the time that lies in named steps which hold nobody else's time, 0 to 1."""
        if self.seconds <= 0:
            return 1.0
        return sum(step.seconds for step in self.steps if "+" not in step.name) / self.seconds


_STOPPING = (
    ("told", "told_utc", Mark.TOLD, "every node knows that the round is over"),
    ("stopped", "stopping_utc", Mark.STOPPING, "evidence is taken where a rank hung, ranks are told to stop"),
    ("reaped", "gone_utc", Mark.GONE, "no rank lives, all output is read"),
    ("reported", "reported_utc", Mark.REPORTED, "every node has reported, and joined the next round"),
    ("ended", "ended_utc", None, "the coordinator has chosen the cause, and what comes next"),
)
_STARTING = (
    ("sealed", "running_utc", None, "the next world is decided and written"),
    (
        "released",
        "released_utc",
        Mark.RELEASED,
        "every agent has read its part, and orders its ranks to start",
    ),
    ("started", "started_utc", Mark.STARTED, "all processes exist"),
    ("connected", "hello_utc", Mark.HELLO, "interpreter and imports, up to nvrx_async.connect()"),
    ("first step", "first_step_utc", Mark.FIRST_STEP, "the training sets itself up"),
)


def waterfall(ended: RoundRecord, following: RoundRecord | None) -> Waterfall | None:
    """The restart between two rounds; None if the first one has not ended by a fault."""
    start = parsed(ended.times.fault_utc)
    if start is None or ended.success:
        return None
    # A round that ended by agreement was told to nobody: its ranks left by themselves.
    stopping = _STOPPING if ended.interrupt is not None else _STOPPING[2:]
    points = [(ended, *point) for point in stopping]
    if following is not None and following.number == ended.number + 1:
        points += [(following, *point) for point in _STARTING]
    steps: list[Step] = []
    missing: list[str] = []
    passed, passed_utc, pending = start, ended.times.fault_utc, []
    for record, name, field, mark, meaning in points:
        utc = getattr(record.times, field)
        moment = parsed(utc)
        if moment is None:
            missing.append(name)
            pending.append(name)
            continue
        if moment < passed:
            moment, utc = passed, passed_utc
        last = _last(record, mark) if mark else ""
        whole = " + ".join([*pending, name])
        steps.append(Step(whole, meaning, passed_utc, utc, (moment - passed).total_seconds(), last))
        passed, passed_utc, pending = moment, utc, []
    complete = bool(steps) and (
        steps[-1].name.endswith("first step") or (ended.outcome is not None and bool(ended.times.ended_utc))
    )
    return Waterfall(tuple(steps), (passed - start).total_seconds(), complete, tuple(missing))


def _last(record: RoundRecord, mark: Mark) -> str:
    """The node that came to this moment last; nobody where there is only one."""
    came = [(node.at_utc[mark], node.node_id) for node in record.nodes if mark in node.at_utc]
    return max(came)[1] if len(came) > 1 else ""
