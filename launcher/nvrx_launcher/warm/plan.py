"""Which processes may be warm, and what they are started with. Pure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nvrx_async.hang.flight_recorder import DUMPS
from nvrx_launcher.config import ProgramKind, WarmConfig, WorkersConfig
from nvrx_launcher.workers import Hook, RankCommand, Release

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HOOK_FOLDER = str(Path(__file__).absolute().parent / "hook")

LATER = frozenset(
    {
        "RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_ERROR_FILE",
        "NVRX_ATTEMPT",
        "NVRX_NODE_ID",
        "NVRX_RANK_PAGE",
        "NVRX_ROUND",
        "NVRX_SPANS",
        "NVRX_SPANS_EPOCH_NS",
        "NVRX_STACKS_FILE",
        "OTEL_RESOURCE_ATTRIBUTES",
        "TRACEPARENT",
        *DUMPS,
    }
)
"""Variables that depend on the round. An idle process gets them when it becomes a rank."""

HEAD_START_MS = 20
"""How much earlier than the others rank 0 goes on.

Its store must listen before they connect: torch's client waits 0.25 s to 0.75 s after a refusal (m: rank 0
later by 5 ms cost 0.26 to 0.48 s).
"""

_MIB = 1 << 20
AUTO_NEEDS_BYTES = 512 * _MIB
"""With `auto`, so much memory must be available for each idle process."""


def refusal(workers: WorkersConfig, environment: Mapping[str, str]) -> str | None:
    """Why ranks of this job can never be warm; None if they may be."""
    if workers.warm.count == 0:
        return "--warm-workers is off"
    if workers.kind is ProgramKind.EXECUTABLE:
        return "--no-python: the program is not run by Python"
    if not workers.warm.imports:
        return "--warm-imports names nothing"
    if " " in HOOK_FOLDER or ":" in HOOK_FOLDER:
        return f"this package lies in {HOOK_FOLDER}, which PYTHONPATH cannot name"
    if environment.get("PYTHONPROFILEIMPORTTIME"):
        return "PYTHONPROFILEIMPORTTIME measures imports from the start of a process"
    return None


def wanted(config: WarmConfig, slots: int) -> int:
    """How many local ranks get an idle process."""
    return slots if config.count is None else min(config.count, slots)


def idle_command(command: RankCommand) -> RankCommand:
    """The command as it is known before the round."""
    return replace(command, env=_settled(command.env), hook=None, release=None)


def hook(mode: str, imports: Sequence[str]) -> Hook:
    """The hook's orders."""
    return Hook(mode, ",".join(imports), ",".join(sorted(LATER)), HOOK_FOLDER)


def release(pid: int, prepared: RankCommand, command: RankCommand) -> Release | None:
    """How an idle process becomes the rank; None if it was started with something else than the rank would be."""
    same = (
        prepared.argv == command.argv
        and prepared.cwd == command.cwd
        and prepared.env == _settled(command.env)
    )
    later = {name: value for name, value in command.env.items() if name in LATER}
    wait_ms = 0 if command.env["RANK"] == "0" else HEAD_START_MS
    return Release(pid, later, wait_ms) if same else None


def difference(prepared: RankCommand, command: RankCommand) -> str:
    """What an idle process was started with that the rank would not be, for people."""
    if prepared.argv != command.argv:
        return "the command is another one"
    if prepared.cwd != command.cwd:
        return f"the folder is {command.cwd}, and was {prepared.cwd}"
    before, now = prepared.env, _settled(command.env)
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    return f"{', '.join(names)} changed"


def _settled(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in LATER}


def doubt(watched: Mapping[str, tuple[str, str]], ready: str) -> str | None:
    """Why an idle process differs from what cold ranks were seen to be; None if it does not.

    `watched` holds, for each module, where cold ranks found it and what they had changed before (joined by
    commas); `ready` is an idle process's own account, `name=file` joined by commas.
    """
    for name, (_, changed) in watched.items():
        if changed:
            return f"the script changes {changed.replace(',', ', ')} before it imports {name}"
    for entry in ready.split(","):
        name, _, file = entry.partition("=")
        seen = watched.get(name)
        if seen is not None and seen[0] != file:
            return f"the script imports {name} from {seen[0]}, an idle process from {file}"
    return None
