"""What settings of ft_launcher, the section `fault_tolerance` of its YAML file, mean here."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from nvrx_launcher.errors import UsageError
from nvrx_launcher.option import Inert, Refused

NAME: Final = "fault_tolerance"


@dataclass(frozen=True, slots=True)
class Becomes:
    """The setting has the meaning of an option."""

    option: str


@dataclass(frozen=True, slots=True)
class FtKey:
    """One setting and what becomes of it."""

    name: str
    status: Becomes | Inert | Refused


@dataclass(frozen=True, slots=True)
class Row:
    """A setting as it is written: None for null, empty for a list or mapping. `where` is `file:line`."""

    key: str
    text: str | None
    where: str


@dataclass(frozen=True, slots=True)
class Translated:
    """`given`: how each setting is spelled in messages, the option it becomes, and that one's value."""

    given: tuple[tuple[str, str, str], ...]
    notices: tuple[str, ...]


_POLLS = Inert("nothing is polled")
_LEARNS = Inert(
    "limits are learned from what ranks report; a section can bring its own: rank.section(limit_s=…)"
)
_NO_CHECK = Inert("network, storage and GPUs are not checked before a round")
_MEMORY = Inert("a round begins when no process of the one before lives")
_NO_ATTRIBUTION = Inert("no service is asked for causes; nvrx why tells what the evidence says")

FT_KEYS: Final[tuple[FtKey, ...]] = (
    FtKey("rank_heartbeat_timeout", Becomes("hang_timeout")),
    FtKey("max_no_progress_cycles", Becomes("no_progress_limit")),
    FtKey("checkpoint_iteration_file", Becomes("progress_file")),
    FtKey(
        "initial_rank_heartbeat_timeout",
        Inert("who never reports is not killed; hang_startup_timeout limits the start of ranks that report"),
    ),
    FtKey("rank_section_timeouts", _LEARNS),
    FtKey("rank_out_of_section_timeout", _LEARNS),
    FtKey("safety_factor", _LEARNS),
    FtKey("num_warmup_iterations", _LEARNS),
    FtKey("workload_check_interval", _POLLS),
    FtKey("restart_check_interval", _POLLS),
    FtKey("skip_section_response", Inert("a report never waits for an answer")),
    FtKey("rank_termination_signal", Inert("a hung rank gets SIGKILL, any other SIGTERM first")),
    FtKey("log_level", Inert("the agent's log has one level")),
    FtKey("min_progress_iterations", Inert("any step beyond the best one before is progress")),
    FtKey("install_exception_hook", Inert("the last exception of each rank is read from its stderr")),
    FtKey("check_remaining_processes", Inert("nothing that a rank started outlives its round")),
    FtKey("gpu_memory_reclaim_timeout", _MEMORY),
    FtKey("gpu_memory_tolerance_mb", _MEMORY),
    FtKey("gpu_memory_poll_interval", _MEMORY),
    FtKey("numa_bind_strict", Inert("--numa-binding binds to CPUs, memory follows")),
    FtKey("node_health_check_interval", _NO_CHECK),
    FtKey("enable_nic_monitor", _NO_CHECK),
    FtKey("enable_nic_healthcheck", _NO_CHECK),
    FtKey("enable_dist_storage_healthcheck", _NO_CHECK),
    FtKey("storage_healthcheck_path", _NO_CHECK),
    FtKey("pci_topo_file", _NO_CHECK),
    FtKey("link_down_path_template", _NO_CHECK),
    FtKey("link_state_path_template", _NO_CHECK),
    FtKey("attribution_endpoint", _NO_ATTRIBUTION),
    FtKey("attribution_stop_action", _NO_ATTRIBUTION),
    FtKey("attribution_export_url", _NO_ATTRIBUTION),
    FtKey("cycle_info_dir", Inert("history.jsonl in --log-dir tells of every round")),
    FtKey(
        "segment",
        Refused("nodes are not placed by NVLink domain", "leave it out, or order nodes with --node-rank"),
    ),
)


def translated(where: str, rows: list[Row]) -> Translated:
    """The settings as options; `where` is the section's `file:line`.

    Raises:
        UsageError: a setting that ft_launcher does not have, or one that cannot be kept.
    """
    known = {key.name: key.status for key in FT_KEYS}
    given: list[tuple[str, str, str]] = []
    inert: dict[str, list[str]] = {}
    for row in rows:
        status = known.get(row.key)
        if status is None:
            close = get_close_matches(row.key, known, n=1, cutoff=0.6)
            hint = f"did you mean {close[0]}?" if close else f"options of nvrx-launch stand outside of {NAME}"
            raise UsageError(f"{row.where}: {NAME} has no {row.key}", hint)
        if row.text is None:
            continue
        if isinstance(status, Refused):
            raise UsageError(f"{row.where}: {row.key} is not possible: {status.reason}", status.hint)
        if isinstance(status, Inert):
            inert.setdefault(status.line, []).append(row.key)
        else:
            given.append((f"{row.where}: {row.key}", status.option, _as_option(row)))
    if not inert:
        return Translated(tuple(given), ())
    told = "; ".join(f"{', '.join(names)} ({line})" for line, names in inert.items())
    return Translated(tuple(given), (f"{where}: {NAME}: these change nothing: {told}",))


def _as_option(row: Row) -> str:
    """Zero and less turn the limit of rounds without progress off there, only zero does here."""
    text = row.text or ""
    return "0" if row.key == "max_no_progress_cycles" and text.startswith("-") else text
