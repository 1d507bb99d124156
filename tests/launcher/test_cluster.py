"""Which etcd and which address an agent takes for its member of the job's own cluster."""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path

import pytest
from support.etcd_server import free_ports

from nvrx_async.etcd import (
    BinaryNotFoundError,
    MemberFolder,
    ServerStartError,
    UnfitVersionError,
    parse_endpoint,
    plan_cluster,
)
from nvrx_async.etcd.owner import Owner
from nvrx_launcher import cluster as module
from nvrx_launcher.cluster import Claim, Occupied, claim, fit_binary
from nvrx_launcher.config import EmbeddedEtcd, EtcdConfig
from nvrx_launcher.reach import reach


def etcds(folder: Path, monkeypatch: pytest.MonkeyPatch, *versions: str) -> list[Path]:
    """Programs that say so, in this order on PATH."""
    made = []
    for version in versions:
        program = folder / version / "etcd"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho etcd Version: {version}\n")
        program.chmod(0o755)
        made.append(program)
    monkeypatch.setenv("PATH", os.pathsep.join(str(one.parent) for one in made))
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    return made


def test_an_unfit_etcd_hides_no_fit_one_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _wheel, old, _new = etcds(tmp_path, monkeypatch, "3.5.1", "3.4.31", "3.5.21")
    assert fit_binary() == (old, "")


def test_where_none_is_fit_the_first_one_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    etcds(tmp_path, monkeypatch, "3.5.1", "3.3.27")
    with pytest.raises(UnfitVersionError, match=r"etcd 3\.5\.1 may lose"):
        fit_binary()
    etcds(tmp_path, monkeypatch)
    with pytest.raises(BinaryNotFoundError):
        fit_binary()


def test_the_first_address_that_is_free_is_taken_and_others_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        busy = listener.getsockname()[1]
        free, other = free_ports(2)
        endpoints = [parse_endpoint(f"127.0.0.1:{port}") for port in (busy, free, other)]
        plan = plan_cluster(endpoints, uuid.uuid4().hex)
        found = claim(plan)
        assert isinstance(found, Claim)
        assert found.own.endpoint.port == free
        held = claim(plan)
        assert isinstance(held, Claim)
        assert claim(plan) == Occupied((f"127.0.0.1:{busy}",)), "what agents hold is no surprise"
        for one in (found, held):
            one.folder.remove()


async def test_data_of_somebody_else_are_an_error_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(name: str, _owner: Owner) -> MemberFolder:
        raise PermissionError(f"{name} belongs to another user")

    monkeypatch.setattr(module.MemberFolder, "take", refused)
    endpoints = tuple(f"127.0.0.1:{port}" for port in free_ports(3))
    with pytest.raises(ServerStartError, match="no place for its data") as caught:
        async with reach(
            EtcdConfig(endpoints, EmbeddedEtcd.AUTO),
            local_address=None,
            job_token=None,
            log_file=tmp_path / "etcd.log",
            say=lambda _: None,
        ):
            pass
    assert "belongs to another user" in str(caught.value)
