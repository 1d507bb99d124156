"""An elected agent, and what others write in its attempt."""

from __future__ import annotations

from dataclasses import replace

from rounds_kit import KEYS, SPEC, UTC, Bench, identity, join, node, opened, rank_end, sealed, seat

from nvrx_async.etcd.types import CreatedAt, ModifiedAt
from nvrx_async.job.codec import decode
from nvrx_async.job.keys import current
from nvrx_async.job.records import Fault, FaultKind, Interrupt, Phase, Spare
from nvrx_async.rounds.coordinator import Coordinator
from nvrx_async.rounds.events import Elected

OFFICE = KEYS.election(0xA)
SEATS = (seat("a", 0), seat("b", 1))


def leader(phase=Phase.FORMING, number=0, of=SPEC, me=None, registered="ab", world=None, **changes):
    """An elected agent and an attempt with these nodes; with a world before a forming round that is not the first."""
    bench = Bench(Coordinator, me or identity(), of)
    for name in registered:
        bench.etcd.put(KEYS.node(name), node(name), lease=1)
    if phase is Phase.RUNNING:
        sealed(bench.etcd, world or SEATS, changes.get("sealed_in", number))
        changes = {"token": "t", **changes}
    elif number:
        sealed(bench.etcd, world or SEATS, changes.get("sealed_in", number - 1))
        changes = {"previous_token": "t", **changes}
    opened(bench.etcd, phase, number, of, **changes)
    bench.etcd.put(OFFICE, Spare("", "a-1"), lease=1)
    bench.tell(Elected(OFFICE, bench.etcd.held[OFFICE].create_revision))
    return bench


def joined(bench, *names, number=0):
    for name in names:
        bench.etcd.put(KEYS.join(number, name), join(name))


def report(bench, name, number=0, kind=FaultKind.SIGNAL, incarnation="", **changes):
    ends = (rank_end(0 if name == "a" else 2, kind, exit_code=None, signal=11),) if kind else ()
    made = Fault(name, incarnation or f"{name}-1", f"host-{name}", ends)
    bench.etcd.put(KEYS.fault(number, name), replace(made, **changes))


def interrupt(bench, number=0, kind=FaultKind.SIGNAL, who="b"):
    bench.etcd.put(KEYS.interrupt(number), Interrupt(who, kind, who, f"{kind.value} on {who}", UTC, 2))


def guard(bench):
    """What every write of a coordinator compares: a deposed one's does nothing."""
    attempt = current("job")
    return (
        CreatedAt(OFFICE, bench.etcd.held[OFFICE].create_revision),
        ModifiedAt(attempt, bench.etcd.held[attempt].mod_revision),
        ModifiedAt(KEYS.round, bench.etcd.held[KEYS.round].mod_revision),
        CreatedAt(KEYS.outcome, 0),
    )


def as_seen(bench, name):
    held = bench.etcd.held.get(KEYS.node(name))
    return ModifiedAt(KEYS.node(name), held.mod_revision if held else 0)


def written(bench, cls, key):
    return decode(cls, key, bench.etcd.held[key].value)
