"""What comes after a round that ended by a fault: how deep the next try cuts, and what it is billed to.

Three accounts, kept apart in the ledger:

- `restarts`: faults of a training that ran; `--max-restarts` is their lifetime cap, as in torchrun.
- `start_failures`: faults before a rank was ready. Trying again rarely helps, so this account is small. It is
  cleared when a training that was ready fails, since then the start did work.
- `membership`: a node or its agent was lost. The training is not to blame and pays nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nvrx_async.job.records import EndedBy, FaultKind, JobSpec, Ledger, Level, Root

START_RETRIES = 2
"""Tries after a first failed start, and never more than `--max-restarts` would give."""

_EXIT_FAILED = 1
_EXIT_DO_NOT_REQUEUE = 93


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happens next and why.

    `ledger` is what the attempt has spent once this is done. `exit_code` is set if nothing is tried any more.
    `hint` says what a person can change, empty if nothing is known. `replaces`: this node takes no seat from now on,
    since it was to blame too often.
    """

    level: Level
    reason: str
    ledger: Ledger
    exit_code: int | None = None
    hint: str = ""
    replaces: str | None = None


def next_level(ledger: Ledger, root: Root, policy: JobSpec, *, nothing_ready: bool) -> Verdict:
    """Decide what follows a round that ended by `root`.

    Args:
        ledger: what the attempt has spent so far.
        root: cause of the round's end.
        policy: what all agents of the job agreed on.
        nothing_ready: no rank of the round was ready; asked only where `root` names no rank.
    """
    if root.kind is FaultKind.ASKED:
        return Verdict(Level.IN_JOB, "asked for, not billed", ledger)
    if root.kind.is_membership:
        spent = replace(ledger, membership=ledger.membership + 1)
        return Verdict(
            Level.IN_JOB, f"loss of a node is not billed to the training, {_nth(spent.membership)}", spent
        )
    # Membership faults in between keep the fingerprint: they say nothing of the program.
    noted = replace(ledger, last_fingerprint=root.fingerprint)
    if policy.max_restarts <= 0:
        hint = "--max-restarts N lets it try again"
        return _stop("--max-restarts is 0: nothing is tried again", noted, hint)
    if root.fingerprint is not None and root.fingerprint == ledger.last_fingerprint:
        hint = "this error comes from the program and not from the machines: fix it at the place named"
        twice = "tried twice: the same error came at the same place in two rounds"
        return Verdict(Level.STOP, twice, noted, _EXIT_DO_NOT_REQUEUE, hint)
    if _failed_to_start(root, nothing_ready=nothing_ready):
        return _after_failed_start(noted, policy)
    return _after_failure(noted, policy)


def _failed_to_start(root: Root, *, nothing_ready: bool) -> bool:
    if root.kind is FaultKind.START_FAILED:
        return True
    if root.end is None:
        return nothing_ready
    # Whom somebody else killed had not failed to start.
    return not root.end.ready and root.end.by is not EndedBy.SOMEONE_ELSE


def _after_failed_start(ledger: Ledger, policy: JobSpec) -> Verdict:
    budget = min(START_RETRIES, policy.max_restarts)
    spent = replace(ledger, start_failures=ledger.start_failures + 1)
    if spent.start_failures <= budget:
        reason = f"failed before it was ready: retry {spent.start_failures} of {budget} for that"
        return Verdict(Level.IN_JOB, reason, spent)
    hint = "a training that never got ready will hardly do so by itself: see the log of the rank named"
    return _stop(f"failed {spent.start_failures} times before it was ready", spent, hint)


def _after_failure(ledger: Ledger, policy: JobSpec) -> Verdict:
    if ledger.restarts < policy.max_restarts:
        spent = replace(ledger, restarts=ledger.restarts + 1, start_failures=0)
        return Verdict(
            Level.IN_JOB, f"restart {spent.restarts} of --max-restarts {policy.max_restarts}", spent
        )
    hint = "a larger --max-restarts lets it try again"
    return _stop(_all_spent(policy.max_restarts), ledger, hint)


def _all_spent(restarts: int) -> str:
    if restarts == 1:
        return "the one restart of --max-restarts is spent"
    return f"all {restarts} restarts of --max-restarts are spent"


def _nth(count: int) -> str:
    return "the first so far" if count == 1 else f"{count} so far"


def _stop(reason: str, ledger: Ledger, hint: str) -> Verdict:
    return Verdict(Level.STOP, reason, ledger, _EXIT_FAILED, hint)
