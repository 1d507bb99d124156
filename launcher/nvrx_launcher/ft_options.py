"""What the options of NVIDIA's `ft_launcher`, and the settings of its YAML files, mean here.

One row for each, of the versions 0.4.1 to 0.7.0 of nvidia-resiliency-ext: of these rows the parser, the reader of
files, and the table in `docs/from-nvrx.md` are made. `ft_values` reads their values, `ft_translate` says what several
of them mean together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from nvrx_launcher.ft_values import any_text, folder_of, seconds, section_limits, whole_or_off
from nvrx_launcher.option import Inert, Refused

VERSIONS: Final = ("0.4.1", "0.5.0", "0.6.0", "0.7.0")
"""Releases of nvidia-resiliency-ext whose options are known here."""


@dataclass(frozen=True, slots=True)
class Becomes:
    """The setting has the meaning of an option of ours. `how`: what changes on the way, for people."""

    option: str
    how: str = ""


Meaning: TypeAlias = Becomes | Inert | Refused


@dataclass(frozen=True, slots=True)
class FtOption:
    """One option of ft_launcher.

    `name`: the setting in a YAML file, and the option without `--ft-`. `read`: turns its value into that of our
    option, None where it asks for nothing. `spellings`: the first is the one that is shown; none where it stands in
    files only. `environment`: variables that give it. `metavar`: how its value is called, empty for a
    flag. `in_file`: whether a file may name it. `harmless`: values that ask for what happens anyway, where others are
    refused.
    """

    name: str
    meaning: Meaning
    spellings: tuple[str, ...]
    read: Callable[[str], str | None] = any_text
    environment: tuple[str, ...] = ()
    metavar: str = "VALUE"
    in_file: bool = True
    harmless: tuple[str, ...] = ()

    @property
    def is_flag(self) -> bool:
        """Whether the option takes no value."""
        return not self.metavar

    @property
    def bare(self) -> str:
        """No option of ft_launcher has a value when it stands alone."""
        return ""

    @property
    def shown(self) -> str:
        """The spelling used in messages and documents."""
        return self.spellings[0] if self.spellings else self.name


_MEMORY: Final = Inert("a round begins when no process of the one before lives")
_POLLS: Final = Inert("nothing is polled, a deadline has its own timer")
_UNCHECKED: Final = Inert("nodes are not checked; what breaks is found by the rank that fails or hangs")
_UNASKED: Final = Inert("no service is asked for causes; nvrx why tells what the evidence says")
_UNGATHERED: Final = Inert("every node writes the output of its own ranks below --log-dir, nobody gathers it")
_NO_CHECK: Final = Refused(
    "nodes are not checked before or during a round yet",
    "leave it out, and run a check of yours before nvrx-launch",
)
_OFF: Final = ("false", "0", "no", "off")


def _row(name: str, meaning: Meaning, *older: str, **more: Any) -> FtOption:
    """A setting, by ft_launcher's styles of writing options: hyphens, underscores after `ft-`, or all underscores."""
    hyphened = name.replace("_", "-")
    spellings = dict.fromkeys((f"--ft-{hyphened}", f"--ft-{name}", f"--ft_{name}", *older))
    return FtOption(name, meaning, tuple(spellings), **more)


def _old_row(name: str, meaning: Meaning, **more: Any) -> FtOption:
    """One that had another prefix before version 0.5."""
    hyphened = name.replace("_", "-")
    return _row(
        name,
        meaning,
        f"--ft-param-{name}",
        f"--ft-param-{hyphened}",
        f"--ft_param_{name}",
        **more,
    )


def _line_row(name: str, meaning: Meaning, *older: str, **more: Any) -> FtOption:
    """One of the command line only."""
    return _row(name, meaning, *older, in_file=False, **more)


def _log_row(name: str, meaning: Meaning, **more: Any) -> FtOption:
    """One of the command line that has a variable, too."""
    return _line_row(name, meaning, environment=(f"PET_FT_{name.upper()}",), **more)


_HANGS = (
    _old_row(
        "rank_heartbeat_timeout",
        Becomes("hang_timeout", "seconds; the larger one of this and rank_out_of_section_timeout"),
        read=seconds,
    ),
    _old_row(
        "rank_out_of_section_timeout",
        Becomes("hang_timeout", "seconds; the larger one of this and rank_heartbeat_timeout"),
        read=seconds,
    ),
    _old_row(
        "initial_rank_heartbeat_timeout",
        Becomes(
            "hang_startup_timeout",
            "seconds from init_workload_monitoring to the first report; at least hang_timeout",
        ),
        read=seconds,
    ),
    _old_row(
        "rank_section_timeouts",
        Becomes(
            "section_limits",
            "seconds, off where it is none; of step and warmup the longer one is that of all steps",
        ),
        read=section_limits,
    ),
    FtOption(
        "num_warmup_iterations",
        Inert("the first step of a process is apart and has hang_timeout at least"),
        (),
    ),
    _old_row(
        "safety_factor",
        Inert("limits are learned as 5 times the longest time seen, and end only a rank that stands still"),
    ),
    _old_row("workload_check_interval", _POLLS),
    _row("skip_section_response", Inert("a report never waits for an answer")),
    _old_row(
        "rank_termination_signal",
        Refused(
            "a hung rank is ended by SIGKILL, after its stacks are kept",
            "leave it out; stacks.txt and hang.json beside the rank's logs say where it stood",
        ),
        harmless=("SIGKILL", "9"),
    ),
)

_RESTARTS = (
    _row(
        "max_no_progress_cycles", Becomes("no_progress_limit", "rounds; less than 0 is 0"), read=whole_or_off
    ),
    _row(
        "checkpoint_iteration_file",
        Becomes(
            "progress_file",
            "the time of the file counts, not the number in it; no_progress_limit is 3 unless given",
        ),
    ),
    _row(
        "min_progress_iterations",
        Refused(
            "any step beyond the best one before is progress",
            "leave it out; --restart-limit bounds restarts within a time",
        ),
        harmless=("1", "0"),
    ),
    _line_row(
        "restart_policy",
        Refused(
            "a fault of any rank ends the round of all",
            "leave it out; with --nnodes MIN:MAX the next round goes on without a lost node",
        ),
        "--restart-policy",
        "--restart_policy",
        harmless=("any-failed",),
    ),
    _old_row("restart_check_interval", _POLLS),
    _line_row(
        "no_restart_exit_code",
        Refused("exit code 93 says not to requeue", "leave it out, and let the job script translate 93"),
        harmless=("93",),
    ),
    FtOption(
        "term_timeout",
        Becomes("workers_stop_timeout", "seconds; one time-out for restarts and for the end of the job"),
        ("--term-timeout", "--term_timeout"),
        environment=("PET_TERM_TIMEOUT",),
        in_file=False,
    ),
    _row("install_exception_hook", Inert("the last exception of each rank is read from its stderr")),
    _row("check_remaining_processes", Inert("nothing that a rank started outlives its round")),
    _row("gpu_memory_reclaim_timeout", _MEMORY),
    _row("gpu_memory_tolerance_mb", _MEMORY),
    _row("gpu_memory_poll_interval", _MEMORY),
)

_NODES = (
    _line_row("rdzv_impl", Inert("nodes meet in etcd")),
    _row(
        "segment",
        Refused("nodes are not placed by NVLink domain", "leave it out, or order nodes with --node-rank"),
    ),
    _row(
        "use_infra_group_rank",
        Inert("nodes are ordered by --node-rank, else SLURM_NODEID; one that stays keeps its ranks"),
    ),
    _row("numa_bind_strict", Inert("--numa-binding binds to CPUs, memory follows")),
)

_HEALTH = (
    _old_row("node_health_check_interval", _UNCHECKED),
    _row("enable_nic_healthcheck", _UNCHECKED),
    _old_row("pci_topo_file", _UNCHECKED),
    _old_row("link_down_path_template", _UNCHECKED),
    _row("link_state_path_template", _UNCHECKED),
    _old_row("enable_nic_monitor", _NO_CHECK, harmless=_OFF),
    _row("enable_dist_storage_healthcheck", _NO_CHECK, harmless=_OFF),
    FtOption(
        "storage_healthcheck_path",
        _NO_CHECK,
        (
            "--ft-storage-health-check-path",
            "--ft-storage_health_check_path",
            "--ft_storage_health_check_path",
        ),
    ),
    _row("segment_health_check_dir", _NO_CHECK),
    _line_row("node_health_check_endpoint", _NO_CHECK),
)

_LOGS = (
    _log_row(
        "per_cycle_applog_prefix",
        Becomes("log_dir", "the folder of the prefix; a file for each rank and round instead of one a cycle"),
        read=folder_of,
    ),
    _log_row("nvrx_logfile", Inert("the agent's log is a file below --log-dir")),
    _log_row("enable_log_server", _UNGATHERED),
    _log_row("log_server_port", _UNGATHERED),
    _log_row("log_aggregator_count", _UNGATHERED),
    _log_row("log_leaf_max_queue_chunks", _UNGATHERED),
    _log_row("log_server_log_prefix", _UNGATHERED),
    _log_row("log_server_graceful_shutdown_timeout", _UNGATHERED),
    _old_row("log_level", Inert("the agent's log has one level")),
    _row("cycle_info_dir", Inert("history.jsonl in --log-dir tells of every round, by names of its own")),
)

_ATTRIBUTION = (
    _row(
        "attribution_endpoint",
        Refused(
            "no service is asked for the cause of a failure",
            "leave it out; nvrx why tells what the evidence says",
        ),
    ),
    _row("attribution_stop_action", _UNASKED),
    _row("attribution_export_url", _UNASKED),
    _line_row("attribution_startup_timeout", _UNASKED),
    _line_row("attribution_compute_timeout", _UNASKED),
    _line_row("attribution_llm_api_key_file", _UNASKED),
    _line_row("attribution_llm_base_url", _UNASKED),
    _line_row("attribution_llm_model", _UNASKED),
    _line_row("attribution_analysis_backend", _UNASKED),
    _line_row("attribution_log_level", _UNASKED),
)

_FILE = (
    FtOption(
        "fault_tol_cfg_path",
        Becomes("config"),
        ("--fault-tol-cfg-path", "--fault_tol_cfg_path"),
        in_file=False,
    ),
    _line_row(
        "ignore_missing_cfg",
        Inert("no file is needed; one that is named and not there is refused"),
        "--ignore-missing-fault-tol-cfg",
        "--ignore_missing_fault_tol_cfg",
        metavar="",
    ),
)

FT_OPTIONS: Final[tuple[FtOption, ...]] = (
    *_HANGS,
    *_RESTARTS,
    *_NODES,
    *_HEALTH,
    *_LOGS,
    *_ATTRIBUTION,
    *_FILE,
)

BY_SPELLING: Final = {spelling: one for one in FT_OPTIONS for spelling in one.spellings}
BY_KEY: Final = {one.name: one for one in FT_OPTIONS if one.in_file}
