"""JobClient against a real etcd that holds a recorded job."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime

import anyio
import orjson
import pytest
from record_kit import KEYS, ROOT, SEATS, at, restarted

from nvrx_async.etcd import EtcdClient, Feed, survey
from nvrx_async.etcd.types import Delete, KeyValue, Put, Scope, Txn
from nvrx_async.job import JobClient
from nvrx_async.job.codec import decode, encode
from nvrx_async.job.errors import NoSuchJobError, NoSuchRoundError, NotSoError, UnansweredError
from nvrx_async.job.job_events import EventKind
from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.live import LiveNode, LiveRank
from nvrx_async.job.reader import run_ids
from nvrx_async.job.records import (
    REGISTERED,
    Assignment,
    Command,
    CommandPhase,
    End,
    FaultKind,
    Level,
    Outcome,
    Phase,
    Root,
    Round,
    Verb,
)
from nvrx_async.job.status import JobState, Role


async def recorded(client: EtcdClient, name: str = "", **how: bool) -> str:
    """Write the recorded job under a name of its own."""
    run_id = name or f"llama-{uuid.uuid4().hex[:8]}"
    held = restarted(**how)
    puts = [Put(key.replace("/llama/", f"/{run_id}/"), value) for key, value in held.items()]
    await client.commit(Txn((), tuple(puts)))
    return run_id


async def test_status_tells_state_nodes_ranks_and_the_last_fault(client):
    job = JobClient(client, await recorded(client, finished=False))
    status = await job.status()
    assert (status.state, status.round, status.world_size, status.restarts) == (JobState.RUNNING, 1, 4, 0)
    assert [(node.node_id, node.role, node.first_rank) for node in status.nodes] == [
        ("a", Role.MEMBER, 0),
        ("b", Role.MEMBER, 2),
    ]
    assert [rank.rank for rank in status.ranks] == [0, 1, 2, 3]
    assert status.last_fault.sentence == ROOT.sentence
    summary = await job.summary()
    assert (summary.state, summary.nodes_present, summary.nodes) == (JobState.RUNNING, 2, ())


async def test_what_somebody_asked_for_stands_beside_the_last_fault_and_hides_it_not(client):
    run_id = await recorded(client, finished=False)
    keys = AttemptKeys(run_id, 0)
    asked = Root(FaultKind.ASKED, "restart asked by ada@desk", culprit=False)
    ends = [End(n, asked, Level.IN_JOB, "asked for, not billed", at(60.0 + n)) for n in range(1, 140)]
    for end in ends:
        await client.commit(Txn((), (Put(keys.end(end.number), encode(end)),)))
    held = decode(Round, keys.round, (await client.get(keys.round)).value)
    later = replace(held, number=140, verdict=ends[-1])
    await client.commit(Txn((), (Put(keys.round, encode(later)),)))
    for status in (await JobClient(client, run_id).status(), await JobClient(client, run_id).summary()):
        assert (status.last_fault.round, status.last_fault.sentence) == (0, ROOT.sentence)
        assert (status.last_asked.round, status.last_asked.sentence) == (139, asked.sentence)


async def test_looking_writes_nothing(client):
    job = JobClient(client, await recorded(client))
    before = (await client.status()).revision
    await job.status()
    await job.summary()
    await job.rounds()
    await job.round(0)
    await job.why()
    assert [event async for event in job.events()]
    assert await run_ids(client)
    await job.wait_for("running", timeout_s=20)
    assert (await client.status()).revision == before


async def test_why_is_about_the_last_round_that_a_fault_ended(client):
    job = JobClient(client, await recorded(client))
    why = await job.why()
    assert why.round == 0
    assert (why.root.kind.value, why.root.end.rank) == ("exception", 1)
    assert why.error_line == "ValueError: bad shard"
    assert why.place == "/job/train.py:41 in load"
    assert why.decision == "restart 1 of --max-restarts 3"
    assert [one.rank for one in why.consequences] == [0, 2, 3]
    assert why.waterfall.complete
    assert why.waterfall.covered == 1.0


async def test_a_round_that_never_was_is_named(client):
    job = JobClient(client, await recorded(client))
    with pytest.raises(NoSuchRoundError, match="has no round 7"):
        await job.why(7)


async def test_a_wrong_name_gets_the_nearest(client):
    right = await recorded(client)
    with pytest.raises(NoSuchJobError) as failure:
        await JobClient(client, right[:-1]).status()
    assert right in failure.value.nearest


async def test_jobs_are_found_one_request_each_though_one_name_begins_the_other(client):
    await recorded(client, "twin")
    await recorded(client, "twin-2")
    await recorded(client, "twin.x")
    found = await run_ids(client)
    assert {"twin", "twin-2", "twin.x"} <= set(found)
    assert len(found) == len(set(found))


async def test_events_come_in_order_and_since_then(client):
    job = JobClient(client, await recorded(client))
    events = [event async for event in job.events()]
    kinds = [event.kind for event in events if event.round == 0]
    assert kinds == [
        EventKind.OPENED,
        EventKind.RUNNING,
        EventKind.INTERRUPTED,
        EventKind.REPORTED,
        EventKind.REPORTED,
        EventKind.JUDGED,
    ]
    assert [event.at_utc for event in events] == sorted(event.at_utc for event in events)
    late = datetime(2026, 1, 1, 0, 1, 0, 450000, tzinfo=UTC)
    assert all(e.at_utc >= at(60.45) for e in [e async for e in job.events(since=late)])


async def test_events_know_who_registered_though_it_is_gone(client):
    run_id = await recorded(client, finished=False)
    keys = AttemptKeys(run_id, 0)
    for seat, extra in zip(SEATS, ({}, {"succeeds": "b-0"}), strict=True):
        told = {REGISTERED: {"at_utc": at(0.0), **extra}}
        assignment = Assignment(0, seat, 4, 2, "10.0.0.1", 29500, extra=told)
        key = keys.assignment(0, "t0", seat.node_id)
        await client.commit(Txn((), (Put(key, encode(assignment)),)))
    await client.commit(Txn((), (Delete(Scope(keys.node("b"))),)))
    events = [event async for event in JobClient(client, run_id).events()]
    registered = [event.sentence for event in events if event.kind is EventKind.REGISTERED]
    assert registered == ["a registered with 2 slots", "b registered with 2 slots in place of b-0"]


async def test_events_are_followed_to_the_end_of_the_job(client):
    run_id = await recorded(client)
    keys = AttemptKeys(run_id, 0)
    seen = []
    async with anyio.create_task_group() as tasks:
        running = anyio.Event()

        async def follow():
            async for event in JobClient(client, run_id).events(follow=True):
                seen.append(event)
                if event.round == 1 and event.kind is EventKind.RUNNING:
                    running.set()

        tasks.start_soon(follow)
        with anyio.fail_after(20):
            await running.wait()
        outcome = Outcome(success=True, exit_code=0, reason="all ranks finished", round=1, decided_utc=at(91))
        await client.commit(Txn((), (Put(keys.outcome, encode(outcome)),)))
    assert seen[-1].kind is EventKind.OUTCOME
    assert len(seen) == len(set(seen))


async def test_waiting_for_a_round_ends_when_it_runs(client):
    run_id = await recorded(client)
    keys = AttemptKeys(run_id, 0)
    held = decode(Round, keys.round, (await client.get(keys.round)).value)
    async with anyio.create_task_group() as tasks:
        done = []

        async def wait():
            done.append(await JobClient(client, run_id).wait_for("round=2", timeout_s=20))

        tasks.start_soon(wait)
        forming = replace(held, number=2, phase=Phase.FORMING)
        await client.commit(Txn((), (Put(keys.round, encode(forming)),)))
        assert not done
        await client.commit(Txn((), (Put(keys.round, encode(replace(forming, phase=Phase.RUNNING))),)))
    assert done[0].round == 2


async def test_what_can_not_be_any_more_is_not_waited_for(client):
    run_id = await recorded(client)
    outcome = Outcome(success=False, exit_code=1, reason="spent", round=1, decided_utc=at(91), root=ROOT)
    await client.commit(Txn((), (Put(AttemptKeys(run_id, 0).outcome, encode(outcome)),)))
    with pytest.raises(NotSoError, match="will not be any more"):
        await JobClient(client, run_id).wait_for("running", timeout_s=20)
    assert (await JobClient(client, run_id).wait_for("ended", timeout_s=20)).state is JobState.FAILED


async def test_waiting_has_an_end(client):
    with pytest.raises(NotSoError, match="not ended within"):
        await JobClient(client, await recorded(client)).wait_for("ended", timeout_s=0.05)


async def test_a_command_is_answered_by_whoever_leads(client):
    run_id = await recorded(client)
    controls = AttemptKeys(run_id, 0).controls
    answers = []

    async def ask():
        job = JobClient(client, run_id)
        answers.append(
            await job.command(Verb.RESTART, by="ada@desk", now_utc=at(70), reason="try", timeout_s=20)
        )

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        with anyio.fail_after(20):
            while not (items := (await client.list(controls)).items):
                await anyio.lowlevel.checkpoint()
        asked = decode(Command, items[0].key, items[0].value)
        assert (asked.verb, asked.by, asked.reason, asked.phase) == (
            Verb.RESTART,
            "ada@desk",
            "try",
            CommandPhase.ASKED,
        )
        answered = replace(asked, phase=CommandPhase.DONE, answer="round 2 follows", answered_utc=at(71))
        await client.commit(Txn((), (Put(items[0].key, encode(answered)),)))
    assert answers == [answered]
    told = [event.sentence async for event in JobClient(client, run_id).events()]
    assert "ada@desk asked to restart (try)" in told
    assert "restart done: round 2 follows" in told


async def test_a_command_that_nobody_answers_stands_and_is_said_to(client):
    run_id = await recorded(client)
    job = JobClient(client, run_id)
    with pytest.raises(UnansweredError, match="it stands"):
        await job.command(Verb.STOP, by="ada@desk", now_utc=at(70), timeout_s=0.05)
    assert [one.verb for one in (await job.status()).commands] == [Verb.STOP]


async def test_a_job_that_ended_takes_no_commands(client):
    run_id = await recorded(client)
    outcome = Outcome(success=True, exit_code=0, reason="", round=1, decided_utc=at(91))
    await client.commit(Txn((), (Put(AttemptKeys(run_id, 0).outcome, encode(outcome)),)))
    with pytest.raises(NotSoError, match="has ended"):
        await JobClient(client, run_id).command(Verb.STOP, by="ada@desk", now_utc=at(92))
    assert not (await client.list(AttemptKeys(run_id, 0).controls)).items


async def test_a_command_that_the_end_of_the_job_overtakes_is_told_so_at_once(client):
    run_id = await recorded(client)
    keys = AttemptKeys(run_id, 0)
    outcome = Outcome(success=True, exit_code=0, reason="", round=1, decided_utc=at(91))

    async def end_once_asked():
        async with Feed(client) as feed:
            feed.set_scopes(frozenset({keys.controls}))
            async for item in feed:
                if isinstance(item, KeyValue):
                    await client.commit(Txn((), (Put(keys.outcome, encode(outcome)),)))
                    return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end_once_asked)
        with pytest.raises(NotSoError, match="has ended"):
            await JobClient(client, run_id).command(Verb.STOP, by="ada@desk", now_utc=at(90), timeout_s=60)


async def test_live_numbers_are_asked_of_the_agents_and_the_silent_are_named(client):
    run_id = await recorded(client, finished=False)
    keys = AttemptKeys(run_id, 0)
    for name in "ab":
        held = await client.get(keys.node(name))
        told = held.value.replace(b'"probe":""', b'"probe":"10.0.0.%s:1"' % name.encode())
        await client.commit(Txn((), (Put(keys.node(name), told),)))

    async def ask(address, kind, payload, timeout_s):
        assert kind == "live"
        if address.startswith("10.0.0.b"):
            raise ConnectionRefusedError(address)
        ranks = (
            LiveRank(0, 0, 100, "running", step=7, beat_age_s=0.1),
            LiveRank(1, 1, 101, "running", step=7),
        )
        return {
            "schema": 1,
            **_plain(LiveNode("a", 1, ranks, warm=2, etcd_ms=1.5, marks={"hello_utc": at(63)})),
        }

    job = JobClient(client, run_id, ask=ask)
    status = await job.status()
    assert [rank.step for rank in status.ranks] == [7, 7, None, None]
    assert (status.nodes[0].warm, status.silent) == (2, ("b",))
    assert (await job.wait_for("running", timeout_s=20)).state is JobState.RUNNING
    assert (await job.why()).waterfall.steps[-1].name.endswith("connected")


async def test_for_a_step_each_agent_that_is_behind_is_asked_once_and_answers_when_it_has_come(client):
    run_id = await recorded(client, finished=False)
    keys = AttemptKeys(run_id, 0)
    for name in "ab":
        held = await client.get(keys.node(name))
        told = held.value.replace(b'"probe":""', b'"probe":"10.0.0.%s:1"' % name.encode())
        await client.commit(Txn((), (Put(keys.node(name), told),)))
    steps, waits, come, asked = {"a": 9, "b": 3}, anyio.Event(), anyio.Event(), []

    async def ask(address, kind, payload, timeout_s):
        name = address[7]
        asked.append((kind, name))
        if kind == "live":
            first = 0 if name == "a" else 2
            ranks = tuple(LiveRank(first + n, n, 100, "running", step=steps[name]) for n in range(2))
            return _plain(LiveNode(name, 1, ranks))
        assert (payload["round"], payload["step"]) == (1, 7)
        waits.set()
        await come.wait()
        steps[name] = 7
        return {"reached": True}

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                job = JobClient(client, run_id, ask=ask)
                status = await job.wait_for("step=7")
                assert min(rank.step for rank in status.ranks) == 7

            tasks.start_soon(wait)
            await waits.wait()
            before = len(asked)
            await anyio.sleep(1.2)  # that nobody is asked in between is the subject
            assert len(asked) == before
            come.set()
    assert asked.count(("reached", "b")) == 1
    assert ("reached", "a") not in asked, "it has come already"


def _plain(record):
    return orjson.loads(encode(record))


async def test_a_thousand_keys_come_in_pages_of_one_revision(client):
    prefix = f"/nvrx/pages/{uuid.uuid4().hex}/"
    for start in range(0, 250, 50):
        puts = tuple(Put(f"{prefix}{n:04}", b"x") for n in range(start, start + 50))
        await client.commit(Txn((), puts))
    scope = Scope(prefix, prefix=True)
    assert [item.key for item in await survey.pages(client, scope, page_keys=60)] == [
        f"{prefix}{n:04}" for n in range(250)
    ]
    assert await survey.count(client, scope) == 250
    assert await survey.first_key(client, scope, not_before=f"{prefix}0100") == f"{prefix}0100"
    assert await survey.first_key(client, Scope(f"{prefix}none", prefix=True)) is None


def test_the_recorded_job_is_the_one_of_the_kit():
    assert KEYS.run_id == "llama"
