"""etcd: the program on this machine, and the server that jobs meet in."""

from __future__ import annotations

import http.client
import ssl
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC
from email.utils import parsedate_to_datetime

import anyio.to_thread

from nvrx_async.etcd import BinaryNotFoundError, EtcdError, find_binary
from nvrx_async.etcd.client import Status
from nvrx_async.etcd.config import parse_endpoint
from nvrx_launcher.ctl.checks.finding import Finding, Grade, numbers
from nvrx_launcher.ctl.errors import NoEtcdError
from nvrx_launcher.ctl.place import EtcdOptions, connected, places
from nvrx_launcher.errors import LauncherError

GOOD_CLUSTER = ((3, 4, 31), (3, 5, 13), (3, 6, 0))
"""First release of each line in which a stuck old leader cannot end all leases early (etcd issue 15247)."""
LOST_WRITES = ((3, 5, 0), (3, 5, 3))
"""Committed writes may be lost when members are killed: from the first up to, not with, the second."""
SLOW_MS = 50.0
LARGE_BYTES = 1 << 30
CLOCK_S = 2.0
"""HTTP tells whole seconds: less cannot be told from nothing."""
WITHIN_S = 3.0


async def etcd_findings(options: EtcdOptions) -> list[Finding]:
    """The program, then each etcd that jobs use."""
    found = [await anyio.to_thread.run_sync(_program)]
    try:
        known = await places(options)
    except NoEtcdError as error:
        return [*found, Finding("etcd server", Grade.NOTE, error.message, error.hint)]
    for place in known:
        found += await _server(options, place.endpoints)
    return found


def _program() -> Finding:
    try:
        path = find_binary()
    except BinaryNotFoundError as error:
        return Finding(
            "etcd program", Grade.WARN, "none: this node cannot start an etcd of its own", error.hint
        )
    done = subprocess.run(
        [str(path), "--version"], capture_output=True, text=True, check=False, timeout=WITHIN_S
    )
    words = done.stdout.split()
    version = words[2] if len(words) > 2 else "of an unknown version"  # noqa: PLR2004 - "etcd Version: X"
    return _of_version("etcd program", version, f"{path}, {version}")


def _of_version(what: str, version: str, text: str) -> Finding:
    """A single server is fine with each; for a cluster it has to be a good one."""
    parsed = numbers(version)
    if LOST_WRITES[0] <= parsed < LOST_WRITES[1]:
        hint = "killed members may lose committed writes: for a single server only, else 3.5.13 or newer"
        return Finding(what, Grade.WARN, text, hint)
    if any(parsed[:2] == good[:2] and parsed < good for good in GOOD_CLUSTER):
        hint = "good for a single server; for a cluster take 3.4.31, 3.5.13 or newer (etcd issue 15247)"
        return Finding(what, Grade.NOTE, text, hint)
    return Finding(what, Grade.OK, text)


async def _server(options: EtcdOptions, endpoints: tuple[str, ...]) -> list[Finding]:
    where = ", ".join(endpoints)
    try:
        async with connected(options, endpoints) as client:
            await client.status()
            began_s = time.monotonic()
            status = await client.status()
            took_ms = (time.monotonic() - began_s) * 1000
    except (EtcdError, LauncherError) as error:
        message = " ".join(error.message.split())
        return [Finding("etcd server", Grade.BAD, f"{where}: {message}", error.hint)]
    found = list(_of_status(status, where, took_ms))
    skew = await anyio.to_thread.run_sync(_skew_s, endpoints[0], bool(options.cacert or options.cert))
    return [*found, _clock(skew)]


def _of_status(status: Status, where: str, took_ms: float) -> Iterator[Finding]:
    yield _of_version(
        "etcd server", status.version, f"{where}, {status.version}, answers in {took_ms:.1f} ms"
    )
    if not status.leader:
        yield Finding(
            "etcd leader",
            Grade.BAD,
            "the cluster has none",
            "more than half of its members must be up and reach each other",
        )
    if took_ms > SLOW_MS:
        yield Finding(
            "etcd speed", Grade.WARN, f"{took_ms:.0f} ms", "a slow disk or network delays every restart"
        )
    size = status.db_size_bytes
    if size > LARGE_BYTES:
        text = f"{size >> 20} MiB; etcd refuses writes at 2 GiB unless it was told otherwise"
        yield Finding(
            "etcd size", Grade.WARN, text, "nvrx gc removes old jobs; then etcdctl compact and defrag"
        )
    else:
        yield Finding("etcd size", Grade.OK, f"{size >> 10} KiB")


def _skew_s(endpoint: str, secure: bool) -> float | None:  # noqa: FBT001 - which of two protocols
    """This clock minus etcd's, by the date that its HTTP side tells; None where it tells none."""
    at = parse_endpoint(endpoint)
    if secure or at.secure:
        context = ssl._create_unverified_context()  # noqa: S323, SLF001 - the date is all that is asked for
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            at.host, at.port, timeout=WITHIN_S, context=context
        )
    else:
        connection = http.client.HTTPConnection(at.host, at.port, timeout=WITHIN_S)
    try:
        connection.request("GET", "/version")
        told = connection.getresponse().headers.get("Date")
        here_s = time.time()
        return here_s - parsedate_to_datetime(told).astimezone(UTC).timestamp() if told else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def _clock(skew_s: float | None) -> Finding:
    if skew_s is None:
        return Finding("clock", Grade.NOTE, "etcd's HTTP side tells no time to compare with")
    if abs(skew_s) > CLOCK_S:
        text = f"{abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} etcd's"
        hint = "times in events and waterfalls will be wrong by that (decisions do not use them): set up NTP or chrony"
        return Finding("clock", Grade.WARN, text, hint)
    return Finding("clock", Grade.OK, f"within {CLOCK_S:g} s of etcd's")
