from __future__ import annotations

import asyncio

import anyio
import pytest
from support.fake_etcd import HEADER, FakeEtcd

from nvrx_async.etcd import EtcdClient, EtcdConfig, LeaseNotFoundError, Session, UnavailableError, boottime
from nvrx_async.etcd.types import Put, Txn
from nvrx_async.etcd.wire import messages


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
    renewed = anyio.create_memory_object_stream[float](10)
    async with Session(client, ttl_s=600, on_renewed=renewed[0].send_nowait) as session:
        granted = await renewed[1].receive()
        session.renew_now()
        again = await renewed[1].receive()
        assert again > granted
        assert again == session.renewed_at_s
        assert await client.lease_remaining(session.lease_id) >= 598
    for end in renewed:
        end.close()


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
        session.renew_now()
        await anyio.wait_all_tasks_blocked()
        assert await client.lease_remaining(session.lease_id) is None


async def test_lost_a_ttl_after_the_last_acknowledged_send_when_etcd_is_gone(etcd):
    async with EtcdClient(EtcdConfig((etcd.endpoint,))) as client, Session(client, ttl_s=2) as session:
        etcd.kill()
        await session.lost.wait()
        assert boottime() - session.renewed_at_s >= session.ttl_s
        assert "no renewal was acknowledged" in session.lost_because
        assert "refused" in session.lost_because


async def test_a_restart_shorter_than_the_ttl_keeps_the_lease(etcd, prefix):
    renewed = []
    async with EtcdClient(EtcdConfig((etcd.endpoint,))) as client:
        async with Session(client, ttl_s=6, on_renewed=renewed.append) as session:
            await client.commit(Txn((), (Put(prefix, b"", lease=session.lease_id),)))
            etcd.kill()
            session.renew_now()
            before = len(renewed)
            await asyncio.to_thread(etcd.start)
            async with asyncio.timeout(6):
                while len(renewed) == before:
                    await asyncio.sleep(0.01)
            assert not session.lost.is_set()
            assert await client.get(prefix) is not None


async def test_a_frozen_server_shorter_than_the_ttl_keeps_the_lease(etcd):
    renewed = anyio.create_memory_object_stream[float](100)
    async with EtcdClient(EtcdConfig((etcd.endpoint,), call_timeout_s=0.3)) as client:
        async with Session(client, ttl_s=6, on_renewed=renewed[0].send_nowait) as session:
            await renewed[1].receive()
            etcd.freeze()
            session.renew_now()
            async with asyncio.timeout(5):
                while session.unanswered_since_s is None:
                    await asyncio.sleep(0)
                while session.unanswered_since_s is not None:
                    await asyncio.sleep(0)
            etcd.thaw()
            await renewed[1].receive()
            assert not session.lost.is_set()
    for end in renewed:
        end.close()


async def test_a_late_answer_is_not_credited_and_one_renewal_is_in_flight():
    """Renewal 1 is answered late, on its own stream, while renewal 2 has no answer yet: nothing is renewed."""
    streams = []
    in_flight = 0
    most_in_flight = 0
    arrived = asyncio.Semaphore(0)
    answer_first = asyncio.Event()
    answer_last = asyncio.Event()

    async def keep_alive(requests, context):
        nonlocal in_flight, most_in_flight
        number = len(streams)
        streams.append(context)
        try:
            async for _ in requests:
                in_flight += 1
                most_in_flight = max(most_in_flight, in_flight)
                arrived.release()
                await (answer_first if number == 0 else answer_last).wait()
                in_flight -= 1
                yield keep_alive_answer()
        finally:
            in_flight = 0

    renewed = []
    config_timeout_s = 0.3
    async with FakeEtcd(keep_alive=keep_alive) as server:
        async with EtcdClient(EtcdConfig((server.endpoint,), call_timeout_s=config_timeout_s)) as client:
            async with Session(client, ttl_s=60, on_renewed=renewed.append) as session:
                session.orphan()
                session.renew_now()
                await arrived.acquire()
                await arrived.acquire()
                assert len(streams) == 2
                answer_first.set()
                second_sent_by = boottime()
                answer_last.set()
                async with asyncio.timeout(5):
                    while len(renewed) < 2:
                        await asyncio.sleep(0.01)
                assert most_in_flight == 1
                assert renewed[1] >= renewed[0] + config_timeout_s
                assert renewed[1] <= second_sent_by + 2 * config_timeout_s


async def test_a_doubtful_lease_gone_is_asked_again_after_a_linearizable_read():
    """A leader elected a moment ago may not have applied the grant: TTL 0, then the truth."""
    ttls = iter([0, 6])

    async def keep_alive(requests, context):
        async for _ in requests:
            yield keep_alive_answer(next(ttls))

    renewed = []
    async with (
        FakeEtcd(keep_alive=keep_alive) as server,
        EtcdClient(EtcdConfig((server.endpoint,))) as client,
    ):
        async with Session(client, ttl_s=60, on_renewed=renewed.append) as session:
            session.renew_now()
            async with asyncio.timeout(5):
                while len(renewed) < 2:
                    await asyncio.sleep(0.01)
            assert not session.lost.is_set()


async def test_cadence_with_a_clock_of_the_test():
    """Over two minutes of the test's clock: a renewal each TTL/3 to a tenth less, credited with its send time."""
    now = 1000.0
    sent = []

    async def keep_alive(requests, context):
        nonlocal now
        async for _ in requests:
            sent.append(now)
            now += 0.01
            yield keep_alive_answer()

    class Clock:
        """Each look at the clock is a twentieth of a second later: waits are short and the order is the same."""

        def __call__(self):
            nonlocal now
            now += 0.05
            return now

    renewed = []
    async with (
        FakeEtcd(keep_alive=keep_alive) as server,
        EtcdClient(EtcdConfig((server.endpoint,))) as client,
    ):
        async with Session(client, ttl_s=6, clock=Clock(), on_renewed=renewed.append) as session:
            while len(renewed) < 20:
                now += 0.5  # a wait of the session is shortened by hurrying it without a renewal
                session._hurry.set()
                await asyncio.sleep(0.002)
    gaps = [later - earlier for earlier, later in zip(renewed, renewed[1:], strict=False)]
    assert all(1.8 <= gap <= 3.2 for gap in gaps), gaps


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
