"""What a member tells people of rounds: each thing once, under the name beside it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nvrx_async.job.records import Assignment, Interrupt, Round
from nvrx_async.rounds.commands import commands_in
from nvrx_async.rounds.effects import Commanded, Interrupted, Judged, Notice, RoundRunning, Waiting
from nvrx_async.rounds.registration import Registration


def running(now_round: Round, assignment: Assignment | None) -> tuple[object, Notice]:
    """A round runs; `assignment` is None for a spare."""
    number = now_round.number
    notice = RoundRunning(number, now_round.nodes, now_round.world_size, assignment, now_round.why)
    return ("running", number), notice


def of_rounds(now_round: Round, registered: Registration) -> Iterator[tuple[object, Notice]]:
    """What others did: interrupts, answers to commands, verdicts."""
    number = now_round.number
    interrupt = registered.mirror.record(Interrupt, registered.keys.interrupt(number))
    if interrupt is not None and interrupt.node_id != registered.node.node_id:
        yield ("interrupted", number), Interrupted(number, interrupt.reason)
    for command_id, command in commands_in(now_round.extra).items():
        if command.answered_utc >= registered.node.registered_utc:  # who comes later need not hear of it
            yield ("command", command_id), Commanded(command_id, command)
    if now_round.verdict is not None:
        yield ("judged", now_round.verdict.number), Judged(now_round.verdict)


def unfit(unkillable: Sequence[int]) -> tuple[object, Notice]:
    """What is told of local ranks that outlive SIGKILL."""
    ranks = ", ".join(map(str, unkillable))
    told = f"a process of local rank {ranks} outlives SIGKILL: this node joins no more"
    return ("unfit",), Waiting(told)
