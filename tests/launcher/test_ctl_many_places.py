"""`nvrx ps` where several jobs of this machine have an etcd of their own, and not all of these answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nvrx_async.etcd import UnavailableError
from nvrx_async.job.codec import encode
from nvrx_async.job.records import Node, Process
from nvrx_async.job.status import JobState, JobStatus
from nvrx_launcher import known_agents
from nvrx_launcher.ctl import look
from nvrx_launcher.ctl.errors import SeveralJobsError
from nvrx_launcher.ctl.past import or_past
from nvrx_launcher.ctl.place import EtcdOptions, Place, place_of
from nvrx_launcher.ctl.screen import Screen, screen_for

HERE, GONE = Place(("here:1",), ("a",)), Place(("gone:2",), ("b", "c"))


def among(monkeypatch: pytest.MonkeyPatch, known: Sequence[Place]) -> None:
    async def places(_: EtcdOptions) -> Sequence[Place]:
        return known

    @asynccontextmanager
    async def connected(_: EtcdOptions, endpoints: tuple[str, ...]) -> AsyncIterator[tuple[str, ...]]:
        yield endpoints

    async def summaries(endpoints: tuple[str, ...]) -> list[JobStatus]:
        if endpoints == GONE.endpoints:
            raise UnavailableError("no etcd endpoint answered")
        return [JobStatus("a", 0, JobState.RUNNING, "", "", (), 0, 1, 1, 1)]

    monkeypatch.setattr(look, "places", places)
    monkeypatch.setattr(look, "connected", connected)
    monkeypatch.setattr(look, "summaries", summaries)


@pytest.mark.parametrize("known", [(GONE, HERE), (HERE, GONE)])
async def test_an_etcd_that_is_silent_hides_no_job_of_another(known, monkeypatch, capsys):
    among(monkeypatch, known)
    assert await look.ps(EtcdOptions(()), screen_for("table")) == 0
    told = capsys.readouterr()
    assert "a    running" in told.out
    assert "no etcd endpoint answered for b, c (gone:2)" in told.err


async def test_where_none_answers_that_is_the_answer(monkeypatch):
    among(monkeypatch, (GONE, GONE))
    with pytest.raises(UnavailableError):
        await look.all_jobs(EtcdOptions(()))


@pytest.mark.parametrize(
    ("neighbour", "named", "code"), [("other", "", 0), ("mine", "", 3), ("other", "127.0.0.1:1", 3)]
)
async def test_the_silent_etcd_of_another_job_is_no_failure_where_the_history_answers(
    monkeypatch, tmp_path: Path, capsys, neighbour: str, named: str, code: int
):
    """Somebody's agent is left behind on this machine, without its etcd."""
    agent = known_agents.KnownAgent(neighbour, ("127.0.0.1:1",), 1, "")
    monkeypatch.setattr(known_agents, "known_agents", lambda: (agent,))

    async def status(options: EtcdOptions, run_id: str, screen: Screen, **_: object) -> int:
        raise UnavailableError("no etcd endpoint answered")

    monkeypatch.setattr(look, "status", status)
    (tmp_path / "mine").mkdir()
    node = Node("n0", "1", "h", "127.0.0.1", 1, Process("boot", "pid:[1]", 1, 1), "2026-01-01T00:00:00.000Z")
    line = b'{"record":"registered","attempt":0,' + encode(node)[1:] + b"\n"
    (tmp_path / "mine" / "history.jsonl").write_bytes(line)
    options = EtcdOptions(tuple(filter(None, [named])))
    answer = await or_past(look.status, options, "mine", screen_for("table"), log_dir=str(tmp_path))
    assert (answer, "remembers" in capsys.readouterr().err) == (code, True)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (("a:1",), ("b:1",), False),
        (("a:1",), ("a:2",), False),
        (("a:1", "b:1"), ("b:1", "c:1"), True),
        (("localhost:1",), ("http://127.0.0.1:1",), True),
    ],
)
async def test_of_two_jobs_of_one_name_none_is_taken_by_chance(
    monkeypatch, first: tuple[str, ...], second: tuple[str, ...], *, same: bool
):
    """`nvrx stop` of the wrong one would stop a training."""
    agents = tuple(known_agents.KnownAgent("mine", etcd, 1, "") for etcd in (first, second))
    monkeypatch.setattr(known_agents, "known_agents", lambda: agents)
    if same:
        assert (await place_of(EtcdOptions(()), "mine")).endpoints in (first, second)
        return
    with pytest.raises(SeveralJobsError) as refused:
        await place_of(EtcdOptions(()), "mine")
    assert f"{first[0]} and {second[0]}" in refused.value.message
    assert (await place_of(EtcdOptions(second), "mine")).endpoints == second
