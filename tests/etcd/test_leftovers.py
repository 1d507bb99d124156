"""Data of killed agents' etcd: removed at once where nobody can want them again, and never a living one's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from nvrx_async.etcd import leftovers
from nvrx_async.etcd.folder import PRIVATE_PREFIX
from nvrx_async.etcd.leftovers import Fate, remove, remove_left, survey
from nvrx_async.etcd.member_folder import MEMBER_PREFIX
from nvrx_async.etcd.owner import Owner, boot_id, network

HOLD = (
    "import fcntl, os, sys; lock = os.open(sys.argv[1], os.O_RDONLY); fcntl.flock(lock, fcntl.LOCK_EX);"
    "print(flush=True); sys.stdin.read()"
)


def left(base: Path, owner: Owner | None, name: str = f"{MEMBER_PREFIX}{os.getuid()}-nvrx-abc-1") -> Path:
    """The folder of a member whose agent is dead."""
    folder = base / name
    (folder / "data" / "member" / "wal").mkdir(parents=True)
    (folder / "data" / "member" / "wal" / "0").write_bytes(bytes(1 << 20))
    if owner is not None:
        owner.write(folder)
    return folder


def owner(peers: tuple[str, ...] = (), **other: object) -> Owner:
    told = {"job": "job-1", "pid": 1, "boot_id": boot_id(), "network": network(), "token": "nvrx-abc"}
    return Owner(**{**told, "peers": peers, **other})  # type: ignore[arg-type]


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def peer(answer: bytes | None) -> Iterator[str]:
    """What may be a member: it answers with this, or not at all."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer or b"")

        def log_message(self, *_: object) -> None:
            pass

    if answer is None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            yield f"http://127.0.0.1:{silent.getsockname()[1]}"
        return
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


def fate(base: Path, spare: str = "") -> Fate:
    (found,) = survey(places=[base], spare=spare)
    return found.fate


def test_what_a_dead_agent_left_for_nobody_goes_at_once(tmp_path: Path) -> None:
    folder = left(tmp_path, owner((closed_port(), closed_port())))
    private = left(tmp_path, owner(), f"{PRIVATE_PREFIX}x")
    removed = remove_left(places=[tmp_path, tmp_path])
    assert {one.path for one in removed} == {folder, private}
    assert all(one.size_bytes >= 1 << 20 for one in removed)
    assert all(one.job == "job-1" for one in removed)
    assert list(tmp_path.iterdir()) == []


def test_a_held_folder_stays_whatever_its_note_says(tmp_path: Path) -> None:
    folder = left(tmp_path, owner(pid=2**22 + 1))
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        (found,) = survey(places=[tmp_path])
        assert found.fate is Fate.HELD
        assert remove_left(places=[tmp_path]) == ()
        assert not remove(found), "nor if it was looked at before"
        holder.kill()
    assert remove_left(places=[tmp_path])


@pytest.mark.skipif(os.getuid() != 0, reason="makes a pid namespace")
def test_a_holder_in_another_pid_namespace_counts(tmp_path: Path) -> None:
    folder = left(tmp_path, owner())
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        if not holder.stdout.readline():
            pytest.skip("pid namespaces may not be made here")
        assert fate(tmp_path) is Fate.HELD
        holder.communicate()  # its standard input ends, and with it what holds the folder
    assert fate(tmp_path) is Fate.LEFT


@pytest.mark.parametrize("answer", [b'[{"name":"nvrx-abc-host-1"}]', b"not json", None])
def test_data_are_kept_for_an_agent_whose_cluster_may_be_up(tmp_path: Path, answer: bytes | None) -> None:
    with peer(answer) as url:
        left(tmp_path, owner((closed_port(), url)))
        assert fate(tmp_path) is Fate.AWAITED


def test_another_clusters_member_at_a_peers_address_keeps_nothing(tmp_path: Path) -> None:
    with peer(b'[{"name":"nvrx-other-host-1"},{"name":""}]') as url:
        left(tmp_path, owner((url,)))
        assert fate(tmp_path) is Fate.LEFT


def test_with_tls_who_listens_may_be_a_member(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left(tmp_path, owner((f"https://127.0.0.1:{listener.getsockname()[1]}",)))
        assert fate(tmp_path) is Fate.AWAITED


def test_the_starting_jobs_own_data_are_its_members(tmp_path: Path) -> None:
    left(tmp_path, owner((closed_port(),)))
    assert fate(tmp_path, spare="nvrx-abc") is Fate.AWAITED
    assert fate(tmp_path, spare="nvrx-xyz") is Fate.LEFT


def test_where_a_lock_proves_nothing_age_must(tmp_path: Path) -> None:
    """Of another boot, which may be another machine's, of another network, or of nobody knows whom."""
    unsure = [owner(boot_id="another"), owner((closed_port(),), network="net:[1]"), None]
    folders = [left(tmp_path / f"{n}", who) for n, who in enumerate(unsure)]
    for number in range(3):
        assert fate(tmp_path / f"{number}") is Fate.UNKNOWN
    old = time.time() - 7200
    for folder in folders:
        for path in (*folder.rglob("*"), folder):
            os.utime(path, (old, old))
    assert [fate(tmp_path / f"{n}") for n in range(3)] == [Fate.LEFT, Fate.UNKNOWN, Fate.LEFT]


def test_a_folder_that_somebody_else_took_meanwhile_stays(tmp_path: Path) -> None:
    folder = left(tmp_path, owner())
    (found,) = survey(places=[tmp_path])
    folder.rename(tmp_path / "away")
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert not remove(found)
        holder.communicate()
    assert folder.exists()


def test_a_removal_that_was_cut_short_is_ended_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(tmp_path, owner())
    with monkeypatch.context() as killed:
        killed.setattr(leftovers.shutil, "rmtree", lambda *_args, **_named: None)
        assert remove_left(places=[tmp_path]) == ()
    assert len(list(tmp_path.iterdir())) == 1
    assert len(remove_left(places=[tmp_path])) == 1
    assert list(tmp_path.iterdir()) == []
