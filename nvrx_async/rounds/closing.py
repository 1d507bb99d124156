"""What a round that is over comes to: the root of its end, the verdict, the records that say so. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nvrx_async.job.records import (
    Done,
    End,
    Ending,
    Exclusion,
    Fault,
    FaultKind,
    Interrupt,
    JobSpec,
    Ledger,
    Level,
    Node,
    Outcome,
    Purpose,
    Root,
    Round,
    Stop,
)
from nvrx_async.job.round_record import round_as_extra
from nvrx_async.rounds import commands, policy
from nvrx_async.rounds.events import Now
from nvrx_async.rounds.fencing import Judge
from nvrx_async.rounds.ladder import Verdict
from nvrx_async.rounds.missing import Missing
from nvrx_async.rounds.office import Office
from nvrx_async.rounds.policy import facts_of
from nvrx_async.rounds.root import find_root
from nvrx_async.rounds.stop_state import ending_in, stop_in
from nvrx_async.rounds.world import World


@dataclass(frozen=True, slots=True)
class Case:
    """What one decision is made on: the round, this agent's office and its word, who is there, who was seated."""

    now: Now
    round: Round
    office: Office
    judge: Judge
    nodes: dict[str, Node]
    world: World
    missing: Missing
    exclusions: dict[str, Exclusion]

    @property
    def without_seat(self) -> tuple[str, ...]:
        """Who is registered and holds no seat: it is ready for the next round, or will be in a moment."""
        seated = {seat.node_id for seat in self.world.seats}
        return tuple(node_id for node_id in self.nodes if node_id not in seated)

    @property
    def stop(self) -> Stop | None:
        """The agreed stop of the round, if there is one for more than an agent that leaves."""
        stop = stop_in(self.round.extra)
        return stop if stop is not None and stop.purpose is not Purpose.LEAVE else None

    @property
    def finishes(self) -> Stop | None:
        """The stop that ends the job, if one is under way."""
        stop = self.stop
        return stop if stop is not None and stop.purpose is Purpose.FINISH else None


def root_of(case: Case, interrupt: Interrupt, told: Mapping[str, Fault], done: Mapping[str, Done]) -> Root:
    """Why an interrupted round ended. `told` are the reports, `done` the nodes that finished, by node id."""
    if interrupt.kind is FaultKind.ASKED:  # whatever ranks said on their way out came of that
        return asked_root(interrupt.reason)
    world = case.world
    reported, finished = world.spoken_for(told), world.spoken_for(done)
    unseen = [seat.node_id for seat in world.seats if seat.node_id not in reported | finished]
    return find_root(
        {node_id: told[node_id] for node_id in reported},
        dict.fromkeys(unseen, "its lease ended"),
        interrupt,
        world.seats,
        done=finished,
        addresses={node_id: node.address for node_id, node in case.nodes.items()},
    )


def verdict_on(
    case: Case, root: Root, told: Mapping[str, Fault], spec: JobSpec, substitutes: tuple[str, ...]
) -> Verdict:
    """What follows a round that ended by `root`. `substitutes` could take the seat of the node it names."""
    stop, ledger = case.finishes, case.round.ledger
    if stop is not None:
        return asked_for(stop, ledger)
    faults = {node_id: told[node_id] for node_id in case.world.spoken_for(told)}
    return policy.verdict(ledger, root, spec, facts_of(case.round.number, faults, substitutes))


def asked_root(reason: str) -> Root:
    """The root of an end that somebody asked for."""
    return Root(FaultKind.ASKED, reason, culprit=False)


def asked_for(stop: Stop, ledger: Ledger | None = None) -> Verdict:
    """What follows a round that ended since it was asked to: nothing is billed."""
    ledger = ledger or Ledger()
    if stop.purpose is not Purpose.FINISH:
        return Verdict(Level.IN_JOB, "asked for, not billed", ledger)
    code = stop.extra.get("exit_code")
    return Verdict(Level.STOP, stop.reason, ledger, code if isinstance(code, int) else commands.STOPPED)


def end_of(case: Case, root: Root, verdict: Verdict) -> End:
    """The verdict on a round as its record."""
    number, extra = case.round.number, round_as_extra(case.round)
    return End(number, root, verdict.level, verdict.reason, case.now.utc, extra=extra)


def outcome_of(case: Case, exit_code: int, reason: str, launch_id: str | None, end: End | None) -> Outcome:
    """The outcome of the attempt as its record."""
    stop = case.finishes
    return Outcome(
        success=exit_code == 0,
        exit_code=exit_code,
        reason=reason,
        round=case.round.number,
        decided_utc=case.now.utc,
        launch_id=launch_id,
        root=end.root if end else None,
        ending=_ending(exit_code, ending_in(stop) if stop is not None else None),
    )


def _ending(exit_code: int, told: Ending | None) -> Ending:
    if exit_code == 0:
        return Ending.FINISHED
    if told is not None:
        return told
    return Ending.INFRASTRUCTURE if exit_code == commands.REQUEUE else Ending.FAILED


def last_outcome(
    now_round: Round, exit_code: int, reason: str, now: Now, launch_id: str | None, ending: Ending
) -> Outcome:
    """The outcome of an attempt that every agent left."""
    return Outcome(
        success=False,
        exit_code=exit_code,
        reason=reason,
        round=now_round.number,
        decided_utc=now.utc,
        launch_id=launch_id,
        ending=ending,
    )
