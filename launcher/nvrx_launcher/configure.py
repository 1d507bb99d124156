"""From a command line to a LaunchConfig: what options mean together. Looks at no file and starts nothing."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nvrx_async.job.errors import InvalidNameError
from nvrx_async.job.keys import checked_name
from nvrx_async.job.records import JobSpec
from nvrx_launcher.command_line import CommandLine
from nvrx_launcher.config import (
    KILL_TIME_S,
    EmbeddedEtcd,
    EtcdConfig,
    LaunchConfig,
    LogsConfig,
    NodeConfig,
    ProgramKind,
    TlsConfig,
    WorkersConfig,
)
from nvrx_launcher.errors import BadValueError, UsageError
from nvrx_launcher.option import Inert, Refused
from nvrx_launcher.options import DEFAULT_LAST_CALL_S
from nvrx_launcher.rdzv_conf import CONF_KEYS
from nvrx_launcher.values import DEFAULT_ETCD_PORT, Endpoint, NodeRange, endpoints

CountSlots = Callable[[str], int]
"""Turns `gpu`, `cpu` or `auto` into a number of ranks; raises UsageError."""
ReadPassword = Callable[[Path], str]
"""Reads a password file; raises UsageError."""


def configure(
    line: CommandLine, environment: Mapping[str, str], count_slots: CountSlots, read_password: ReadPassword
) -> LaunchConfig:
    """The whole configuration of a launch.

    Raises:
        UsageError: options contradict each other, or one is missing.
    """
    notices = list(line.notices)
    standalone, nodes = _shape(line, notices)
    run_id = _run_id(line, environment, standalone, nodes)
    timeouts = _timeouts(line, notices)
    slots = line.value("nproc_per_node")
    slots = count_slots(slots) if isinstance(slots, str) else slots
    credentials = _credentials(line, environment, read_password)
    return LaunchConfig(
        run_id=run_id,
        job=JobSpec(
            command=("-m", *line.program) if line.value("module") else line.program,
            min_nodes=nodes.minimum,
            max_nodes=nodes.maximum,
            max_restarts=line.value("max_restarts"),
            lease_ttl_s=line.value("lease_ttl"),
            kill_time_s=KILL_TIME_S,
            outage_limit_s=0.0,
            join_timeout_s=timeouts["join_timeout"],
            last_call_s=timeouts["last_call"],
        ),
        etcd=_etcd(line, credentials, standalone, nodes, notices),
        node=_node(line, environment, slots),
        workers=_workers(line, environment, slots, notices),
        logs=LogsConfig((Path(line.value("log_dir")) / run_id).absolute()),
        launch_id=_launch_id(environment),
        notices=tuple(notices),
    )


def _shape(line: CommandLine, notices: list[str]) -> tuple[bool, NodeRange]:
    """Whether a private etcd serves one node, and how many nodes there are."""
    nodes: NodeRange = line.value("nnodes")
    if not line.value("standalone"):
        alone = nodes.maximum == 1 and (not line.value("rdzv_endpoint") or _is_any_local_port(line))
        return alone, nodes
    if nodes.minimum > 1:
        raise UsageError(
            f"--standalone is one node, but {_as_given(line, 'nnodes')} asks for {nodes.minimum}",
            "leave --standalone out and name an etcd: --rdzv-endpoint host:2379 --rdzv-id NAME",
        )
    if nodes.maximum > 1:
        notices.append(f"{_as_given(line, 'nnodes')} is taken as one node, because of --standalone")
    if line.value("rdzv_endpoint"):
        notices.append(f"{_as_given(line, 'rdzv_endpoint')} is not used, because of --standalone")
    return True, NodeRange(1, 1)


def _is_any_local_port(line: CommandLine) -> bool:
    """`localhost:0` is how torchrun's users write a private meeting place."""
    found: tuple[Endpoint, ...] = line.value("rdzv_endpoint")
    return len(found) == 1 and found[0].port == 0 and found[0].host in ("localhost", "127.0.0.1", "::1")


def _run_id(line: CommandLine, environment: Mapping[str, str], standalone: bool, nodes: NodeRange) -> str:
    given = line.value("rdzv_id")
    if given and given != "none":
        return _checked("--rdzv-id", given)
    slurm_job = environment.get("SLURM_JOB_ID", "")
    if not standalone and nodes.maximum > 1:
        if slurm_job:
            return _checked("SLURM_JOB_ID", slurm_job)
        raise UsageError(
            "several nodes need a name for their job, or they cannot tell it from another one",
            "give the same --rdzv-id NAME on every node (inside Slurm the job's number is taken)",
        )
    return f"run-{secrets.token_hex(4)}"


def _checked(what: str, name: str) -> str:
    try:
        return checked_name(what, name)
    except InvalidNameError as error:
        raise UsageError(str(error), f"such as {what} my-run.1") from error


def _timeouts(line: CommandLine, notices: list[str]) -> dict[str, float]:
    """Time-outs in seconds: an option, else its key in --rdzv-conf; the command line before the environment."""
    conf = line.given["rdzv_conf"]
    found = {"join_timeout": line.value("join_timeout"), "last_call": DEFAULT_LAST_CALL_S}
    known = {key.name: key for key in CONF_KEYS}
    for name in conf.value:
        key, where = known.get(name), f"{conf.spelled} {name}={conf.value[name]}"
        if key is None:
            raise UsageError(f"{where}: no such key", f"one of: {', '.join(known)}")
        if isinstance(key.status, Refused):
            raise UsageError(f"{where}: {key.status.reason}", key.status.hint)
        if isinstance(key.status, Inert):
            notices.append(f"{where} changes nothing: {key.status.line}")
            continue
        option = line.given.get(key.option)
        if name == "timeout" and "join_timeout" in conf.value:
            notices.append(f"{where} is not used, because join_timeout is given")
        elif option is not None and option.by_user and option.source >= conf.source:
            notices.append(f"{where} is not used, because {option.spelled} is given")
        else:
            found[key.option] = _conf_value(key.parse, conf.value[name], where)
    return found


def _conf_value(parse: Callable[[str], Any], value: str, where: str) -> float:
    try:
        return float(parse(value))
    except BadValueError as error:
        raise UsageError(f"{where}: {error.reason}", error.hint) from error


def _etcd(
    line: CommandLine,
    credentials: tuple[str | None, str | None],
    standalone: bool,
    nodes: NodeRange,
    notices: list[str],
) -> EtcdConfig:
    backend = line.value("rdzv_backend")
    if backend in ("c10d", "static"):
        notices.append(f"{_as_given(line, 'rdzv_backend')} is only a name here: nodes meet in etcd")
    found = () if standalone else _endpoints(line, nodes, notices)
    if standalone:
        _unused_master(line, "a private etcd is used", notices)
    if any(endpoint.port == 0 for endpoint in found):
        raise UsageError(
            f"{_as_given(line, 'rdzv_endpoint')}: port 0 means any port, which other nodes cannot know",
            "write the port of etcd, such as host:2379",
        )
    embedded = EmbeddedEtcd.PRIVATE if standalone else EmbeddedEtcd(line.value("etcd_embedded"))
    addresses = tuple(str(endpoint) for endpoint in found)
    return EtcdConfig(addresses, embedded, _tls(line, found, standalone), *credentials)


def _endpoints(line: CommandLine, nodes: NodeRange, notices: list[str]) -> tuple[Endpoint, ...]:
    found: tuple[Endpoint, ...] = line.value("rdzv_endpoint")
    if found:
        _unused_master(line, f"{_as_given(line, 'rdzv_endpoint')} names etcd", notices)
        return found
    host = line.value("master_addr")
    if not host:
        raise UsageError(
            f"{nodes.minimum if nodes.minimum > 1 else nodes.maximum} nodes need an etcd to meet in",
            "--rdzv-endpoint host:2379, where host is one of the nodes or an etcd of yours",
        )
    port = line.value("master_port") or DEFAULT_ETCD_PORT
    try:
        (endpoint,) = endpoints(f"[{host.strip('[]')}]:{port}" if ":" in host else f"{host}:{port}")
    except (BadValueError, ValueError) as error:
        raise UsageError(f"{_as_given(line, 'master_addr')} is not the name of a host") from error
    notices.append(f"nodes meet in etcd at {endpoint}, as {line.given['master_addr'].spelled} says")
    return (endpoint,)


def _unused_master(line: CommandLine, because: str, notices: list[str]) -> None:
    for name in ("master_addr", "master_port"):
        if line.given[name].by_user:
            notices.append(
                f"{_as_given(line, name)} is not used: {because}, and ranks get a free MASTER_PORT each round"
            )


def _credentials(
    line: CommandLine, environment: Mapping[str, str], read_password: ReadPassword
) -> tuple[str | None, str | None]:
    user, password_file = line.value("etcd_user"), line.value("etcd_password_file")
    if not user:
        if password_file:
            raise UsageError("--etcd-password-file is given without a user", "add --etcd-user NAME")
        return None, None
    if ":" in user:
        raise UsageError(
            "--etcd-user takes no password, other users of this machine could read it",
            "put it into NVRX_ETCD_PASSWORD or a file: --etcd-password-file FILE",
        )
    password = read_password(Path(password_file)) if password_file else environment.get("NVRX_ETCD_PASSWORD")
    if not password:
        raise UsageError(
            f"--etcd-user {user} has no password", "set NVRX_ETCD_PASSWORD, or give --etcd-password-file FILE"
        )
    return user, password


def _tls(line: CommandLine, found: tuple[Endpoint, ...], standalone: bool) -> TlsConfig | None:
    names = ("etcd_cacert", "etcd_cert", "etcd_key")
    ca_file, cert_file, key_file = (Path(line.value(name)) if line.value(name) else None for name in names)
    given = [_as_given(line, name) for name in names if line.value(name)]
    if not given and not any(endpoint.secure for endpoint in found):
        return None
    if standalone and given:
        raise UsageError(
            f"{given[0]}: the private etcd of a single node speaks no TLS", "leave it out, or name an --rdzv-endpoint"
        )
    if (cert_file is None) != (key_file is None):
        missing = "--etcd-key" if key_file is None else "--etcd-cert"
        raise UsageError(f"a client certificate needs its key, and the key its certificate: {missing} is missing")
    return TlsConfig(ca_file, cert_file, key_file)


def _node(line: CommandLine, environment: Mapping[str, str], slots: int) -> NodeConfig:
    order = line.value("node_rank")
    slurm_order = environment.get("SLURM_NODEID", "")
    if order is None and slurm_order.isdigit():
        order = int(slurm_order)
    node_id = line.value("node_id")
    return NodeConfig(
        slots=slots,
        node_id=_checked("--node-id", node_id) if node_id else None,
        order=order,
        address=line.value("local_addr") or None,
    )


def _workers(
    line: CommandLine, environment: Mapping[str, str], slots: int, notices: list[str]
) -> WorkersConfig:
    alone = slots == 1 or "OMP_NUM_THREADS" in environment
    if not alone:
        notices.append("OMP_NUM_THREADS is set to 1 for each rank, as torchrun does; set it yourself to change that")
    kind = _kind(line)
    return WorkersConfig(
        argv=_argv(line.program, kind, environment),
        kind=kind,
        program=line.program[0],
        role=line.value("role"),
        stop_timeout_s=line.value("workers_stop_timeout"),
        startup_grace_s=line.value("startup_grace"),
        omp_num_threads=None if alone else 1,
    )


def _kind(line: CommandLine) -> ProgramKind:
    module, no_python, run_path = (line.value(name) for name in ("module", "no_python", "run_path"))
    if module and (no_python or run_path):
        other = "--run-path" if run_path else "--no-python"
        raise UsageError(f"-m is a module for Python, which {other} rules out", "give one of the two")
    if module:
        return ProgramKind.MODULE
    return ProgramKind.EXECUTABLE if no_python and not run_path else ProgramKind.SCRIPT


def _argv(program: tuple[str, ...], kind: ProgramKind, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Python runs unbuffered (`-u`), so that output arrives when it is written and none is lost with a kill."""
    if kind is ProgramKind.EXECUTABLE:
        return program
    python = environment.get("PYTHON_EXEC") or sys.executable
    return (python, "-u", *(("-m",) if kind is ProgramKind.MODULE else ()), *program)


def _launch_id(environment: Mapping[str, str]) -> str | None:
    job = environment.get("SLURM_JOB_ID")
    return f"slurm-{job}-{environment.get('SLURM_RESTART_COUNT', '0')}" if job else None


def _as_given(line: CommandLine, name: str) -> str:
    """An option as its giver wrote it, for messages."""
    one = line.given[name]
    joint = "=" if one.spelled.isupper() else " "
    return f"{one.spelled}{joint}{one.text}" if one.text else one.spelled
