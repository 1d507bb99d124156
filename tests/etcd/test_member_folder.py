"""The folder of a member: held by one process, found again by the next, gone when it is no use."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid

import pytest

from nvrx_async.etcd import MemberFolder


@pytest.fixture
def name():
    return f"test-{uuid.uuid4().hex}"


def test_one_holder_at_a_time(name):
    folder = MemberFolder.take(name)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert MemberFolder.take(name) is None
    folder.remove()
    assert not folder.path.exists()
    again = MemberFolder.take(name)
    assert again is not None
    again.release()
    assert not again.path.exists(), "it held nothing"


def test_a_killed_holder_leaves_its_data_to_the_next(name):
    program = (
        "import sys; from nvrx_async.etcd import MemberFolder; folder = MemberFolder.take(sys.argv[1]);"
        "(folder.data / 'member' / 'wal').mkdir(parents=True); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        holder.stdout.readline()
        assert MemberFolder.take(name) is None
        holder.kill()
    folder = MemberFolder.take(name)
    assert folder.has_data
    folder.wipe()
    assert not folder.has_data
    folder.remove()


def test_what_nobody_came_back_for_is_removed(name):
    folder = MemberFolder.take(name)
    (folder.data / "member" / "wal").mkdir(parents=True)
    old = time.time() - 7200
    for path in (*folder.path.rglob("*"), folder.path):
        os.utime(path, (old, old))
    other = MemberFolder.take(f"{name}-other")
    assert folder.path.exists(), "it is held"
    other.release()
    folder.release()
    MemberFolder.take(f"{name}-other").release()
    assert not folder.path.exists()
