from __future__ import annotations

import asyncio

import anyio
import pytest
from support.fake_etcd import HEADER, FakeEtcd
from support.recorder import Recorder

from nvrx_async.etcd import EtcdClient, EtcdConfig, LeaseNotFoundError, Session, UnavailableError, boottime
from nvrx_async.etcd.types import Put, Txn
from nvrx_async.etcd.wire import grpc, messages


def keep_alive_answer(ttl=6):
    return messages.LeaseKeepAliveResponse(header=HEADER, ID=77, TTL=ttl)


async def test_the_grant_is_the_first_renewal_and_counts_from_before_it_was_sent(client):
    renewed = []
    before = boottime()
    async with Session(client, ttl_s=5, on_renewed=renewed.append) as session:
        assert session.ttl_s == 5
        assert renewed == [session.renewed_at_s]
        assert before <= renewed[0] <= boottime()
        assert not session.lost.is_set()


async def test_a_renewal_asked_for_comes_at_once_and_renews_in_etcd(client):
    renewed = Recorder()
    async with Session(client, ttl_s=600, on_renewed=renewed) as session:
        session.renew_now()
        await renewed.reached(2)
        granted, again = renewed.values
        assert again > granted
        assert again == session.renewed_at_s
        assert await client.lease_remaining(session.lease_id) >= 598


async def test_leaving_revokes_and_an_orphan_stays(client):
    async with Session(client, ttl_s=60) as revoked:
        pass
    async with Session(client, ttl_s=60) as kept:
        kept.orphan()
    assert await client.lease_remaining(revoked.lease_id) is None
    assert await client.lease_remaining(kept.lease_id) > 50
    await client.revoke(kept.lease_id)


async def test_closed_early_the_lease_is_gone_early(client):
    async with Session(client, ttl_s=60) as session:
        await session.close()
        assert await client.lease_remaining(session.lease_id) is None


async def test_an_error_of_the_block_comes_out_as_it_is(client):
    with pytest.raises(ZeroDivisionError):
        async with Session(client, ttl_s=60):
            raise ZeroDivisionError


async def test_a_session_ends_with_the_task_that_is_cancelled(client):
    entered = asyncio.Event()
    leases = []

    async def hold():
        async with Session(client, ttl_s=60) as session:
            leases.append(session.lease_id)
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await client.lease_remaining(leases[0]) is None


async def test_a_revoked_lease_is_lost_at_the_next_renewal_and_never_replaced(client):
    async with Session(client, ttl_s=60) as session:
        await client.revoke(session.lease_id)
        session.renew_now()
        await session.lost.wait()
        assert "over" in session.lost_because
        assert session.failing_since_s is not None, (
            "it tells of the failure for as long as nothing follows it"
        )
        session.renew_now()
        await anyio.wait_all_tasks_blocked()
        assert await client.lease_remaining(session.lease_id) is None


async def test_lost_a_ttl_after_the_last_acknowledged_send_when_etcd_is_gone(etcd):
    async with EtcdClient(EtcdConfig((etcd.endpoint,))) as client, Session(client, ttl_s=1) as session:
        etcd.kill()
        await session.lost.wait()
        assert boottime() - session.renewed_at_s >= session.ttl_s
        assert "no renewal was acknowledged" in session.lost_because
        assert "refused" in session.lost_because


async def test_a_restart_shorter_than_the_ttl_keeps_the_lease(etcd, prefix):
    renewed = Recorder()
    async with (
        EtcdClient(EtcdConfig((etcd.endpoint,))) as client,
        Session(client, ttl_s=6, on_renewed=renewed) as session,
    ):
        await client.commit(Txn((), (Put(prefix, b"", lease=session.lease_id),)))
        etcd.kill()
        session.renew_now()
        await asyncio.to_thread(etcd.start)
        await renewed.one_more()
        assert not session.lost.is_set()
        assert await client.get(prefix) is not None


async def test_a_frozen_server_shorter_than_the_ttl_keeps_the_lease(etcd):
    """A renewal meets the frozen server and is given up; the next finds it awake."""
    renewed = Recorder()
    async with (
        EtcdClient(EtcdConfig((etcd.endpoint,), call_timeout_s=0.3)) as client,
        Session(client, ttl_s=6, on_renewed=renewed) as session,
    ):
        etcd.freeze()
        session.renew_now()
        with pytest.raises(TimeoutError):
            await renewed.reached(2, within_s=0.7)
        etcd.thaw()
        await renewed.reached(2)
        assert not session.lost.is_set()


async def test_a_late_answer_is_not_credited_and_one_renewal_is_in_flight():
    """Renewal 1 is answered when it was given up and renewal 2 is out: only renewal 2's answer counts."""
    arrived: list[float] = []
    most_in_flight = in_flight = 0
    answer = [asyncio.Event(), asyncio.Event()]
    both_out = asyncio.Event()

    async def keep_alive(requests, context):
        nonlocal in_flight, most_in_flight
        number = len(arrived)
        async for _ in requests:
            arrived.append(boottime())
            in_flight += 1
            most_in_flight = max(most_in_flight, in_flight)
            if number == 1:
                both_out.set()
            try:
                await answer[min(number, 1)].wait()
            finally:
                in_flight -= 1
            yield keep_alive_answer()

    renewed = Recorder()
    async with (
        FakeEtcd(keep_alive=keep_alive) as server,
        EtcdClient(EtcdConfig((server.endpoint,), call_timeout_s=0.5)) as client,
        Session(client, ttl_s=60, on_renewed=renewed) as session,
    ):
        session.orphan()
        session.renew_now()
        await both_out.wait()
        answer[0].set()
        await asyncio.sleep(0.1)  # long enough to credit a late answer, which is the defect
        assert len(renewed.values) == 1
        answer[1].set()
        await renewed.reached(2)
        assert renewed.values[1] > arrived[0]
        assert renewed.values[1] <= arrived[-1]
    assert most_in_flight == 1


def refusal(code, text):
    async def txn(request, context):
        assert request.success[0].request_put.lease == 77
        await context.abort(code, text)

    return txn


LIVES = refusal(grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision")
OVER = refusal(grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found")
DENIED = refusal(grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied")


def leader(*ttls):
    """Renewals are answered with these, the last one again and again."""
    left = list(ttls)

    async def keep_alive(requests, context):
        async for _ in requests:
            yield keep_alive_answer(left.pop(0) if len(left) > 1 else left[0])

    return keep_alive


@pytest.mark.parametrize("ttls", [(0, 6), (0, 0, 0, 0, 6)])
async def test_a_leader_that_does_not_know_of_the_lease_ends_no_session_while_a_quorum_does(ttls):
    """One elected a moment ago may not have applied the grant."""
    renewed = Recorder()
    async with (
        FakeEtcd(keep_alive=leader(*ttls), txn=LIVES) as server,
        EtcdClient(EtcdConfig((server.endpoint,))) as client,
        Session(client, ttl_s=60, on_renewed=renewed) as session,
    ):
        session.renew_now()
        await renewed.reached(2)
        assert not session.lost.is_set()


@pytest.mark.parametrize("says", [OVER, DENIED])
async def test_a_lease_that_no_quorum_knows_is_over_at_once(says):
    async with (
        FakeEtcd(keep_alive=leader(0), txn=says) as server,
        EtcdClient(EtcdConfig((server.endpoint,))) as client,
        Session(client, ttl_s=60) as session,
    ):
        session.patient = True
        session.renew_now()
        await session.lost.wait()
        assert "etcd says that the lease is over" in session.lost_because


async def test_nobody_waits_for_ever_for_a_leader_and_a_quorum_to_agree():
    now = 1000.0
    async with (
        FakeEtcd(keep_alive=leader(0), txn=LIVES) as server,
        EtcdClient(EtcdConfig((server.endpoint,))) as client,
        Session(client, ttl_s=60, clock=lambda: now) as session,
    ):
        session.patient = True
        session.renew_now()
        await anyio.wait_all_tasks_blocked()
        assert not session.lost.is_set()
        now += 61
        session.renew_now()
        await session.lost.wait()
        assert "its TTL has passed" in session.lost_because


async def test_cadence_on_the_clock_of_the_test():
    """The session sleeps through the loop's time, but decides by its clock: a renewal each TTL/3."""
    now = 1000.0

    async def keep_alive(requests, context):
        async for _ in requests:
            yield keep_alive_answer()

    renewed = Recorder()
    async with (
        FakeEtcd(keep_alive=keep_alive) as server,
        EtcdClient(EtcdConfig((server.endpoint,))) as client,
        Session(client, ttl_s=6, clock=lambda: now, on_renewed=renewed) as session,
    ):
        for count in range(2, 8):
            now += 1.7
            session._hurry.set()  # looks at the clock, and waits on
            await anyio.wait_all_tasks_blocked()
            assert len(renewed.values) == count - 1
            now += 0.4
            session._hurry.set()
            await renewed.reached(count)
            assert renewed.values[-1] == now
        now += 6
        session._hurry.set()
        await session.lost.wait()
        assert len(renewed.values) == 7


async def test_no_session_without_etcd():
    async with EtcdClient(EtcdConfig(("127.0.0.1:1",), call_timeout_s=0.2)) as client:
        with pytest.raises(UnavailableError):
            async with Session(client):
                raise AssertionError("entered without a lease")


async def test_a_lost_lease_refuses_what_is_put_on_it(client, prefix):
    async with Session(client, ttl_s=60) as session:
        await client.revoke(session.lease_id)
        with pytest.raises(LeaseNotFoundError):
            await client.commit(Txn((), (Put(prefix, b"", lease=session.lease_id),)))
