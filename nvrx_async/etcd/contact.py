"""The first contact: try every endpoint until one answers, and if none does, say what each address said."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from nvrx_async.etcd.background import scoped
from nvrx_async.etcd.calls import RETRY_PAUSE_S, Caller
from nvrx_async.etcd.config import Endpoint, EtcdConfig, Tls, join_host_port, ssl_context
from nvrx_async.etcd.errors import EtcdError, ForeignClusterError, TlsError, UnavailableError
from nvrx_async.etcd.failures import classify
from nvrx_async.etcd.wire import grpc, messages

if TYPE_CHECKING:
    from nvrx_async.etcd.channel import Connection

_ATTEMPT_S = 2.0
_PROBE_S = 1.0
_OTHERS_S = 0.5
"""How long after the first answer the other endpoints are heard: one may belong to another cluster."""
_TLS_MARK = "TLS: "


async def first_answer(caller: Caller, config: EtcdConfig, timeout_s: float) -> Any:
    """The `StatusResponse` of the first usable endpoint, which is used from then on.

    Who comes anew has no cluster yet to hold an answer against, so endpoints that disagree are refused: it might
    follow the wrong one, and begin the job a second time there.

    Raises:
        UnavailableError, TlsError, AuthenticationError, ForeignClusterError: see `EtcdClient.first_contact`.
    """
    ends_at = anyio.current_time() + timeout_s
    diagnosed = False
    while True:
        left_s = ends_at - anyio.current_time()
        answer, said = await _ask_all(caller, min(_ATTEMPT_S, max(left_s, RETRY_PAUSE_S)))
        if answer is not None:
            return answer
        over = anyio.current_time() + RETRY_PAUSE_S >= ends_at
        if over or not diagnosed:
            evidence = await _diagnose_all(config, said)
            diagnosed = True
            if all(any(line.startswith(_TLS_MARK) for line in lines) for lines in evidence.values()):
                raise TlsError(
                    "etcd is reached, but no TLS handshake succeeds",
                    evidence=_flat(evidence),
                    hint="check the CA file, the client's certificate, and the name in etcd's certificate",
                )
        if over:
            raise UnavailableError(
                f"no etcd endpoint answered within {timeout_s:g} s",
                evidence=_flat(evidence),
                hint="is etcd running there, and reachable from this machine?",
            )
        await anyio.sleep(RETRY_PAUSE_S)


async def _ask_all(caller: Caller, attempt_s: float) -> tuple[Any, dict[Connection, str]]:
    """Ask all endpoints at once; the first good answer wins, if what others say within a moment agrees with it."""
    said: dict[Connection, str] = {}
    refused: list[EtcdError] = []
    answers: list[Any] = []

    async def ask(connection: Connection) -> None:
        with anyio.move_on_after(attempt_s) as attempt:
            try:
                metadata = await caller.prepared(connection)
                request = messages.StatusRequest()
                call = connection.maintenance.Status(request, timeout=attempt_s, metadata=metadata)
                answer = await scoped(call)
            except UnavailableError as error:
                said[connection] = error.evidence[0] if error.evidence else error.cause
                return
            except grpc.aio.AioRpcError as error:
                said[connection] = classify(error, connection.endpoint).detail
                return
            except EtcdError as error:
                said[connection] = error.cause
                refused.append(error)
                return
            if not answers:
                caller.pool.prefer(connection)
                asking.cancel_scope.deadline = anyio.current_time() + _OTHERS_S
            answers.append(answer)
        if attempt.cancelled_caught:
            said[connection] = f"{connection.endpoint}: no answer within {attempt_s:.1f} s"

    async with anyio.create_task_group() as asking:
        for connection in caller.pool.connections:
            asking.start_soon(ask, connection)
    foreign = [error for error in refused if isinstance(error, ForeignClusterError)]
    if foreign:
        raise ForeignClusterError(
            "the etcd endpoints belong to different clusters, or to one of which a part has lost its data",
            evidence=tuple(f"{error.cause}: {'; '.join(error.evidence)}" for error in foreign),
            hint="name the members of one cluster only; is an etcd of another job, or an empty one, at one of them?",
        )
    if not answers and 2 * len(refused) > len(caller.pool.connections):
        raise refused[0]  # what a quorum refuses, the others will not grant
    return (answers[0] if answers else None), said


async def _diagnose_all(config: EtcdConfig, said: dict[Connection, str]) -> dict[Endpoint, tuple[str, ...]]:
    evidence: dict[Endpoint, tuple[str, ...]] = {}
    context = None
    if any(connection.endpoint.secure for connection in said):
        context = await anyio.to_thread.run_sync(ssl_context, config.tls or Tls())
        context.set_alpn_protocols(["h2"])

    async def look(connection: Connection) -> None:
        found = await _diagnose(connection.endpoint, context, config.tls)
        evidence[connection.endpoint] = (f"gRPC: {said[connection]}", *found)

    async with anyio.create_task_group() as looking:
        for connection in said:
            looking.start_soon(look, connection)
    return evidence


async def _diagnose(endpoint: Endpoint, context: ssl.SSLContext | None, tls: Tls | None) -> tuple[str, ...]:
    """Resolve and connect once without gRPC, whose own words hide errno and address behind each other."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM
        )
    except OSError as error:
        return (f"{endpoint}: the name does not resolve: {error.strerror} ({error.errno})",)
    addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
    server_name = (tls.server_name if tls else None) or endpoint.host
    lines = []
    for address in addresses:
        said = await _knock(address, endpoint.port, context if endpoint.secure else None, server_name)
        mark = _TLS_MARK if said.startswith(_TLS_MARK) else ""
        where = join_host_port(address, endpoint.port)
        lines.append(f"{mark}{endpoint} resolves to {where}: {said.removeprefix(_TLS_MARK)}")
    return tuple(lines)


async def _knock(address: str, port: int, context: ssl.SSLContext | None, server_name: str) -> str:
    said = f"nothing answers within {_PROBE_S:g} s (packets are dropped, or the machine is down)"
    with anyio.move_on_after(_PROBE_S):
        try:
            said = await _connect(address, port, context, server_name)
        except ssl.SSLCertVerificationError as error:
            said = f"{_TLS_MARK}its certificate is not trusted: {error.verify_message}"
        except ssl.SSLError as error:
            said = f"{_TLS_MARK}{error.reason or error}"
        except ConnectionResetError:
            where = " in the TLS handshake (does it speak TLS?)" if context else ""
            said = f"it closed the connection{where}"
        except OSError as error:
            said = f"{error.strerror} (errno {error.errno})"
    return said


async def _connect(address: str, port: int, context: ssl.SSLContext | None, server_name: str) -> str:
    reader, writer = await asyncio.open_connection(
        address, port, ssl=context, server_hostname=server_name if context else None
    )
    try:
        if context is None:
            return "it accepts connections, but no etcd answers there (does it want https?)"
        # With TLS 1.3 a refused client certificate shows only when the server's first bytes are read.
        with anyio.move_on_after(_PROBE_S / 2):
            await reader.read(1)
        return "its TLS handshake succeeds, but no etcd answers there"
    finally:
        writer.transport.abort()


def _flat(evidence: dict[Endpoint, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(line.removeprefix(_TLS_MARK) for lines in evidence.values() for line in lines)
