"""From a command line to a LaunchConfig: what options mean together. Looks at no file and starts nothing."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from nvrx_async.hang.errors import PolicyError
from nvrx_async.hang.policy import Action, HangPolicy, hang_policy
from nvrx_async.job.records import Grow, JobSpec, Policy
from nvrx_launcher import grace, meeting, signals
from nvrx_launcher.blank import blanked_command
from nvrx_launcher.config import (
    KILL_TIME_S,
    LaunchConfig,
    LogsConfig,
    NodeConfig,
    ProgramKind,
    WarmConfig,
    WorkersConfig,
)
from nvrx_launcher.errors import UsageError
from nvrx_launcher.ft_line import whole_start_s
from nvrx_launcher.streams import Shown
from nvrx_telemetry.setup import TelemetryConfig, telemetry_config

if TYPE_CHECKING:
    from nvrx_launcher.command_line import CommandLine

CountSlots = Callable[[str], int]
"""Turns `gpu`, `cpu` or `auto` into a number of ranks; raises UsageError."""


def configure(
    line: CommandLine,
    environment: Mapping[str, str],
    count_slots: CountSlots,
    read_password: meeting.ReadPassword,
) -> LaunchConfig:
    """The whole configuration of a launch.

    Raises:
        UsageError: options contradict each other, or one is missing.
    """
    notices = list(line.notices)
    form = meeting.shape(line, notices)
    secret = meeting.credentials(line, environment, read_password)
    etcd = meeting.etcd(line, secret, form, notices)
    run_id = meeting.run_id(line, environment, form)
    timeouts = meeting.timeouts(line, notices)
    slots = line.value("nproc_per_node")
    slots = count_slots(slots) if isinstance(slots, str) else slots
    return LaunchConfig(
        run_id=run_id,
        job=JobSpec(
            command=_told(("-m", *line.program) if line.value("module") else line.program),
            min_nodes=form.nodes.minimum,
            max_nodes=form.nodes.maximum,
            max_restarts=line.value("max_restarts"),
            lease_ttl_s=line.value("lease_ttl"),
            kill_time_s=KILL_TIME_S,
            outage_limit_s=meeting.outage_limit_s(line, form, notices),
            join_timeout_s=timeouts["join_timeout"],
            last_call_s=timeouts["last_call"],
            policy=_policy(line),
        ),
        etcd=etcd,
        node=_node(line, environment, slots),
        workers=_workers(line, environment, slots, notices),
        logs=_logs(line, environment, run_id, slots, notices),
        hang=_hang(line, notices),
        telemetry=_telemetry(line, environment, notices),
        launch_id=_launch_id(environment),
        takeover=line.value("takeover"),
        requeue=_requeue(line, environment, run_id),
        notices=tuple(notices),
    )


def _policy(line: CommandLine) -> Policy:
    return Policy(
        grow=Grow(line.value("grow")),
        grow_pause_s=line.value("grow_pause"),
        spares=line.value("spares"),
        restart_limit=line.value("restart_limit"),
        restart_window_s=line.value("restart_window"),
        progress_limit=line.value("no_progress_limit"),
        culprit_limit=line.value("culprit_limit"),
        node_loss_limit=line.value("node_loss_limit"),
    )


def _told(words: tuple[str, ...]) -> tuple[str, ...]:
    """What etcd, logs and people are told of the command, as etcd gives it back, since agents compare it.

    Bytes that are no UTF-8 are spelled out, and what looks like a secret is left out.
    """
    return blanked_command([word.encode("utf-8", "backslashreplace").decode() for word in words])


def _node(line: CommandLine, environment: Mapping[str, str], slots: int) -> NodeConfig:
    order = line.value("node_rank")
    slurm_order = environment.get("SLURM_NODEID", "")
    if order is None and slurm_order.isdigit():
        order = int(slurm_order)
    node_id = line.value("node_id")
    if line.value("interface") and line.value("local_addr"):
        raise UsageError(
            f"{line.as_given('interface')} and {line.as_given('local_addr')} both say this node's address",
            "give one of the two",
        )
    return NodeConfig(
        slots=slots,
        node_id=meeting.checked("--node-id", node_id) if node_id else None,
        order=order,
        address=line.value("local_addr") or None,
        interface=line.value("interface") or None,
    )


def _workers(
    line: CommandLine, environment: Mapping[str, str], slots: int, notices: list[str]
) -> WorkersConfig:
    alone = slots == 1 or "OMP_NUM_THREADS" in environment
    if not alone:
        notices.append(
            "OMP_NUM_THREADS is set to 1 for each rank, as torchrun does; set it yourself to change that"
        )
    kind = _kind(line)
    return WorkersConfig(
        argv=_argv(line.program, kind, environment),
        kind=kind,
        program=line.program[0],
        role=line.value("role"),
        stop_timeout_s=grace.granted_s(
            line.value("workers_stop_timeout"),
            environment,
            notices,
            by_user=line.given["workers_stop_timeout"].by_user,
        ),
        startup_grace_s=line.value("startup_grace"),
        omp_num_threads=None if alone else 1,
        signals=signals.passed_on(line.value("signals_to_handle")),
        virtual_local_rank=_virtual(line, environment, slots),
        pty=_pty(line, slots),
        interface=line.value("interface") or None,
        progress_file=Path(progress).absolute() if (progress := line.value("progress_file")) else None,
        warm=WarmConfig(_warm_count(line.value("warm_workers")), line.value("warm_imports")),
        end_unix_s=grace.allocation_end(environment),
        early_exit_limit_s=line.value("early_exit_limit"),
        limit_margin_s=line.value("time_limit_margin"),
    )


def _hang(line: CommandLine, notices: list[str]) -> HangPolicy | None:
    timeout_s, startup_s = line.value("hang_timeout"), line.value("hang_startup_timeout")
    lent, first_report_s = line.given["hang_startup_timeout"].lent, None
    if timeout_s is None:
        for name in ("hang_startup_timeout", "section_limits"):
            _moot(line, name, notices)
        return None
    if lent and startup_s < timeout_s:
        notices.append(
            f"{line.as_given('hang_startup_timeout')} is shorter than --hang-timeout {timeout_s:g}, "
            "which a start has, too"
        )
        startup_s = timeout_s
    if lent:
        first_report_s, startup_s = startup_s, whole_start_s(startup_s, timeout_s)
    try:
        return hang_policy(
            timeout_s,
            startup_s,
            Action(line.value("hang_action")),
            startup_grace_s=line.value("startup_grace"),
            section_limits_s=line.value("section_limits"),
            first_report_s=first_report_s,
        )
    except PolicyError as error:
        raise UsageError(error.message, error.hint) from error


def _moot(line: CommandLine, name: str, notices: list[str]) -> None:
    """A limit where nothing is looked for: a slip, but for a setting of ft_launcher's that --hang-timeout outranks."""
    given = line.given[name]
    if given.lent:
        notices.append(f"{given.spelled} changes nothing: {line.as_given('hang_timeout')}")
    elif given.by_user:
        raise UsageError(
            f"--{name.replace('_', '-')} is given, and --hang-timeout off turns the detection off",
            "give one of the two",
        )


def _telemetry(
    line: CommandLine, environment: Mapping[str, str], notices: list[str]
) -> TelemetryConfig | None:
    endpoint = line.value("otlp_endpoint")
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise UsageError(
            f"{line.as_given('otlp_endpoint')} is no URL", "give one such as http://collector:4318"
        )
    config, told = telemetry_config(environment, endpoint, line.value("metrics_port"))
    notices.extend(told)
    return config


def _pty(line: CommandLine, slots: int) -> bool | None:
    """The only rank of a job looks on a terminal as it does without a launcher."""
    if line.value("pty") != "auto":
        return bool(line.value("pty") == "on")
    return None if slots == 1 and line.value("nnodes").maximum == 1 else False


def _virtual(line: CommandLine, environment: Mapping[str, str], slots: int) -> bool:
    """Whether each rank sees one GPU; every rank must find one in CUDA_VISIBLE_DEVICES where that is set."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if not line.value("virtual_local_rank"):
        return False
    if visible is not None and (there := len(visible.split(","))) < slots:
        raise UsageError(
            f"--virtual-local-rank: {slots} ranks need a GPU each, CUDA_VISIBLE_DEVICES={visible} has {there}",
            "give a smaller --nproc-per-node, or name more GPUs",
        )
    return True


def _logs(
    line: CommandLine, environment: Mapping[str, str], run_id: str, slots: int, notices: list[str]
) -> LogsConfig:
    template = Template(environment.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", ""))
    shown = Shown(
        redirects=line.value("redirects"),
        tee=line.value("tee"),
        local_ranks=line.value("local_ranks_filter"),
        stdout_words=line.value("duplicate_stdout_filters"),
        stderr_words=line.value("duplicate_stderr_filters"),
        prefix_template=template.safe_substitute(role_name=line.value("role")),
    )
    logs = LogsConfig((Path(line.value("log_dir")) / run_id).absolute(), shown)
    hidden = shown.hidden(slots)
    if hidden:
        notices.append(f"{hidden} is not shown, it is in {logs.folder}")
    return logs


def _warm_count(given: str | int) -> int | None:
    return given if isinstance(given, int) else {"auto": None, "off": 0}[given]


def _kind(line: CommandLine) -> ProgramKind:
    module, no_python, run_path = (line.value(name) for name in ("module", "no_python", "run_path"))
    if module and (no_python or run_path):
        other = "--run-path" if run_path else "--no-python"
        raise UsageError(f"-m is a module for Python, which {other} rules out", "give one of the two")
    if module:
        return ProgramKind.MODULE
    return ProgramKind.EXECUTABLE if no_python and not run_path else ProgramKind.SCRIPT


def _argv(program: tuple[str, ...], kind: ProgramKind, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Python runs unbuffered (`-u`): output arrives when it is written, and no kill loses any."""
    if kind is ProgramKind.EXECUTABLE:
        return program
    python = environment.get("PYTHON_EXEC") or sys.executable
    return (python, "-u", *(("-m",) if kind is ProgramKind.MODULE else ()), *program)


def _requeue(line: CommandLine, environment: Mapping[str, str], run_id: str) -> tuple[str, ...]:
    """The command that requeues, with the scheduler's number of this job in it; `{attempt}` is known later."""
    text = line.value("requeue_command") or ""
    job = environment.get("SLURM_JOB_ID", "")
    if "{job}" in text and not job:
        raise UsageError(
            f"{line.as_given('requeue_command')}: there is no $SLURM_JOB_ID to put in for {{job}}",
            "start it in a Slurm job, or write the command without {job}",
        )
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{line.as_given('requeue_command')}: {error}", "quote as in a shell") from None
    return tuple(word.replace("{job}", job).replace("{run_id}", run_id) for word in words)


def _launch_id(environment: Mapping[str, str]) -> str | None:
    """What is the same for all nodes of one launch, and another for the next: `<what>.<restart count>`.

    A Slurm allocation can hold many launches, so only a step (`srun`) names one.
    """
    named = environment.get("NVRX_LAUNCH_ID")
    if named:
        return named
    job, step = environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_ID")
    if not job or not step:
        return None
    return f"slurm-{job}-{step}.{environment.get('SLURM_RESTART_COUNT', '0')}"
