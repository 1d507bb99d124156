"""When a forming round becomes a world, and which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nvrx_async.job.records import Done, Exclusion, Fault, FaultKind, JobSpec, Join, Node, Seat, Spare
from nvrx_async.rounds.assign import Candidate, place, seats
from nvrx_async.rounds.events import Now
from nvrx_async.rounds.exclusions import BY_POLICY
from nvrx_async.rounds.fencing import Judge, fenced_at, is_present

NEWCOMERS_WAIT_S = 1.0
"""How long a registered agent without a seat in the round before is waited for: joining takes it milliseconds.

Spares join ahead; this is for a newcomer, such as the successor of a killed agent, that enters while the others
already form the round. One that does not come (unfit, frozen) costs no more than this.
"""


@dataclass(frozen=True, slots=True)
class Forming:
    """What is known of a forming round.

    `missing_since` holds each member of the world before that is gone, `excluded` who takes no seat.
    """

    number: int
    since_s: float
    joins: Mapping[str, Join]
    nodes: dict[str, Node]
    registered: Mapping[str, int]
    previous: Sequence[Seat]
    reports: Mapping[str, Fault]
    done: Mapping[str, Done]
    missing_since: Mapping[str, Now]
    excluded: Mapping[str, Exclusion] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wait:
    """Not yet: why, and when to ask again if nothing happens. `expired`: the wait has reached its limit."""

    reason: str
    until_s: float | None = None
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Sealed:
    """The world. `absent` are node ids that were taken for gone: the commit must compare that they still are.

    `probes`: where each that is named answers questions, by node id.
    """

    seats: tuple[Seat, ...]
    spares: tuple[Spare, ...]
    master: Join
    absent: tuple[str, ...]
    reason: str
    probes: Mapping[str, str] = field(default_factory=dict)


def seal(now_s: float, forming: Forming, judge: Judge, spec: JobSpec) -> Wait | Sealed:
    """The world of a forming round, or what it waits for.

    Every member of the world before must be clear (nothing of it runs): it has reported, finished, joined or
    is fenced. One that is still registered is waited for, unless its report says that it will not come. Where
    there is room, other registered agents are waited for too, but briefly.
    """
    blocked = unclear(now_s, forming.previous, forming, judge, spec)
    if blocked is not None:
        return blocked
    late = [seat.node_id for seat in forming.previous if _will_join(seat, forming)]
    deadline_s = forming.since_s + spec.join_timeout_s
    expired = now_s >= deadline_s
    if late and not expired:
        return Wait(f"{_names(late)} still to join", deadline_s)
    candidates, parked = _candidates(forming, spec.min_nodes)
    places = place(candidates, forming.previous, spec.max_nodes)
    count = len(places.seated)
    if count < spec.min_nodes:
        lost = [seat.node_id for seat in forming.previous if seat.node_id not in forming.joins]
        # Of nodes that never came only the person knows the names: those that are here tell which they are.
        here = [one.node.node_id for one in places.seated]
        known = (
            f"missing: {_names([_gone(one, forming) for one in lost])}"
            if lost
            else f"here: {_names(here)}"
            if here
            else ""
        )
        detail = f"; {places.misfit or known}" if places.misfit or known else ""
        if parked:
            detail += f"; excluded: {_names([one.node.node_id for one in parked])}"
        return Wait(f"{count} of {spec.min_nodes} nodes joined{detail}", deadline_s, expired)
    expected, wait_s = _newcomers(forming), forming.since_s + NEWCOMERS_WAIT_S
    if count < spec.max_nodes and expected and now_s < wait_s:
        return Wait(f"{_names(expected)} still to join", wait_s)
    last_call_s = forming.since_s + spec.last_call_s
    if forming.number == 0 and count < spec.max_nodes and now_s < last_call_s:
        nodes = "1 node" if count == 1 else f"{count} nodes"
        return Wait(f"{nodes} joined, more may come (up to {spec.max_nodes})", last_call_s)
    return _sealed(forming, places.seated, (*places.spares, *parked))


def unclear(
    now_s: float, members: Sequence[Seat], forming: Forming, judge: Judge, spec: JobSpec
) -> Wait | None:
    """The wait for members of a world whose ranks may still live; None when none can."""
    waits = []
    for seat in members:
        if _is_clear(seat, forming):
            continue
        if is_present(seat, forming.nodes):
            waits.append(Wait(f"{seat.node_id} still stops its ranks"))
            continue
        at_s, why = fenced_at(seat, forming.nodes, forming.missing_since[seat.node_id].s, judge, spec)
        if now_s < at_s:
            waits.append(Wait(f"not before {why}", at_s))
    return max(waits, key=lambda wait: wait.until_s or float("inf"), default=None)


def _is_clear(seat: Seat, forming: Forming) -> bool:
    records = (
        forming.reports.get(seat.node_id),
        forming.done.get(seat.node_id),
        forming.joins.get(seat.node_id),
    )
    return any(record is not None and record.incarnation == seat.incarnation for record in records)


def _will_join(seat: Seat, forming: Forming) -> bool:
    join, report = forming.joins.get(seat.node_id), forming.reports.get(seat.node_id)
    if not is_present(seat, forming.nodes) or (join is not None and join.incarnation == seat.incarnation):
        return False
    return report is None or not (report.unfit or report.kind is FaultKind.NODE_LEFT)


def _newcomers(forming: Forming) -> list[str]:
    """Registered agents that have not joined, and had no seat: spares, and successors of those who had."""
    seated = {seat.node_id: seat.incarnation for seat in forming.previous}
    joined = {node_id: join.incarnation for node_id, join in forming.joins.items()}
    return [
        node_id
        for node_id, node in forming.nodes.items()
        if node.incarnation not in (seated.get(node_id), joined.get(node_id))
        and node_id not in forming.excluded
    ]


def _candidates(forming: Forming, least: int) -> tuple[list[Candidate], list[Candidate]]:
    """Who may take a seat, and who has joined but is excluded: it waits as a spare.

    A node that the policy itself barred is better than none: it is let in where others are too few.
    """
    joined = [
        Candidate(forming.nodes[node_id], join, forming.registered[node_id])
        for node_id, join in forming.joins.items()
        if node_id in forming.nodes and forming.nodes[node_id].incarnation == join.incarnation
    ]
    free = [one for one in joined if one.node.node_id not in forming.excluded]
    barred = [one for one in joined if one.node.node_id in forming.excluded]
    doubtful = [one for one in barred if forming.excluded[one.node.node_id].by == BY_POLICY]
    needed = doubtful[: max(0, least - len(free))]
    return [*free, *needed], [one for one in barred if one not in needed]


def _sealed(forming: Forming, seated: Sequence[Candidate], spares: Sequence[Candidate]) -> Sealed:
    made = seats(seated)
    world_size = made[-1].first_rank + made[-1].slots
    waiting = tuple(Spare(one.node.node_id, one.node.incarnation) for one in spares)
    return Sealed(
        seats=made,
        spares=waiting,
        master=seated[0].join,
        absent=tuple(seat.node_id for seat in forming.previous if not is_present(seat, forming.nodes)),
        probes={one.node.node_id: one.node.probe for one in (*seated, *spares) if one.node.probe},
        reason=f"{len(made)} nodes, world size {world_size}" + (f", {len(waiting)} spare" if waiting else ""),
    )


def _gone(node_id: str, forming: Forming) -> str:
    """A node that does not come, and since when it is gone, by the clock that stands before each line."""
    since = forming.missing_since.get(node_id)
    return node_id if since is None or not since.utc else f"{node_id} (gone since {since.utc[11:19]})"


def _names(node_ids: Sequence[str], shown: int = 8) -> str:
    rest = len(node_ids) - shown
    return ", ".join(node_ids[:shown]) + (f" and {rest} more" if rest > 0 else "")
