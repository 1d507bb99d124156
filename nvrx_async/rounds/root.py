"""Which fault ended a round: chosen by the strength of its evidence, not by who exited first.

A failing rank takes its peers down within milliseconds, and the clocks of two hosts are no judge of such
times. So causes are ranked by `FaultKind`, strongest evidence first. Who lost a connection, waited in vain or
was stopped by us is a victim and never the culprit; if there are only victims, nobody is, and the sentence
says where to look.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from nvrx_async.faults import (
    Blame,
    apart,
    culprit,
    fingerprint,
    is_mismatch,
    missed_ranks,
    peer,
    sizes,
    state_from,
)
from nvrx_async.job.records import EndedBy, Fault, FaultKind, Interrupt, PythonError, RankEnd, Root, Seat
from nvrx_async.job.where import where
from nvrx_async.rounds.sentences import first_line, node_fault, rank_ended

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

_ORDER = {kind: place for place, kind in enumerate(FaultKind)}
_VICTIMS = frozenset({FaultKind.TIMEOUT, FaultKind.CONNECTION_LOST, FaultKind.STOPPED_BY_US})
_JUDGED_TOGETHER = frozenset({FaultKind.COLLECTIVE_MISSED, FaultKind.HANG})
_COMPLAINTS = frozenset({FaultKind.COLLECTIVE_MISSED, FaultKind.TIMEOUT, FaultKind.CONNECTION_LOST})
_SENTENCE_CHARS = 400
_LEAD_LINES = 3
_BY_RANK = attrgetter("end.rank", "node_id")
_UNSAID = "exited with 0 without saying that training is over, and the others make no progress without it"
_EARLY = "exited with 0 while other ranks still ran, and they lost its connection"


@dataclass(frozen=True, slots=True)
class _Candidate:
    kind: FaultKind
    node_id: str | None
    host: str
    sentence: str
    end: RankEnd | None = None
    rank: int = -1

    def key(self) -> tuple[int, str, int, str, str]:
        """Order of evidence: kind, then the earliest, then rank; the rest only makes it total."""
        ended = self.end.ended_utc if self.end and self.end.ended_utc else "~"
        rank = self.end.rank if self.end else self.rank
        return (_ORDER[self.kind], ended, rank, self.node_id or "", self.sentence)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A rank's end with the place it ended at."""

    node_id: str
    host: str
    end: RankEnd

    @property
    def name(self) -> str:
        return f"rank {self.end.rank} on {self.where}"

    @property
    def where(self) -> str:
        return where(self.node_id, self.host)


def find_root(
    faults: Mapping[str, Fault],
    missing: Mapping[str, str],
    interrupt: Interrupt | None,
    seats: Sequence[Seat],
    *,
    done: Collection[str] = (),
    addresses: Mapping[str, str] | None = None,
) -> Root:
    """Choose the cause of a round's end and say it in a sentence.

    Args:
        faults: reports of members, by node id.
        missing: nodes of the world whose key is gone, with the reason as a clause ("its lease ended").
        interrupt: who ended the round on what evidence; None if nobody did.
        seats: the world of the round.
        done: nodes all of whose ranks exited with 0 in this round.
        addresses: network address of each node, to find the peer that a message names.
    """
    ends = [_Seen(fault.node_id, fault.host, end) for fault in faults.values() for end in fault.ends]
    ends.sort(key=_BY_RANK)
    victims = [seen for seen in ends if seen.end.kind in _COMPLAINTS]
    candidates = [
        *_own(ends, faults),
        *_of_nodes(faults, missing, interrupt, seats),
        *_unseen(faults, interrupt, seats),
        *_absent(victims, ends, seats),
        *_astray(ends),
        *(hung := tuple(_hung(ends))),
        *(_left_unsaid(ends) if not hung else ()),
        *(_left_early(ends, done, seats) if victims or _says(interrupt, FaultKind.EARLY_EXIT) else ()),
    ]
    if candidates:
        return _blamed(min(candidates, key=_Candidate.key))
    blame = _blame_for_hang(ends)
    if blame is not None:
        return Root(FaultKind.HANG, _shortened(blame.sentence), culprit=False)
    witness = next((seen for seen in ends if is_mismatch(seen.end.error)), None)
    if witness is not None:
        return _mismatched(witness)
    if victims:
        return _nobody(victims, ends, seats, addresses or {})
    return _unexplained(ends, interrupt)


def _own(ends: Sequence[_Seen], faults: Mapping[str, Fault]) -> Iterator[_Candidate]:
    """Ranks that ended by something of their own."""
    for seen in ends:
        kind = seen.end.kind
        if kind is None or kind in _VICTIMS or kind in _JUDGED_TOGETHER or is_mismatch(seen.end.error):
            continue
        if kind is FaultKind.SIGNAL and _taken_along(seen, faults[seen.node_id]):
            continue
        yield _Candidate(kind, seen.node_id, seen.host, _ended(seen), seen.end)


def _taken_along(seen: _Seen, fault: Fault) -> bool:
    """Whether this rank was killed since its node's keeper or lease was lost."""
    lost = fault.kind is not None and fault.kind.is_membership
    return lost and seen.end.by is not EndedBy.ITSELF


def _of_nodes(
    faults: Mapping[str, Fault],
    missing: Mapping[str, str],
    interrupt: Interrupt | None,
    seats: Sequence[Seat],
) -> Iterator[_Candidate]:
    """Faults of nodes rather than ranks: lost, left, keeper gone, start failed."""
    hosts = {seat.node_id: seat.host for seat in seats}
    left = interrupt.node_id if interrupt and interrupt.kind is FaultKind.NODE_LEFT else None
    for fault in faults.values():
        told = {end.kind for end in fault.ends}
        if fault.kind and fault.kind not in _VICTIMS and fault.kind not in told:
            sentence = node_fault(fault.kind, where(fault.node_id, fault.host), fault.detail)
            yield _Candidate(fault.kind, fault.node_id, fault.host, sentence)
    for node_id, reason in missing.items():
        kind = FaultKind.NODE_LEFT if node_id == left else FaultKind.NODE_LOST
        host = hosts.get(node_id, node_id)
        yield _Candidate(kind, node_id, host, node_fault(kind, where(node_id, host), reason))


def _unseen(
    faults: Mapping[str, Fault], interrupt: Interrupt | None, seats: Sequence[Seat]
) -> Iterator[_Candidate]:
    """What the interrupt says and no report does: its author may have died before it could report."""
    if interrupt is None or interrupt.kind in _VICTIMS:
        return
    fault = faults.get(interrupt.node_id)
    if fault and not interrupt.kind.is_membership and _accounted(fault, interrupt.rank):
        return
    host = _host(interrupt.node_id, seats)
    sentence = interrupt.reason or node_fault(interrupt.kind, where(interrupt.node_id, host), "")
    rank = -1 if interrupt.rank is None else interrupt.rank
    yield _Candidate(interrupt.kind, interrupt.node_id, host, sentence, rank=rank)


def _accounted(fault: Fault, rank: int | None) -> bool:
    """Whether the final report has its own account of what the interrupt was made for.

    A rank that was only stopped by us has none: what it was stopped for stands in the interrupt.
    """
    own = [end for end in fault.ends if rank in (None, end.rank) and end.kind is not FaultKind.STOPPED_BY_US]
    return bool(own) or (rank is None and fault.kind is not None)


def _absent(victims: Sequence[_Seen], ends: Sequence[_Seen], seats: Sequence[Seat]) -> Iterator[_Candidate]:
    """Ranks that did not enter a collective, as those who waited for them name them."""
    excused = {seen.end.rank for seen in victims}
    waiting = [seen for seen in victims if seen.end.kind is FaultKind.COLLECTIVE_MISSED]
    by_rank = {seen.end.rank: seen for seen in ends}
    for seen in waiting:
        named = missed_ranks(seen.end.error) if seen.end.error else ()
        for rank in (rank for rank in named if rank not in excused):
            accused, seat = by_rank.get(rank), _seat(rank, seats)
            host = accused.host if accused else seat.host if seat else "an unknown node"
            node_id = accused.node_id if accused else seat.node_id if seat else None
            end = accused.end if accused else None
            gone = " (it had exited with 0)" if end and end.exit_code == 0 else ""
            sentence = (
                f"rank {rank} on {where(node_id, host)} did not enter a collective in which "
                f"{seen.name} waited for it{gone}"
            )
            yield _Candidate(FaultKind.COLLECTIVE_MISSED, node_id, host, sentence, end, rank)


def _astray(ends: Sequence[_Seen]) -> Iterator[_Candidate]:
    """The rank that was in another collective than all others, where one of them says that this is so."""
    if not any(is_mismatch(seen.end.error) for seen in ends):
        return
    found = apart(_waits(ends))
    for seen in ends:
        if found is not None and seen.end.rank == found.rank:
            its = (
                f"in another collective than all others: {found.its}, "
                if found.its
                else "not where all others were: "
            )
            sentence = f"{seen.name} was {its}the others at {found.theirs}; it left one out, or made one more"
            yield _Candidate(FaultKind.COLLECTIVE_MISSED, seen.node_id, seen.host, sentence, seen.end)


def _waits(ends: Sequence[_Seen]) -> dict[int, PythonError | None]:
    """By rank, the error that tells in which collective it was, None where none does."""
    return {
        seen.end.rank: seen.end.error if seen.end.kind in _COMPLAINTS or is_mismatch(seen.end.error) else None
        for seen in ends
    }


def _hung(ends: Sequence[_Seen]) -> Iterator[_Candidate]:
    """The rank that a hang is to be blamed on, from what all ranks were doing."""
    blame = _blame_for_hang(ends)
    if blame is None or blame.rank is None:
        return
    for seen in ends:
        if seen.end.rank == blame.rank:
            yield _Candidate(FaultKind.HANG, seen.node_id, seen.host, blame.sentence, seen.end)


def _blame_for_hang(ends: Sequence[_Seen]) -> Blame | None:
    """None where no rank hung."""
    if not any(seen.end.kind is FaultKind.HANG for seen in ends):
        return None
    states = [state_from(seen.end.rank, seen.where, seen.end.extra) for seen in ends]
    return culprit([state for state in states if state is not None])


def _left_unsaid(ends: Sequence[_Seen]) -> Iterator[_Candidate]:
    """Linked ranks that exited with 0 without saying that training is over, where all others hang alike."""
    if _blame_for_hang(ends) is None:
        return
    for seen in ends:
        state = state_from(seen.end.rank, seen.where, seen.end.extra)
        unsaid = state is not None and state.ended and state.hello and not state.done
        if unsaid and seen.end.exit_code == 0 and seen.end.by is EndedBy.ITSELF and state is not None:
            at = f", last at step {state.step}" if state.step is not None else ""
            sentence = f"{seen.name} {_UNSAID}{at}"
            yield _Candidate(FaultKind.EARLY_EXIT, seen.node_id, seen.host, sentence, seen.end)


def _left_early(ends: Sequence[_Seen], done: Collection[str], seats: Sequence[Seat]) -> Iterator[_Candidate]:
    """Ranks that exited with 0 while others still wanted to talk to them."""
    for seen in ends:
        if seen.end.exit_code == 0 and seen.end.by is EndedBy.ITSELF:
            sentence = f"{seen.name} {_EARLY}"
            yield _Candidate(FaultKind.EARLY_EXIT, seen.node_id, seen.host, sentence, seen.end)
    silent = set(done) - {seen.node_id for seen in ends}
    for seat in seats:
        if seat.node_id in silent:
            ranks = _ranks(list(range(seat.first_rank, seat.first_rank + seat.slots)))
            sentence = f"{ranks} on {where(seat.node_id, seat.host)} {_EARLY}"
            yield _Candidate(FaultKind.EARLY_EXIT, seat.node_id, seat.host, sentence, rank=seat.first_rank)


def _blamed(chosen: _Candidate) -> Root:
    end = chosen.end
    return Root(
        kind=chosen.kind,
        sentence=_shortened(chosen.sentence),
        node_id=chosen.node_id,
        host=chosen.host,
        end=end,
        fingerprint=fingerprint(end.error, end.kind) if end else None,
    )


def _mismatched(witness: _Seen) -> Root:
    """Ranks were not in the same collective, and none stands out."""
    figures = sizes(witness.end.error)
    told = f" ({figures} bytes)" if figures else ""
    sentence = (
        f"the ranks were not in the same collective: {witness.name} met another one than its own{told}; a rank left "
        "one out, made one more or gave it another shape, TORCH_DISTRIBUTED_DEBUG=DETAIL makes torch tell which"
    )
    end = witness.end
    return Root(
        kind=FaultKind.COLLECTIVE_MISSED,
        sentence=sentence,
        node_id=witness.node_id,
        host=witness.host,
        culprit=False,
        end=end,
        fingerprint=fingerprint(end.error, end.kind),
    )


def _nobody(
    victims: Sequence[_Seen], ends: Sequence[_Seen], seats: Sequence[Seat], addresses: Mapping[str, str]
) -> Root:
    """Only victims: name the pair, and who did not complain."""
    victim = min(
        victims,
        key=lambda seen: (
            _ORDER[seen.end.kind or FaultKind.STOPPED_BY_US],
            seen.end.ended_utc or "~",
            seen.end.rank,
        ),
    )
    named = peer(victim.end.error) if victim.end.error else None
    node_id = _node_at(named, seats, addresses)
    lead = _lead(ends, node_id)
    look_at = _complained_not(lead) if lead else _waited_elsewhere(ends)
    kind = victim.end.kind or FaultKind.CONNECTION_LOST
    if kind is not FaultKind.CONNECTION_LOST:
        sentence = f"{victim.name} waited in vain ({_evidence(victim.end)})"
    else:
        at = where(node_id, _host(node_id, seats)) if node_id else ""
        other = f"{at} at {named}" if at else named or "a peer that it does not name"
        sentence = f"network: {victim.name} lost its connection to {other}, and no rank shows a cause"
    return Root(
        kind=kind,
        sentence=_shortened(f"{sentence}; {look_at}" if look_at else sentence),
        node_id=victim.node_id,
        host=victim.host,
        culprit=False,
        end=victim.end,
    )


def _lead(ends: Sequence[_Seen], node_id: str | None) -> _Seen | None:
    """The one rank that was stopped without having lost a connection itself: what it wrote last may tell.

    None if several could be meant: a guess among many would send people to the wrong log.
    """
    silent = [seen for seen in ends if seen.end.kind is FaultKind.STOPPED_BY_US]
    at_peer = [seen for seen in silent if seen.node_id == node_id] or silent
    telling = [seen for seen in at_peer if seen.end.last_lines] or at_peer
    for found in (at_peer, telling):
        if len(found) == 1:
            return found[0]
    return None


def _waited_elsewhere(ends: Sequence[_Seen]) -> str:
    """Which one of those that all waited in vain did so at a line of its own."""
    found = apart(_waits(ends))
    seen = next((seen for seen in ends if found is not None and seen.end.rank == found.rank), None)
    if found is None or seen is None:
        return ""
    return f"look first at {seen.name}, which waited at {found.its}, all others at {found.theirs}"


def _complained_not(lead: _Seen) -> str:
    lines = " | ".join(line.strip() for line in lead.end.last_lines[-_LEAD_LINES:])
    said = f"its last lines: {lines}" if lines else "it wrote nothing to stderr"
    return f"look first at {lead.name}, which reported no lost connection before we stopped it ({said})"


def _unexplained(ends: Sequence[_Seen], interrupt: Interrupt | None) -> Root:
    """No fault of anybody: the round was ended by decision, or its reports are not there yet."""
    kind = interrupt.kind if interrupt else FaultKind.STOPPED_BY_US
    if interrupt and interrupt.reason:
        sentence = interrupt.reason
    elif ends:
        sentence = f"{_ranks([seen.end.rank for seen in ends])} stopped by us, and no fault was reported"
    else:
        sentence = "the round ended, and no fault was reported"
    node_id = interrupt.node_id if interrupt else None
    return Root(kind=kind, sentence=_shortened(sentence), node_id=node_id, culprit=False)


def _ended(seen: _Seen) -> str:
    return f"{seen.name} {rank_ended(seen.end)}"


def _evidence(end: RankEnd) -> str:
    return end.detail or (first_line(end.error.message) if end.error else "no message")


def _says(interrupt: Interrupt | None, kind: FaultKind) -> bool:
    return interrupt is not None and interrupt.kind is kind


def _host(node_id: str | None, seats: Sequence[Seat]) -> str:
    return next((seat.host for seat in seats if seat.node_id == node_id), node_id or "an unknown node")


def _seat(rank: int, seats: Sequence[Seat]) -> Seat | None:
    return next((seat for seat in seats if seat.first_rank <= rank < seat.first_rank + seat.slots), None)


def _node_at(named: str | None, seats: Sequence[Seat], addresses: Mapping[str, str]) -> str | None:
    """The one node that has the address of a peer; several agents of one host share theirs."""
    if not named:
        return None
    address = named.rpartition(":")[0]
    found = {seat.node_id for seat in seats if address in (seat.host, addresses.get(seat.node_id))}
    return found.pop() if len(found) == 1 else None


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(str(rank) for rank in ranks[:8])}{' …' if len(ranks) > 8 else ''}"  # noqa: PLR2004 - as many as a line holds


def _shortened(text: str) -> str:
    return text if len(text) <= _SENTENCE_CHARS else text[: _SENTENCE_CHARS - 1] + "…"
