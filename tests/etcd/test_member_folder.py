"""The folder of a member: held by one process, found again by the next, gone when it is no use."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest

from nvrx_async.etcd import MemberFolder
from nvrx_async.etcd.owner import Owner, boot_id


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


def test_who_looks_for_leftovers_is_not_taken_for_a_holder(name):
    """Looking locks a folder for microseconds: an agent that comes back in that moment must not do without it."""
    folder = MemberFolder.take(name)
    (folder.data / "member" / "wal").mkdir(parents=True)
    path = folder.path
    folder.release()
    program = "import sys; from nvrx_async.etcd.folder import locked; import os, pathlib\nprint(flush=True)\n"
    program += "while True: os.close(locked(pathlib.Path(sys.argv[1])) or os.dup(0))"
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE) as looker:
        looker.stdout.readline()
        for _ in range(50):
            again = MemberFolder.take(name)
            assert again is not None
            again.release()
        looker.kill()
    MemberFolder.take(name).remove()


def test_a_note_tells_whose_it_is_and_goes_with_an_empty_folder(name):
    owner = Owner.this("job-1", "nvrx-abc", ("http://127.0.0.1:1",))
    folder = MemberFolder.take(name, owner)
    assert Owner.read(folder.path) == owner
    assert (owner.pid, owner.boot_id) == (os.getpid(), boot_id())
    folder.release()
    assert not folder.path.exists()
