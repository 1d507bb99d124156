"""Who can be proven dead across containers: only where nothing that was started holds the name any more."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress

import pytest
from keeper_kit import Bench, death, processes

from nvrx_async.job.records import Node, Process
from nvrx_launcher import life_sign, sweep
from nvrx_launcher.keeper_events import RankStarted
from nvrx_launcher.keeper_link import Keeper
from nvrx_launcher.life_sign import LifeSign, is_heard
from nvrx_launcher.sweep import Verdict, prove_dead, this_process


@pytest.fixture
def tag() -> str:
    return f"job/{uuid.uuid4().hex}"


@pytest.fixture
def sign(tag: str) -> Iterator[LifeSign]:
    made = LifeSign(tag)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "KILL_TIME_S", 0.05)
    monkeypatch.setattr(sweep, "_DYING_S", 0.05)


def node(process: Process) -> Node:
    return Node("a", "a-1", "host", "10.0.0.1", 1, process, "")


def in_another_container(own_tag: str, **changes: object) -> Node:
    here = this_process(own_tag, life_sign.network_namespace())
    return node(dataclasses.replace(here, **{"pid_namespace": "pid:[4026532999]", "pid": 1, **changes}))


def test_silence_in_the_same_boot_and_network_proves_death(tag: str) -> None:
    proof = prove_dead(in_another_container(tag), "job")
    assert proof.verdict is Verdict.DEAD
    assert proof.evidence.startswith(
        "its process (pid 1) was in another container of this pod or host, and no process"
    )


def test_who_is_heard_lives_however_often_one_asks(tag: str, sign: LifeSign) -> None:
    assert sign.descriptor is not None
    assert sign.descriptor >= 100
    for _ in range(10):  # more than the queue of those who wait to be heard takes
        assert prove_dead(in_another_container(tag), "job").verdict is Verdict.UNKNOWN
    sign.close()
    assert prove_dead(in_another_container(tag), "job").verdict is Verdict.DEAD


@pytest.mark.parametrize(
    "changes",
    [
        {"boot_id": "another machine"},
        {"net_namespace": "net:[1]"},
        {"net_namespace": ""},  # it had no sign of life, or was of a version that knew none
        {"pid_namespace": sweep.INITIAL_PID_NAMESPACE},  # what it started does not end with any container
        {"tag": "other-job/1"},
    ],
)
def test_elsewhere_silence_proves_nothing(
    tag: str, changes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_pid_namespace", lambda: "pid:[4026532998]")
    assert prove_dead(in_another_container(tag, **changes), "job").verdict is Verdict.UNKNOWN


def test_one_that_is_heard_again_a_moment_later_is_not_dead(
    tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = iter([False, True])
    monkeypatch.setattr(life_sign, "is_heard", lambda _: next(heard))
    assert prove_dead(in_another_container(tag), "job").verdict is Verdict.UNKNOWN


async def test_keeper_and_ranks_hold_the_name_and_are_the_last_to(tmp_path, tag: str, sign: LifeSign) -> None:
    async with Keeper.start(1, tag, life_sign=sign.descriptor) as keeper:
        b = Bench(keeper, tmp_path, tag)
        b.run("trap '' TERM; echo up; exec sleep 1000")
        rank = (await b.until(RankStarted)).pid
        await b.wait_for_line("up")
        sign.close()  # as the death of the agent does
        os.kill(keeper.pid, signal.SIGSTOP)
        assert is_heard(tag)
        links = []
        for fd in os.listdir(f"/proc/{rank}/fd"):
            with suppress(FileNotFoundError):  # of a library that `sleep` has just been loading
                links.append(os.readlink(f"/proc/{rank}/fd/{fd}"))
        assert sum(link.startswith("socket:") for link in links) == 1, links
        os.kill(keeper.pid, signal.SIGKILL)
        await death(rank)
        assert not is_heard(tag)


def test_a_child_that_the_agent_itself_starts_does_not_hold_it(tag: str, sign: LifeSign) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        sign.close()
        assert not is_heard(tag)
        assert processes.read_stat(child.pid) is not None
        child.communicate(b"\n")


def test_a_name_that_is_taken_costs_the_proof_only(tag: str, sign: LifeSign) -> None:
    second = LifeSign(tag)
    assert (second.descriptor, second.net_namespace) == (None, "")
    second.close()
