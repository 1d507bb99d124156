"""What `nvrx-launch` was asked to do, checked: one frozen part for each room, no text left to read."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from nvrx_launcher.grace import within
from nvrx_launcher.streams import NONE, SHOW_ALL, Shown

if TYPE_CHECKING:
    from pathlib import Path
    from signal import Signals

    from nvrx_async.hang.policy import HangPolicy
    from nvrx_async.job.records import JobSpec
    from nvrx_telemetry.setup import TelemetryConfig

KILL_TIME_S = 1.0
"""Longest time from SIGKILL until a rank does nothing any more; every fence waits for it."""


class EmbeddedEtcd(Enum):
    """Whether this node may start an etcd server."""

    PRIVATE = "private"
    """Start one for this job on loopback, at a free port."""
    AUTO = "auto"
    """Start one on the endpoint that names this node, if no endpoint answers."""
    OFF = "off"
    """Never: etcd is somebody else's."""


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Files (PEM) for TLS to etcd. Without `ca_file` the system's authorities are trusted."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    """How etcd is reached.

    `endpoints` are `host:port` (IPv6 in brackets), none with PRIVATE. `tls` None: without TLS.
    """

    endpoints: tuple[str, ...]
    embedded: EmbeddedEtcd
    tls: TlsConfig | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """This node. `node_id` and `address` are None where the agent finds them out; `order` is a wish.

    `interface`: the network interface whose address is this node's.
    """

    slots: int
    node_id: str | None = None
    order: int | None = None
    address: str | None = None
    interface: str | None = None


class ProgramKind(Enum):
    """What the training program is."""

    SCRIPT = "script"
    """A file that Python runs."""
    MODULE = "module"
    """A module that Python runs (`-m`)."""
    EXECUTABLE = "executable"
    """A program of its own (`--no-python`)."""


@dataclass(frozen=True, slots=True)
class WarmConfig:
    """Idle processes for the next restart: `count` per node, None for one per rank where it is safe, 0 for none.

    `imports` are the modules they import beforehand.
    """

    count: int | None = 0
    imports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkersConfig:
    """The ranks' command and how they are treated.

    `argv` is complete (interpreter included), `program` is the script, module or executable in it.
    `stop_timeout_s` lies between SIGTERM and SIGKILL; `end_unix_s` is when the scheduler ends the job anyway, in
    seconds since 1970, None if unknown, and `limit_margin_s` how long before that all ranks are to stop by themselves,
    None for not at all. A rank that lives for `startup_grace_s` counts as ready. `omp_num_threads` is what
    OMP_NUM_THREADS is set to, None where the variable is left alone. `signals` are for the ranks alone.
    `virtual_local_rank`: each rank is told that it is the first of its node, with one GPU. `pty`: ranks write to
    a terminal of their own; None if the agent does. `interface`: the network interface that gloo and NCCL are told
    to use. `progress_file`: written by the script whenever it gets on.
    `cpus`: those that each local rank may run on, none where ranks are not bound. `early_exit_limit_s`: how long
    ranks may go on after one of this node has exited with 0, None for ever.
    """

    argv: tuple[str, ...]
    kind: ProgramKind
    program: str
    role: str
    stop_timeout_s: float
    startup_grace_s: float
    omp_num_threads: int | None = None
    signals: tuple[Signals, ...] = ()
    virtual_local_rank: bool = False
    pty: bool | None = False
    cpus: tuple[tuple[int, ...], ...] = ()
    interface: str | None = None
    warm: WarmConfig = WarmConfig()
    progress_file: Path | None = None
    end_unix_s: float | None = None
    early_exit_limit_s: float | None = None
    limit_margin_s: float | None = None

    def grace_s(self, unix_s: float) -> float:
        """Seconds that ranks have whose stop begins at `unix_s`, in seconds since 1970."""
        return within(self.stop_timeout_s, self.end_unix_s, unix_s)


@dataclass(frozen=True, slots=True)
class LogsConfig:
    """`folder` holds everything this job writes on this node; nothing of it exists yet."""

    folder: Path
    shown: Shown = SHOW_ALL

    @property
    def familiar(self) -> bool:
        """Whether torchrun, started with these options, would have made logs that people look for."""
        return (self.shown.redirects, self.shown.tee) != (NONE, NONE)

    @property
    def summary(self) -> Path:
        """File of the closing summary."""
        return self.folder / "summary.txt"


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """All of one launch. `hang` None: nobody looks for hangs; `telemetry` None: nothing is sent.

    `imports_began_s`: when the agent's imports began (CLOCK_BOOTTIME), for its own trace; 0 without telemetry.

    `launch_id` names one launch by a scheduler, None when nothing tells. `takeover`: the person knows that an
    attempt which left no verdict is dead. `requeue`: the command that asks the scheduler for another start, none for
    not at all.
    `notices` are lines for the person who started it: options that change nothing, and what was assumed.
    """

    run_id: str
    job: JobSpec
    etcd: EtcdConfig
    node: NodeConfig
    workers: WorkersConfig
    logs: LogsConfig
    hang: HangPolicy | None = None
    telemetry: TelemetryConfig | None = None
    imports_began_s: float = 0.0
    launch_id: str | None = None
    takeover: bool = False
    requeue: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
