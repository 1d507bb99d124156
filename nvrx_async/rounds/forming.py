"""The next round as it forms, read from etcd: who has joined it, and who could. Pure."""

from __future__ import annotations

from nvrx_async.job.records import Phase
from nvrx_async.rounds.closing import Case
from nvrx_async.rounds.growth import waiting
from nvrx_async.rounds.seal import Forming
from nvrx_async.rounds.world import finished, joined, reports


def forming_of(case: Case, number: int, since_s: float) -> Forming:
    """Round `number` as it forms since `since_s`: who has joined, who was there before, who is missing."""
    keys, before = case.office.keys, number - 1
    return Forming(
        number=number,
        since_s=since_s,
        joins=joined(case.office.mirror, keys, number),
        nodes=case.nodes,
        registered={
            held.key[len(keys.nodes.key) :]: held.create_revision
            for held in case.office.mirror.under(keys.nodes)
        },
        previous=case.world.seats,
        reports=reports(case.office.mirror, keys, before),
        done=finished(case.office.mirror, keys, before),
        missing_since=case.missing.since,
        excluded=case.exclusions,
    )


def free_nodes(case: Case) -> tuple[str, ...]:
    """Who is ready for the next round and holds no seat."""
    number = case.round.number if case.round.phase is Phase.FORMING else case.round.number + 1
    joins = joined(case.office.mirror, case.office.keys, number)
    return waiting(joins, case.nodes, case.world.seats, case.exclusions)
