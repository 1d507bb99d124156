"""Environment, command line and log files of a rank. Pure, but for `make_folders`."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nvrx_launcher.config import WorkersConfig
from nvrx_launcher.sweep import KEEPER_MARK, MARK

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nvrx_async.job.records import Assignment

SECRETS = frozenset({"NVRX_JOB_TOKEN", "ETCDCTL_USER", "ETCDCTL_PASSWORD", "ETCD_ROOT_PASSWORD"})
"""Variables of the agent that no rank gets; also all of ours that end in one of SECRET_ENDINGS."""

NO_FILE = ""
"""Path of output that goes nowhere."""

SECRET_ENDINGS = ("_TOKEN", "_PASSWORD")
_OUR_PREFIXES = ("NVRX_", "PET_")


@dataclass(frozen=True, slots=True)
class RankJob:
    """Whose ranks they are. `folder` holds all logs of the job on this node; `tag` marks all its processes.

    `terminal`: rows and columns of the terminals that ranks get instead of pipes. `familiar`: logs are also
    found in torchrun's layout.
    """

    run_id: str
    attempt: int
    node_id: str
    max_restarts: int
    folder: Path
    tag: str
    terminal: tuple[int, int] | None = None
    familiar: bool = False

    @property
    def paths(self) -> LogPaths:
        """Where output lies."""
        return LogPaths(self.folder, self.attempt)


@dataclass(frozen=True, slots=True)
class Hook:
    """What `nvrx_launcher.warm.hook` is to do in a process. Names are joined by commas.

    `mode` is watch or warm, `imports` names modules, `later` variables of the environment that are not known
    yet, `folder` (absolute) holds the hook.
    """

    mode: str
    imports: str
    later: str
    folder: str


@dataclass(frozen=True, slots=True)
class Release:
    """Which idle process becomes the rank, after how long, and the variables it did not get at its start."""

    pid: int
    names: Mapping[str, str]
    wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class RankCommand:
    """All that the keeper needs to start a rank. `env` is the whole environment; paths are absolute.

    `terminal`: rows and columns of the terminal that stdout and stderr are; None for pipes. `familiar`: where
    torchrun's users look for the folder of the logs. `cpus`: those it may run on, all when empty.
    `release`: turn this idle process into the rank; where that fails, and without it, the rank starts cold.
    """

    local_rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    stdout_path: str
    stderr_path: str
    terminal: tuple[int, int] | None = None
    familiar: str | None = None
    cpus: tuple[int, ...] = ()
    hook: Hook | None = None
    release: Release | None = None


_ATTEMPT = "attempt_"


def first_attempt(folder: Path) -> int:
    """The lowest number above those of attempts whose output lies in this job's folder.

    An etcd that an agent starts knows of no earlier attempt, after a requeue say, and theirs must not be
    continued in the same files.
    """
    taken = [path.name.removeprefix(_ATTEMPT) for path in folder.glob(f"{_ATTEMPT}*")]
    return max((int(number) + 1 for number in taken if number.isdecimal()), default=0)


@dataclass(frozen=True, slots=True)
class LogPaths:
    """Where output lies: `<folder>/attempt_<a>/round_<n>/rank_<r>/`, ranks by their global number."""

    folder: Path
    attempt: int

    def round(self, number: int) -> Path:
        """Folder of a round."""
        return self.folder / f"{_ATTEMPT}{self.attempt}" / f"round_{number}"

    def rank(self, number: int, rank: int) -> Path:
        """Folder of a rank in a round."""
        return self.round(number) / f"rank_{rank}"

    def stdout(self, number: int, rank: int) -> Path:
        """What the rank wrote to stdout."""
        return self.rank(number, rank) / "stdout.log"

    def stderr(self, number: int, rank: int) -> Path:
        """What the rank wrote to stderr."""
        return self.rank(number, rank) / "stderr.log"

    def familiar(self, node_id: str, number: int, local_rank: int) -> Path:
        """The rank's folder in torchrun's layout, `<run id>_<…>/attempt_<restart count>/<local rank>`."""
        root = self.folder.with_name(f"{self.folder.name}_{node_id}.{self.attempt}")
        return root / f"attempt_{number}" / str(local_rank)

    def error_file(self, number: int, rank: int) -> Path:
        """Where torch's `@record` writes the rank's exception."""
        return self.rank(number, rank) / "error.json"


def rank_command(
    assignment: Assignment,
    local_rank: int,
    *,
    workers: WorkersConfig,
    job: RankJob,
    base_env: Mapping[str, str],
    cwd: str,
) -> RankCommand:
    """Command of one rank of the assignment; `base_env` is the agent's own environment.

    `${local_rank}` in an argument becomes the rank's number on its node, as with torchrun.
    """
    rank, number, paths = assignment.seat.first_rank + local_rank, assignment.round, job.paths
    return RankCommand(
        local_rank=local_rank,
        argv=tuple(word.replace("${local_rank}", str(local_rank)) for word in workers.argv),
        env={
            **_inherited(base_env),
            **_defaults(base_env, workers),
            **_place(assignment, rank, local_rank),
            **(_virtual_place(base_env, local_rank) if workers.virtual_local_rank else {}),
            **_of_job(number, workers, job),
            "TORCHELASTIC_ERROR_FILE": str(paths.error_file(number, rank)),
        },
        cwd=cwd,
        stdout_path=str(paths.stdout(number, rank)),
        stderr_path=str(paths.stderr(number, rank)),
        terminal=job.terminal,
        cpus=workers.cpus[local_rank] if workers.cpus else (),
        familiar=str(paths.familiar(job.node_id, number, local_rank)) if job.familiar else None,
    )


def make_folders(commands: Iterable[RankCommand]) -> None:
    """Make the folders of log files.

    Raises:
        OSError: a folder cannot be made. Ranks may be started anyway, their output is then counted as lost.
    """
    for command in commands:
        folder = Path(command.stdout_path).parent
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        if command.familiar is not None:
            link(Path(command.familiar), folder)


def unlogged(commands: Iterable[RankCommand]) -> tuple[RankCommand, ...]:
    """The same ranks, whose output goes nowhere and is counted as lost."""
    return tuple(replace(command, stdout_path=NO_FILE, stderr_path=NO_FILE) for command in commands)


def link(place: Path, target: Path) -> None:
    """Have the target found at another place too, where the file system knows links."""
    with suppress(OSError):  # a convenience: the target is there in any case, and is named to people
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        place.unlink(missing_ok=True)
        place.symlink_to(os.path.relpath(target, place.parent))


def is_secret(name: str) -> bool:
    """Whether a variable of the agent is kept from ranks."""
    return name in SECRETS or (name.startswith(_OUR_PREFIXES) and name.endswith(SECRET_ENDINGS))


def _inherited(base_env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in base_env.items() if not is_secret(name) and name != KEEPER_MARK}


def _defaults(base_env: Mapping[str, str], workers: WorkersConfig) -> dict[str, str]:
    """What torchrun sets unless the person did, and output without a delay."""
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "PYTHONUNBUFFERED": "1"}
    if workers.omp_num_threads is not None:
        defaults["OMP_NUM_THREADS"] = str(workers.omp_num_threads)
    if workers.interface is not None:
        defaults |= {"GLOO_SOCKET_IFNAME": workers.interface, "NCCL_SOCKET_IFNAME": workers.interface}
    return {name: value for name, value in defaults.items() if name not in base_env}


def _place(assignment: Assignment, rank: int, local_rank: int) -> dict[str, str]:
    """The rank's place in the world. An agent has one role, so its numbers are those of the world."""
    seat = assignment.seat
    return {
        "LOCAL_RANK": str(local_rank),
        "RANK": str(rank),
        "GROUP_RANK": str(seat.group_rank),
        "ROLE_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(seat.slots),
        "WORLD_SIZE": str(assignment.world_size),
        "GROUP_WORLD_SIZE": str(assignment.group_world_size),
        "ROLE_WORLD_SIZE": str(assignment.world_size),
        "MASTER_ADDR": assignment.master_address,
        "MASTER_PORT": str(assignment.master_port),
    }


def _virtual_place(base_env: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """One GPU a rank, which is device 0 to it."""
    visible = base_env.get("CUDA_VISIBLE_DEVICES")
    gpu = visible.split(",")[local_rank].strip() if visible is not None else str(local_rank)
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": gpu}


def _of_job(number: int, workers: WorkersConfig, job: RankJob) -> dict[str, str]:
    return {
        "ROLE_NAME": workers.role,
        "TORCHELASTIC_RESTART_COUNT": str(number),
        "TORCHELASTIC_MAX_RESTARTS": str(job.max_restarts),
        "TORCHELASTIC_RUN_ID": job.run_id,
        # The store of rank 0 is a new one each round, never the agent's.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "NVRX_RUN_ID": job.run_id,
        "NVRX_ATTEMPT": str(job.attempt),
        "NVRX_ROUND": str(number),
        "NVRX_NODE_ID": job.node_id,
        MARK: job.tag,
    }
