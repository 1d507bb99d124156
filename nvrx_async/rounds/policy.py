"""What follows a round that ended by a fault, all rules together: the ladder's budgets, and what a policy adds. Pure.

- *NonRetryable*: the script says itself that no retry helps.
- *Intensity*: so many restarts within a window. The window is counted in seconds that ranks ran, which each node
  measures for itself; waiting for nodes ages nothing, and no clock of one machine is compared with another's.
- *Progress*: rounds in a row that came no further than the best before: the highest step reported through the rank
  link, or a file that the script writes. Where neither is known there is no limit.
- *Culprit*: a node to blame for the second time within a few rounds gives its seat to a spare, if one waits.
- *Membership*: nodes that come and go without end stop the attempt by a bound of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nvrx_async.errors import NOTE
from nvrx_async.job.records import PROGRESS, EndedBy, Fault, FaultKind, JobSpec, Ledger, Level, Policy, Root
from nvrx_async.rounds.ladder import Verdict, next_level

EXIT_FAILED = 1
EXIT_REQUEUE = 75
EXIT_DO_NOT_REQUEUE = 93
NON_RETRYABLE = "NonRetryable"
CULPRIT_ROUNDS = 10
"""A node's faults are remembered for so many rounds: what happened before says little of its state now."""

_NOT_THE_NODES = frozenset({FaultKind.EARLY_EXIT, FaultKind.ASKED})


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the round beside its root.

    `ran_s`: seconds that its longest rank lived. `step`, `file_s`: see `PROGRESS`; -1 and 0 where unknown.
    `spares`: who waits and could take the seat of the node that `root` names.
    """

    number: int
    nothing_ready: bool = False
    ran_s: float = 0.0
    step: int = -1
    file_s: float = 0.0
    spares: tuple[str, ...] = ()


def facts_of(number: int, faults: Mapping[str, Fault], spares: tuple[str, ...]) -> Facts:
    """What the members' reports tell of a round."""
    ends = [end for fault in faults.values() for end in fault.ends]
    told = [raw for fault in faults.values() if isinstance(raw := fault.extra.get(PROGRESS), Mapping)]
    return Facts(
        number=number,
        nothing_ready=not any(end.ready for end in ends),
        ran_s=max((end.ran_s for end in ends), default=0.0),
        step=int(max((_number(raw.get("step"), -1) for raw in told), default=-1)),
        file_s=max((_number(raw.get("file_s"), 0) for raw in told), default=0.0),
        spares=spares,
    )


def came_to_the_end(extra: Mapping[str, Any]) -> bool:
    """Whether no rank of a node was told to stop before its last step, by what the node's `Done` carries."""
    told = extra.get(PROGRESS)
    return isinstance(told, Mapping) and _number(told.get("finished"), 0) > 0


def verdict(ledger: Ledger, root: Root, spec: JobSpec, facts: Facts) -> Verdict:
    """Decide what follows a round that ended by `root`."""
    advanced = facts.step > ledger.best_step or facts.file_s > ledger.best_file_s
    noted = _noted(ledger, spec.policy, facts)
    if _is_non_retryable(root):
        told = "the script says that no retry helps (NonRetryable)"
        return Verdict(Level.STOP, told, noted, EXIT_DO_NOT_REQUEUE)
    if advanced:  # the same error further on is another failure of a program that gets on
        noted = replace(noted, last_fingerprint=None)
    decided = next_level(noted, root, spec, nothing_ready=facts.nothing_ready)
    if decided.level is not Level.IN_JOB or root.kind is FaultKind.ASKED:
        return decided
    if root.kind.is_membership:
        return _after_loss(decided, root, spec.policy, facts)
    return _after_fault(decided, root, spec.policy, facts, advanced=advanced)


def _noted(ledger: Ledger, policy: Policy, facts: Facts) -> Ledger:
    """The ledger, older by the round and with the best that it came to."""
    window_s, oldest = policy.restart_window_s, facts.number - CULPRIT_ROUNDS
    recent = {name: tuple(n for n in rounds if n > oldest) for name, rounds in ledger.culprits.items()}
    return replace(
        ledger,
        restart_ages_s=_aged(ledger.restart_ages_s, facts.ran_s, window_s),
        loss_ages_s=_aged(ledger.loss_ages_s, facts.ran_s, window_s),
        best_step=max(ledger.best_step, facts.step),
        best_file_s=max(ledger.best_file_s, facts.file_s),
        culprits={name: rounds for name, rounds in recent.items() if rounds},
    )


def _aged(ages_s: tuple[float, ...], by_s: float, window_s: float) -> tuple[float, ...]:
    return tuple(round(age_s + by_s, 3) for age_s in ages_s if age_s + by_s < window_s)


def _is_non_retryable(root: Root) -> bool:
    end = root.end
    if end is None or not root.culprit:
        return False
    error = end.error
    raised = error is not None and (
        error.type.rpartition(".")[2] == NON_RETRYABLE or NOTE in error.message.splitlines()[1:]
    )
    return raised or end.exit_code == EXIT_DO_NOT_REQUEUE


def _after_loss(decided: Verdict, root: Root, policy: Policy, facts: Facts) -> Verdict:
    limit, losses = policy.node_loss_limit, decided.ledger.loss_ages_s
    spent = replace(decided.ledger, loss_ages_s=(*losses, 0.0)[-(limit + 1) :] if limit else ())
    if limit and len(spent.loss_ages_s) > limit:
        told = f"more than {limit} losses of nodes within {policy.restart_window_s:g} s of training"
        hint = "find out why nodes come and go; --node-loss-limit sets the bound"
        return Verdict(Level.REQUEUE, told, spent, EXIT_REQUEUE, hint)
    if root.kind is FaultKind.KEEPER_LOST or not facts.spares:
        return replace(decided, ledger=spent)
    told = f"{decided.reason}; {facts.spares[0]} takes its ranks if it stays away"
    return replace(decided, level=Level.REPLACE_NODE, ledger=spent, reason=told)


def _after_fault(decided: Verdict, root: Root, policy: Policy, facts: Facts, *, advanced: bool) -> Verdict:
    ledger = decided.ledger
    limit, ages_s = policy.restart_limit, (*ledger.restart_ages_s, 0.0)
    measured = ledger.best_step >= 0 or ledger.best_file_s > 0
    standstill = ledger.standstill + 1 if measured and not advanced else 0
    kept_s = ages_s[-(limit + 1) :] if limit else ()
    spent = replace(ledger, restart_ages_s=kept_s, standstill=standstill)
    if limit and len(spent.restart_ages_s) > limit:
        told = (
            f"more than {limit} restarts within {policy.restart_window_s:g} s of training (--restart-limit)"
        )
        return Verdict(
            Level.STOP, told, spent, EXIT_FAILED, "see what the causes of the last rounds have in common"
        )
    if policy.progress_limit and standstill >= policy.progress_limit:
        best = f"step {ledger.best_step}" if ledger.best_step >= 0 else "the last write of the progress file"
        told = f"no progress in {_rounds(standstill)}: none came beyond {best} (--no-progress-limit)"
        hint = "trying again repeats the same: see why no round gets on"
        return Verdict(Level.STOP, told, spent, EXIT_DO_NOT_REQUEUE, hint)
    return _after_blame(replace(decided, ledger=spent), root, policy, facts)


def _after_blame(decided: Verdict, root: Root, policy: Policy, facts: Facts) -> Verdict:
    """Note who is to blame; too often, and a spare takes its seat."""
    node_id = root.node_id
    killed = root.end is not None and root.end.by is EndedBy.SOMEONE_ELSE
    if (
        node_id is None
        or not root.culprit
        or killed
        or root.kind in _NOT_THE_NODES
        or not policy.culprit_limit
    ):
        return decided
    ledger = decided.ledger
    times = (*ledger.culprits.get(node_id, ()), facts.number)
    noted = replace(ledger, culprits={**ledger.culprits, node_id: times})
    if len(times) < policy.culprit_limit:
        return replace(decided, ledger=noted)
    blamed = f"{node_id} is to blame for the {_nth(len(times))} time in {_rounds(CULPRIT_ROUNDS)}"
    if not facts.spares:
        told = f"{decided.reason}; {blamed}, but no spare waits that could replace it"
        return replace(decided, ledger=noted, reason=told)
    forgotten = replace(ledger, culprits={name: n for name, n in ledger.culprits.items() if name != node_id})
    told = f"{decided.reason}; {blamed}: {facts.spares[0]} takes its ranks"
    return Verdict(Level.REPLACE_NODE, told, forgotten, replaces=node_id)


def _number(raw: object, unknown: float) -> float:
    return float(raw) if isinstance(raw, int | float) and not isinstance(raw, bool) else unknown


def _rounds(count: int) -> str:
    return "1 round" if count == 1 else f"{count} rounds"


def _nth(count: int) -> str:
    return {1: "1st", 2: "2nd", 3: "3rd"}.get(count, f"{count}th")
