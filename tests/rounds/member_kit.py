"""A registered member of an attempt, before its round and in it."""

from __future__ import annotations

import signal

from rounds_kit import KEYS, UTC, Bench, all_of, identity, node, opened, rank_end, sealed, seat

from nvrx_async.job.records import Assignment, EndedBy, FaultKind, Interrupt, Outcome, Phase, Round
from nvrx_async.rounds.effects import StartRanks
from nvrx_async.rounds.events import KeeperReady, LeaveRequested, PortReserved, Renewed, Tick
from nvrx_async.rounds.member import Member

GOOD_UNTIL_S = 1000.0
SEATS = (seat("a", 0), seat("b", 1))
LEAVE = LeaveRequested(signal.SIGTERM)
FAILED_RANK = rank_end(1, FaultKind.SIGNAL, exit_code=None, signal=9, by=EndedBy.SOMEONE_ELSE)
GOOD_ENDS = (rank_end(0), rank_end(1))
STOPPED = tuple(rank_end(i, FaultKind.STOPPED_BY_US, by=EndedBy.US) for i in (0, 1))


def member(phase=Phase.FORMING, number=0, renewed=None, me=None, **changes):
    """A registered member of an attempt, before its round; etcd is as its keys say."""
    bench = Bench(Member, me or identity())
    opened(bench.etcd, phase, number, **changes)
    bench.etcd.put(KEYS.node("b"), node("b"))
    bench.settle(KeeperReady(1), renewed or Renewed(90.0, GOOD_UNTIL_S))
    assert KEYS.node("a") in bench.etcd.held
    return bench


def assignment(number=0, incarnation="a-1"):
    return Assignment(number, seat("a", 0, incarnation=incarnation), 4, 2, "10.0.0.a", 29500)


def run_round(bench, number=0, token="t", incarnation="a-1"):
    """A coordinator seals."""
    sealed(bench.etcd, SEATS, number, token=token)
    bench.etcd.put(KEYS.assignment(number, token, "a"), assignment(number, incarnation))
    now_round = Round(number, Phase.RUNNING, UTC, token=token, world_size=4, nodes=2)
    bench.etcd.put(KEYS.round, now_round)


def running(number=0, **given):
    """A member whose ranks run."""
    bench = member(number=number, **given)
    bench.settle(PortReserved(number, 29500))
    run_round(bench, number)
    assert len(all_of(bench.tell(), StartRanks)) == 1
    return bench


def interrupted(bench, number=0, kind=FaultKind.SIGNAL, by="b"):
    bench.etcd.put(KEYS.interrupt(number), Interrupt(by, kind, by, "because", UTC))


def outcome(exit_code, reason):
    return Outcome(exit_code == 0, exit_code, reason, 0, UTC)


def another_holds_key(bench):
    bench.etcd.delete(KEYS.node("a"))
    bench.etcd.put(KEYS.node("a"), node("a", "a-2"))
    return Tick()
