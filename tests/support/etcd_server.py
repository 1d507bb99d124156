"""A real etcd that a test can stop, freeze, kill and start again on the same data and ports."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nvrx_async.etcd.wire import grpc, messages, stubs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

READY_S = 20.0

DEFAULT_TIMES = ("--heartbeat-interval=100", "--election-timeout=1000")
_SHORT_TIMES = ("--heartbeat-interval=20", "--election-timeout=200")
"""A member that starts on its old data waits for an election time-out; one alone cannot lose an election."""

_CLUSTER_TIMES = ("--heartbeat-interval=50", "--election-timeout=500")


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class EtcdProcess:
    """One member. Blocking on purpose: call it between awaits, or in a thread."""

    def __init__(
        self, folder: Path, *, name: str = "m0", flags: Sequence[str] = (), secure: bool = False
    ) -> None:
        self.folder = folder
        self.name = name
        self.flags = [*_SHORT_TIMES, *flags]
        self.port, self.peer_port = free_ports(2)
        self.scheme = "https" if secure else "http"
        self.cluster = f"{name}=http://127.0.0.1:{self.peer_port}"
        self.popen: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def data_dir(self) -> Path:
        return self.folder / f"{self.name}.data"

    def start(self, *, wait: bool = True) -> EtcdProcess:
        client, peer = f"{self.scheme}://{self.endpoint}", f"http://127.0.0.1:{self.peer_port}"
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.popen = subprocess.Popen(
                [
                    shutil.which("etcd") or "etcd",
                    f"--name={self.name}",
                    f"--data-dir={self.data_dir}",
                    f"--listen-client-urls={client}",
                    f"--advertise-client-urls={client}",
                    f"--listen-peer-urls={peer}",
                    f"--initial-advertise-peer-urls={peer}",
                    f"--initial-cluster={self.cluster}",
                    "--logger=zap",
                    *self.flags,
                ],
                stdout=log,
                stderr=log,
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        with grpc.insecure_channel(
            self.endpoint, options=[("grpc.initial_reconnect_backoff_ms", 20)]
        ) as channel:
            status = messages.StatusRequest()
            stubs.MaintenanceStub(channel).Status(status, wait_for_ready=True, timeout=READY_S)

    def freeze(self) -> None:
        """Stopped for certain on return: a stop that is only on its way would make tests lie."""
        assert self.popen is not None
        self.popen.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.popen.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        assert self.popen is not None
        self.popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait()
            self.popen = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def make_whole(self) -> None:
        if self.popen is None:
            self.start()
        else:
            self.thaw()

    def wipe(self) -> None:
        shutil.rmtree(self.data_dir)


@contextmanager
def etcd_folder() -> Iterator[Path]:
    """In memory where there is room: tests wait for etcd's disk writes."""
    shm = Path("/dev/shm")
    in_memory = shm.is_dir() and shutil.disk_usage(shm).free > (1 << 30)
    folder = Path(tempfile.mkdtemp(prefix="nvrx-test-etcd-", dir=shm if in_memory else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def etcd_process(*, flags: Sequence[str] = ()) -> Iterator[EtcdProcess]:
    with etcd_folder() as folder:
        server = EtcdProcess(folder, flags=flags).start()
        try:
            yield server
        finally:
            server.kill()


@contextmanager
def etcd_cluster(size: int = 3) -> Iterator[list[EtcdProcess]]:
    with etcd_folder() as folder:
        members = [EtcdProcess(folder, name=f"m{number}", flags=_CLUSTER_TIMES) for number in range(size)]
        cluster = ",".join(member.cluster for member in members)
        try:
            for member in members:
                member.cluster = cluster
                member.start(wait=False)
            for member in members:
                member.wait_ready()
            yield members
        finally:
            for member in members:
                member.kill()


def leader_of(members: Sequence[EtcdProcess]) -> EtcdProcess:
    for member in members:
        with grpc.insecure_channel(member.endpoint) as channel:
            status = stubs.MaintenanceStub(channel).Status(messages.StatusRequest(), timeout=5)
            if status.header.member_id == status.leader:
                return member
    raise AssertionError("no leader")
