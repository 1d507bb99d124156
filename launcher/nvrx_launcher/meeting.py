"""Where nodes meet: one node or many, the run id, etcd's address and secrets, time-outs of meeting."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nvrx_async.job.errors import InvalidNameError
from nvrx_async.job.keys import checked_name
from nvrx_async.rounds.promises import MOST_ASKED
from nvrx_launcher.config import EmbeddedEtcd, EtcdConfig, TlsConfig
from nvrx_launcher.errors import BadValueError, UsageError
from nvrx_launcher.option import Inert, Refused
from nvrx_launcher.options.job import DEFAULT_LAST_CALL_S
from nvrx_launcher.rdzv_conf import CONF_KEYS
from nvrx_launcher.values import DEFAULT_ETCD_PORT, Endpoint, NodeRange, endpoints

if TYPE_CHECKING:
    from nvrx_launcher.command_line import CommandLine

ReadPassword = Callable[[Path], str]
"""Reads a password file; raises UsageError."""
_NAME_SECRETS = ("passw", "pwd", "secret", "token", "credential")
Credentials = tuple[str | None, str | None]
"""User and password of etcd, None where it asks for none."""


class Shape(NamedTuple):
    """How many nodes there are, and whether they are one that is served by a private etcd."""

    standalone: bool
    nodes: NodeRange


def shape(line: CommandLine, notices: list[str]) -> Shape:
    """Whether a private etcd serves one node, and how many nodes there are; raises UsageError."""
    nodes: NodeRange = line.value("nnodes")
    if not line.value("standalone"):
        alone = nodes.maximum == 1 and (not line.value("rdzv_endpoint") or _is_any_local_port(line))
        return Shape(alone, nodes)
    if nodes.minimum > 1:
        raise UsageError(
            f"--standalone is one node, but {line.as_given('nnodes')} asks for {nodes.minimum}",
            "leave --standalone out and name an etcd: --rdzv-endpoint host:2379 --rdzv-id NAME",
        )
    if nodes.maximum > 1:
        notices.append(f"{line.as_given('nnodes')} is taken as one node, because of --standalone")
    if line.value("rdzv_endpoint"):
        notices.append(f"{line.as_given('rdzv_endpoint')} is not used, because of --standalone")
    return Shape(standalone=True, nodes=NodeRange(1, 1))


def _is_any_local_port(line: CommandLine) -> bool:
    """`localhost:0` is how torchrun's users write a private meeting place."""
    found: tuple[Endpoint, ...] = line.value("rdzv_endpoint")
    return len(found) == 1 and found[0].port == 0 and found[0].host in ("localhost", "127.0.0.1", "::1")


def run_id(line: CommandLine, environment: Mapping[str, str], form: Shape) -> str:
    """The job's name; raises UsageError when several nodes have none."""
    given = line.value("rdzv_id")
    if given == "":
        raise UsageError(
            f"{line.given['rdzv_id'].spelled} is empty",
            "give the job a name; is the variable set that should hold it?",
        )
    if given and given != "none":
        return checked("--rdzv-id", given)
    slurm_job = environment.get("SLURM_JOB_ID", "")
    if form.nodes.maximum > 1:
        if slurm_job:
            return checked("SLURM_JOB_ID", slurm_job)
        raise UsageError(
            "several nodes need a name for their job, or they cannot tell it from another one",
            "give the same --rdzv-id NAME on every node (inside Slurm the job's number is taken)",
        )
    return f"run-{secrets.token_hex(4)}"


def checked(what: str, name: str) -> str:
    """A name that can be part of a key and of a file name; raises UsageError."""
    try:
        return checked_name(what, name)
    except InvalidNameError as error:
        raise UsageError(str(error), f"such as {what} my-run.1") from error


def timeouts(line: CommandLine, notices: list[str]) -> dict[str, float]:
    """Time-outs in seconds: an option, else its key in --rdzv-conf; command line before environment."""
    conf = line.given["rdzv_conf"]
    found = {"join_timeout": line.value("join_timeout"), "last_call": DEFAULT_LAST_CALL_S}
    known = {key.name: key for key in CONF_KEYS}
    for name in conf.value:
        shown = "(left out)" if any(word in name for word in _NAME_SECRETS) else conf.value[name]
        key, where = known.get(name), f"{conf.spelled} {name}={shown}"
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


def outage_limit_s(line: CommandLine, form: Shape, notices: list[str]) -> float:
    """How long ranks may outlive their lease's T: not at all in a job so large that nobody could ask everybody."""
    if form.nodes.maximum <= MOST_ASKED:
        return float(line.value("etcd_outage_limit"))
    notices.append(
        f"with more than {MOST_ASKED} nodes ranks stop when etcd is away for longer than --lease-ttl "
        "(--etcd-outage-limit is 0)"
    )
    return 0.0


def _conf_value(parse: Callable[[str], Any], value: str, where: str) -> float:
    try:
        return float(parse(value))
    except BadValueError as error:
        raise UsageError(f"{where}: {error.reason}", error.hint) from error


def etcd(line: CommandLine, secret: Credentials, form: Shape, notices: list[str]) -> EtcdConfig:
    """How etcd is reached; raises UsageError."""
    backend = line.value("rdzv_backend")
    if backend in ("c10d", "static"):
        notices.append(f"{line.as_given('rdzv_backend')} is only a name here: nodes meet in etcd")
    found = () if form.standalone else _endpoints(line, notices)
    if form.standalone:
        _unused_master(line, "a private etcd is used", notices)
    if any(endpoint.port == 0 for endpoint in found):
        raise UsageError(
            f"{line.as_given('rdzv_endpoint')}: port 0 means any port, which other nodes cannot know",
            "write the port of etcd, such as host:2379",
        )
    embedded = EmbeddedEtcd.PRIVATE if form.standalone else EmbeddedEtcd(line.value("etcd_embedded"))
    addresses = tuple(str(endpoint) for endpoint in found)
    return EtcdConfig(addresses, embedded, _tls(line, found), *secret)


def _endpoints(line: CommandLine, notices: list[str]) -> tuple[Endpoint, ...]:
    found: tuple[Endpoint, ...] = line.value("rdzv_endpoint")
    if found:
        _unused_master(line, f"{line.as_given('rdzv_endpoint')} names etcd", notices)
        return found
    host = line.value("master_addr")
    if not host:
        raise UsageError(
            f"{line.as_given('nnodes')}: several nodes need an etcd to meet in",
            "--rdzv-endpoint host:2379, where host is one of the nodes or an etcd of yours",
        )
    port = line.value("master_port") or DEFAULT_ETCD_PORT
    try:
        (endpoint,) = endpoints(f"[{host.strip('[]')}]:{port}" if ":" in host else f"{host}:{port}")
    except (BadValueError, ValueError) as error:
        raise UsageError(f"{line.as_given('master_addr')} is not the name of a host") from error
    notices.append(f"nodes meet in etcd at {endpoint}, as {line.given['master_addr'].spelled} says")
    return (endpoint,)


def _unused_master(line: CommandLine, because: str, notices: list[str]) -> None:
    notices.extend(
        f"{line.as_given(name)} is not used: {because}, and ranks get a free MASTER_PORT each round"
        for name in ("master_addr", "master_port")
        if line.given[name].by_user
    )


def credentials(
    line: CommandLine, environment: Mapping[str, str], read_password: ReadPassword
) -> Credentials:
    """User and password from options, the environment or a file; raises UsageError."""
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


def _tls(line: CommandLine, found: tuple[Endpoint, ...]) -> TlsConfig | None:
    names = ("etcd_cacert", "etcd_cert", "etcd_key")
    ca_file, cert_file, key_file = (Path(line.value(name)) if line.value(name) else None for name in names)
    given = [line.as_given(name) for name in names if line.value(name)]
    if not given and not any(endpoint.secure for endpoint in found):
        return None
    if given and not found:
        raise UsageError(
            f"{given[0]}: the private etcd of a single node speaks no TLS",
            "leave it out, or name an --rdzv-endpoint",
        )
    if (cert_file is None) != (key_file is None):
        missing = "--etcd-key" if key_file is None else "--etcd-cert"
        raise UsageError(
            f"a client certificate needs its key, and the key its certificate: {missing} is missing"
        )
    return TlsConfig(ca_file, cert_file, key_file)
