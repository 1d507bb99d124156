"""`nvrx gc` and a job whose agents nobody sees: it may train on, cut off from etcd."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
from support.etcd_server import EtcdProcess
from support.etcd_view import EtcdView
from support.nvrx_cli import nvrx
from support.recorded_world import write_world

from nvrx_async.etcd import EtcdClient, EtcdConfig
from nvrx_async.etcd.member_folder import MEMBER_PREFIX
from nvrx_async.etcd.owner import Owner
from nvrx_async.etcd.types import Delete, Scope, Txn
from nvrx_async.job.keys import AttemptKeys


def test_a_job_without_an_outcome_is_left_alone_unless_the_person_knows_better(etcd: EtcdProcess) -> None:
    async def write() -> None:
        async with EtcdClient(EtcdConfig((etcd.endpoint,))) as client:
            await write_world(client, "cut-off", 600)
            await client.commit(Txn((), (Delete(AttemptKeys("cut-off", 0).nodes),)))

    anyio.run(write)
    held = EtcdView(etcd.endpoint)
    assert "cut-off" not in nvrx("gc", "--older-than", "1s", "--yes", etcd=etcd.endpoint).out
    assert held.job("cut-off")
    assert "cut-off  abandoned" in nvrx("gc", "--older-than", "1s", "--abandoned", etcd=etcd.endpoint).out
    assert held.job("cut-off")
    nvrx("gc", "--older-than", "1s", "--abandoned", "--yes", etcd=etcd.endpoint)
    assert not held.job("cut-off")


def test_what_etcd_of_a_killed_agent_left_is_listed_and_removed_without_an_etcd(
    etcd: EtcdProcess, tmp_path: Path
) -> None:
    folder = tmp_path / f"{MEMBER_PREFIX}{os.getuid()}-nvrx-abc-1"
    (folder / "data").mkdir(parents=True)
    Owner.this("job-7", "nvrx-abc").write(folder)
    listed = nvrx("gc", etcd=etcd.endpoint, TMPDIR=str(tmp_path))
    assert (
        f"{folder}  etcd data of job-7, 0 MB: would be removed, its agent (pid {os.getpid()}) is dead"
        in listed.out
    )
    assert "--yes removes them" in listed.plain
    looked = nvrx("doctor", etcd=etcd.endpoint, TMPDIR=str(tmp_path))
    assert "of agents that were killed" in looked.plain
    assert "nvrx gc --yes" in looked.plain
    away = nvrx("gc", "--yes", etcd="127.0.0.1:1", TMPDIR=str(tmp_path))
    assert f"{folder}  etcd data of job-7, 0 MB: removed" in away.out, "it needs no etcd"
    assert (away.code, "no etcd endpoint answered" in away.err) == (3, True), (
        "but one that is named is told of"
    )
    assert not folder.exists()


def test_scope_of_a_job_ends_where_the_next_name_begins() -> None:
    assert not Scope("/nvrx/v1/a/", prefix=True).covers("/nvrx/v1/a-2/current")
