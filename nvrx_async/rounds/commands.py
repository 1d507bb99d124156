"""What people ask of a running job (`control/<id>`), and what the coordinator makes of it. Pure.

A command is decided once: its answer, what it changes in the round, and the list of exclusions are one transaction,
which compares that the command is still unanswered. Whoever leads next finds it done, or not begun.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from nvrx_async.etcd.types import KeyValue, Scope
from nvrx_async.job.codec import decode, encode
from nvrx_async.job.errors import RecordError
from nvrx_async.job.records import (
    COMMANDS,
    Command,
    CommandPhase,
    Ending,
    Exclusion,
    JobSpec,
    Node,
    Phase,
    Purpose,
    Round,
    Seat,
    Stop,
    StopPhase,
    Verb,
)
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.stop_state import ENDING, put_to_use, stop_in

STOPPED = 143
"""Exit code of a job that a person stopped: as if every agent had got SIGTERM."""
REQUEUE = 75
FOR_GOOD_S = 100 * 365 * 86_400.0
"""Who is shut out for longer is so for good: no calendar holds every end, and one command must not end all agents."""
_MOST_SIGNS = 1000
_MOST_BYTES = 20_000
"""What a person says is kept so far: a longer command would be answered never, and hold up all that comes after it."""
SHOWN = 8
"""So many answered commands are carried in the round."""


@dataclass(frozen=True, slots=True)
class Case:
    """What a command is decided on.

    `waiting` have joined the next round and hold no seat. `interrupted`: the round is over already.
    """

    round: Round
    seats: tuple[Seat, ...]
    nodes: Mapping[str, Node]
    waiting: tuple[str, ...]
    exclusions: Mapping[str, Exclusion]
    interrupted: bool
    spec: JobSpec

    @property
    def runs(self) -> bool:
        """Ranks run, and nothing has ended the round yet."""
        return self.round.phase is Phase.RUNNING and not self.interrupted

    def seat(self, node_id: str) -> Seat | None:
        """The seat of a node in the running round."""
        if self.round.phase is not Phase.RUNNING:
            return None
        return next((seat for seat in self.seats if seat.node_id == node_id), None)

    def free(self, *, slots: int | None = None) -> list[str]:
        """Who waits, may take a seat, and has so many slots."""
        return [
            name
            for name in self.waiting
            if name not in self.exclusions and (slots is None or self.nodes[name].slots == slots)
        ]

    def left_without(self, node_id: str) -> int:
        """How many nodes the next round would have."""
        there = [name for name in self.nodes if name != node_id and name not in self.exclusions]
        if self.round.phase is not Phase.RUNNING:
            return min(len(there), self.spec.max_nodes)
        seat, seated = self.seat(node_id), {seat.node_id for seat in self.seats}
        fit = self.free(slots=seat.slots) if seat is not None else []
        return min(len(seated.intersection(there)) + len(fit), self.spec.max_nodes)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answered command and its effect: how ranks are to stop, who is excluded, who is let in again."""

    command: Command
    stop: Stop | None = None
    exclude: Exclusion | None = None
    readmit: str | None = None


def answer(command: Command, case: Case, utc: str) -> Answer:
    """Decide a command that nobody has answered; `utc` is written beside the answer."""
    decided = _DECIDERS[command.verb](_bounded(command), case, utc)
    return replace(decided, command=replace(decided.command, answered_utc=utc))


def _bounded(command: Command) -> Command:
    """The command as it is answered: etcd takes no transaction of more than 1.5 MB, and the round tells of several."""
    node_id = None if command.node_id is None else _cut(command.node_id)
    short = replace(command, reason=_cut(command.reason), by=_cut(command.by), node_id=node_id)
    return short if len(encode(short)) <= _MOST_BYTES else replace(short, extra={})


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SIGNS else f"{text[:_MOST_SIGNS]}..."


def first_asked(mirror: Mirror, controls: Scope) -> tuple[KeyValue, Command] | None:
    """The oldest command without an answer. What this version cannot read is left to one that can."""
    for held in sorted(mirror.under(controls), key=lambda held: held.create_revision):
        try:
            command = mirror.record(Command, held.key)
        except RecordError:
            continue
        if command is not None and command.phase is CommandPhase.ASKED:
            return held, command
    return None


def with_told(extra: Mapping[str, Any], command_id: str, command: Command) -> dict[str, Any]:
    """A round's `extra` that tells of an answered command; the oldest make room."""
    told = {key: held for key, held in _raw(extra).items() if key != command_id}
    told[command_id] = encode(command).decode()
    return {**extra, COMMANDS: dict(list(told.items())[-SHOWN:])}


def commands_in(extra: Mapping[str, Any]) -> dict[str, Command]:
    """The answered commands that a round tells of, by id, oldest first."""
    told = {}
    for command_id, held in _raw(extra).items():
        try:
            told[command_id] = decode(Command, COMMANDS, str(held).encode())
        except RecordError:
            continue
    return told


def _raw(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    raw = extra.get(COMMANDS)
    return raw if isinstance(raw, Mapping) else {}


# One decider a verb -------------------------------------------------------------------------------------------


def _done(command: Command, sentence: str, **effect: Any) -> Answer:
    return Answer(replace(command, phase=CommandPhase.DONE, answer=sentence), **effect)


def _refused(command: Command, sentence: str) -> Answer:
    return Answer(replace(command, phase=CommandPhase.REFUSED, answer=sentence))


def _asked(command: Command, what: str) -> str:
    return f"{what} by {command.by}" + (f": {command.reason}" if command.reason else "")


def _stop(command: Command, case: Case, utc: str) -> Answer:
    del utc
    code = REQUEUE if command.extra.get("requeue") is True else STOPPED
    told = {"exit_code": code, ENDING: Ending.CANCELLED.value}
    stop = Stop(command.by, _asked(command, "stopped"), purpose=Purpose.FINISH, extra=told)
    if not case.runs:
        # No rank is there to agree: the job ends as soon as nothing of the last round can live.
        stop = replace(stop, phase=StopPhase.REFUSED)
    how = "ranks that ask `should_stop` end at one step, others get SIGTERM" if case.runs else "no rank runs"
    return _done(command, f"the job stops with exit code {code}; {how}", stop=_used(case, stop))


def _restart(command: Command, case: Case, utc: str) -> Answer:
    del utc
    if not case.runs:
        return _done(command, "a new round is beginning already")
    stop = Stop(command.by, _asked(command, "restart asked"), purpose=Purpose.RENEW)
    following = case.round.number + 1
    return _done(command, f"round {following} follows; not billed to --max-restarts", stop=_used(case, stop))


def _grow(command: Command, case: Case, utc: str) -> Answer:
    del utc
    if not case.runs:
        return _done(command, "a new round is beginning already; it takes in all who wait, up to MAX")
    room, free = case.spec.max_nodes - len(case.seats), case.free()
    if room <= 0:
        return _refused(command, f"the round has as many nodes as --nnodes allows: {len(case.seats)}")
    if not free:
        return _refused(command, "no node waits that could be taken in")
    taken = ", ".join(free[:room])
    stop = Stop(command.by, _asked(command, f"growth by {taken} asked"), purpose=Purpose.RENEW)
    return _done(command, f"round {case.round.number + 1} takes in {taken}", stop=_used(case, stop))


def _drain(command: Command, case: Case, utc: str) -> Answer:
    node_id = command.node_id
    refusal = _unknown(command, case)
    if node_id is None or refusal is not None:
        return _refused(command, refusal or "")
    left, seat = case.left_without(node_id), case.seat(node_id)
    if left < case.spec.min_nodes and node_id not in case.exclusions:
        return _refused(
            command,
            f"without {node_id} there would be {left} of at least {case.spec.min_nodes} nodes: "
            "no node waits that could take its seat",
        )
    exclusion = _exclusion(command, node_id, utc)
    if seat is None:
        return _done(command, f"{node_id} takes no seat from now on{_until(exclusion)}", exclude=exclusion)
    if not case.runs:
        told = f"{node_id} has no seat in the round that is beginning{_until(exclusion)}"
        return _done(command, told, exclude=exclusion)
    spare = next(iter(case.free(slots=seat.slots)), None)
    then = f"{spare} takes its ranks" if spare else f"the job goes on with {left} nodes"
    stop = Stop(command.by, _asked(command, f"{node_id} drained"), purpose=Purpose.RENEW)
    told = f"{node_id} ends its ranks and waits without a seat; {then}{_until(exclusion)}"
    return _done(command, told, stop=_used(case, stop), exclude=exclusion)


def _undrain(command: Command, case: Case, utc: str) -> Answer:
    del utc
    node_id = command.node_id
    if node_id is None:
        return _refused(command, "no node is named")
    if node_id not in case.exclusions:
        return _refused(command, f"{node_id} is not excluded; excluded: {_names(case.exclusions)}")
    return _done(command, f"{node_id} may take a seat again, from the next round on", readmit=node_id)


def _exclude(command: Command, case: Case, utc: str) -> Answer:
    node_id = command.node_id
    if node_id is None:
        return _refused(command, "no node is named")
    exclusion = _exclusion(command, node_id, utc)
    left, least = case.left_without(node_id), case.spec.min_nodes
    short = f"; the next round will have {left} of at least {least} nodes and wait for more"
    short = short if left < least else ""
    seat = case.seat(node_id)
    now = f"; its ranks run on until round {case.round.number} ends" if seat is not None else ""
    there = "" if node_id in case.nodes else "; no such node is registered now"
    told = f"{node_id} takes no seat from the next round on{_until(exclusion)}{now}{there}{short}"
    return _done(command, told, exclude=exclusion)


_DECIDERS = {
    Verb.STOP: _stop,
    Verb.RESTART: _restart,
    Verb.GROW: _grow,
    Verb.DRAIN: _drain,
    Verb.UNDRAIN: _undrain,
    Verb.EXCLUDE: _exclude,
}


def _used(case: Case, stop: Stop) -> Stop:
    return put_to_use(stop_in(case.round.extra), stop)


def _unknown(command: Command, case: Case) -> str | None:
    if command.node_id is None:
        return "no node is named"
    if command.node_id not in case.nodes:
        return f"no agent of this job is registered as {command.node_id}; there are: {_names(case.nodes)}"
    return None


def _exclusion(command: Command, node_id: str, utc: str) -> Exclusion:
    for_s = command.extra.get("for_s")
    limited = isinstance(for_s, int | float) and not isinstance(for_s, bool) and 0 < for_s < FOR_GOOD_S
    until = later(utc, float(for_s)) if limited and for_s is not None else ""
    return Exclusion(node_id, command.reason or f"{command.verb.value}ed", command.by, utc, until)


def later(utc: str, seconds: float) -> str:
    """An ISO 8601 time in UTC, so much later; written as all others are, so that they compare as text."""
    moment = datetime.fromisoformat(utc) + timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _until(exclusion: Exclusion) -> str:
    return f" (until {exclusion.until_utc})" if exclusion.until_utc else ""


def _names(names: Mapping[str, Any], shown: int = 8) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - shown} more" if len(listed) > shown else ""
    return (", ".join(listed[:shown]) or "none") + more
