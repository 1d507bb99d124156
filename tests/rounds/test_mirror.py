"""What a machine knows of etcd, however its news arrive."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounds_kit import Keys

from nvrx_async.etcd.types import Delete, Deleted, KeyValue, Listing, Put, Scope, Txn
from nvrx_async.job.codec import encode
from nvrx_async.job.errors import RecordError
from nvrx_async.job.records import Current, Spare
from nvrx_async.rounds.events import Changed, Committed, Listed, Tick
from nvrx_async.rounds.mirror import Mirror

SCOPE = Scope("/a/", prefix=True)
OTHER = Scope("/b")


def kv(key, revision, value=b"{}", created=None, version=1):
    return KeyValue(key, value, created or revision, revision, version)


def mirror(*scopes):
    made = Mirror()
    made.open(frozenset(scopes or (SCOPE,)))
    return made


def test_nothing_is_known_before_its_listing():
    known = mirror()
    assert not known.knows(SCOPE)
    known.observe(Changed(kv("/a/x", 3)))
    assert not known.knows(SCOPE)
    known.observe(Listed(Listing(SCOPE, (), 5)))
    assert known.knows(SCOPE)
    assert not known.knows(SCOPE, OTHER)


def test_a_listing_removes_what_it_does_not_name_but_not_what_is_newer():
    known = mirror()
    known.observe(Changed(kv("/a/old", 3)))
    known.observe(Changed(kv("/a/new", 9)))
    known.observe(Listed(Listing(SCOPE, (kv("/a/x", 2),), 5)))
    assert known.get("/a/old") is None
    assert known.get("/a/new") is not None
    assert known.revision("/a/x") == 2


def test_a_listing_of_the_first_key_says_nothing_of_the_others():
    first = Scope("/a/", prefix=True, first=True)
    known = mirror(first, Scope("/a/own"))
    known.observe(Listed(Listing(Scope("/a/own"), (kv("/a/own", 3),), 4)))
    known.observe(Listed(Listing(first, (kv("/a/b", 2),), 5)))
    known.observe(Listed(Listing(first, (kv("/a/c", 2),), 6)))
    assert known.knows(first)
    assert known.get("/a/b") is None, "what was before the first one is gone"
    assert known.get("/a/own") is not None
    known.observe(Listed(Listing(first, (), 9)))
    assert known.get("/a/own") is None, "there is none"


def test_a_scope_tells_when_something_in_it_changed():
    known = mirror(SCOPE, OTHER)
    known.observe(Listed(Listing(SCOPE, (kv("/a/x", 2),), 5)))
    at, other = known.changed_at(SCOPE), known.changed_at(OTHER)
    assert known.changed_at(SCOPE) == at
    known.observe(Changed(kv("/a/x", 7)))
    assert known.changed_at(SCOPE) > at
    assert known.changed_at(OTHER) == other


@pytest.mark.parametrize(
    "events",
    [
        [Changed(kv("/a/x", 3, b"old")), Changed(kv("/a/x", 4, b"new", created=3))],
        [Changed(kv("/a/x", 4, b"new", created=3)), Changed(kv("/a/x", 3, b"old"))],
        [Listed(Listing(SCOPE, (kv("/a/x", 4, b"new"),), 6)), Changed(kv("/a/x", 3, b"old"))],
        [Changed(kv("/a/x", 4, b"new")), Listed(Listing(SCOPE, (kv("/a/x", 3, b"old"),), 3))],
        [Changed(Deleted("/a/x", 3)), Changed(kv("/a/x", 4, b"new"))],
        [Changed(kv("/a/x", 4, b"new")), Changed(Deleted("/a/x", 3))],
        [Changed(kv("/a/x", 4, b"new")), Listed(Listing(SCOPE, (), 3))],
    ],
)
def test_the_newest_write_wins_in_any_order(events):
    known = mirror()
    for event in events:
        known.observe(event)
    assert known.get("/a/x").value == b"new"


def test_a_deleted_key_does_not_come_back_by_late_news():
    known = mirror()
    known.observe(Changed(Deleted("/a/x", 7)))
    known.observe(Changed(kv("/a/x", 5)))
    known.observe(Listed(Listing(SCOPE, (kv("/a/x", 5),), 6)))
    assert known.get("/a/x") is None
    assert known.revision("/a/x") == 0


def test_own_commits_are_known_at_once():
    known = mirror()
    known.observe(Listed(Listing(SCOPE, (kv("/a/gone", 2), kv("/a/x", 3)), 4)))
    put = Txn((), (Put("/a/x", b"mine", 9), Delete(Scope("/a/g", prefix=True)), Put("/a/y", b"new")))
    known.observe(Committed("tag", ((put, 6),)))
    assert known.get("/a/x") == KeyValue("/a/x", b"mine", 3, 6, 2, 9)
    assert known.get("/a/y") == KeyValue("/a/y", b"new", 6, 6, 1)
    assert known.get("/a/gone") is None


def test_the_store_corrects_what_the_mirror_assumed_of_its_own_write():
    """Written before the scope was listed: the key's creation was not known."""
    known = mirror()
    known.observe(Committed("tag", ((Txn((), (Put("/a/x", b"mine"),)), 6),)))
    known.observe(Listed(Listing(SCOPE, (KeyValue("/a/x", b"mine", 2, 6, 3),), 6)))
    assert known.get("/a/x").create_revision == 2
    assert known.get("/a/x").version == 3


def test_an_own_commit_that_was_overtaken_changes_nothing():
    known = mirror()
    known.observe(Changed(kv("/a/x", 8, b"theirs")))
    known.observe(Committed("tag", ((Txn((), (Put("/a/x", b"mine"),)), 6),)))
    assert known.get("/a/x").value == b"theirs"


def test_closed_scopes_are_forgotten_and_read_anew():
    known = mirror(SCOPE, OTHER)
    known.observe(Listed(Listing(SCOPE, (kv("/a/x", 3),), 4)))
    known.observe(Listed(Listing(OTHER, (kv("/b", 4),), 4)))
    known.open(frozenset({OTHER}))
    assert known.get("/a/x") is None
    assert known.get("/b") is not None
    known.observe(Changed(kv("/a/x", 5)))
    assert known.get("/a/x") is None, "no scope covers it"
    known.observe(Listed(Listing(SCOPE, (kv("/a/x", 5),), 5)))
    assert not known.knows(SCOPE), "a listing of a closed scope came late"
    known.open(frozenset({SCOPE, OTHER}))
    assert known.knows(OTHER)
    assert not known.knows(SCOPE)


def test_a_key_of_two_scopes_stays_while_one_is_open():
    one = Scope("/a/x")
    known = mirror(SCOPE, one)
    known.observe(Listed(Listing(SCOPE, (kv("/a/x", 3), kv("/a/y", 3)), 4)))
    known.open(frozenset({one}))
    assert known.get("/a/x") is not None
    assert known.get("/a/y") is None


def test_forgotten_keys_leave_nothing_behind():
    known = mirror()
    value = encode(Spare("n", "1"))
    for i in range(50):
        known.observe(Changed(kv(f"/a/{i}", i + 1, value)))
        known.record(Spare, f"/a/{i}")
        known.observe(Changed(Deleted(f"/a/{i}", i + 60)))
    known.open(frozenset())
    assert (known._keys, known._gone_at, known._decoded) == ({}, {}, {})


def test_records_are_decoded_once_per_write():
    known = mirror()
    known.observe(Changed(kv("/a/n", 3, encode(Spare("n", "1")))))
    first = known.record(Spare, "/a/n")
    assert known.record(Spare, "/a/n") is first
    assert known.records(Spare, SCOPE)["n"] is first
    known.observe(Changed(kv("/a/n", 4, encode(Spare("n", "2")), created=3)))
    assert known.record(Spare, "/a/n") == Spare("n", "2")


def test_another_class_is_not_taken_from_the_cache():
    known = mirror()
    known.observe(Changed(kv("/a/n", 3, encode(Spare("n", "1")))))
    known.record(Spare, "/a/n")
    with pytest.raises(RecordError):
        known.record(Current, "/a/n")


def test_a_key_that_does_not_exist_is_no_record():
    known = mirror()
    assert known.record(Spare, "/a/n") is None
    assert known.revision("/a/n") == 0
    known.observe(Tick())
    assert known.records(Spare, SCOPE) == {}


@given(st.data())
def test_any_order_of_deliveries_ends_in_the_state_of_the_store(data):
    """Each scope's news come in order, with duplicates; scopes and own commits overtake each other as they like."""
    scopes = (SCOPE, Scope("/b/", prefix=True), Scope("/a/1"))
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    etcd, own = Keys(), []
    listings = {}
    steps = data.draw(st.lists(st.sampled_from(["put", "put", "delete", "list", "wipe"]), max_size=25))
    for step in steps:
        key = chance.choice(["/a/1", "/a/2", "/b/1", "/b/2"])
        operations = {
            "put": (Put(key, b"%d" % etcd.revision),),
            "delete": (Delete(Scope(key)),),
            "wipe": (Delete(Scope(key[:3], prefix=True)), Put("/c", b"")),
            "list": (),
        }[step]
        txn = Txn((), operations)
        result = etcd.commit(txn) if operations else None
        if result and chance.random() < 0.3:
            own.append(Committed("tag", ((txn, result.revision),)))
        for scope in scopes:
            if scope not in listings and (step == "list" or chance.random() < 0.1):
                listings[scope] = (etcd.listing(scope), len(etcd.log))
    queues = [own]
    for scope in scopes:
        first, position = listings.get(scope, (etcd.listing(scope), len(etcd.log)))
        changes = [Changed(change) for change in etcd.log[position:] if scope.covers(change.key)]
        queues.append([Listed(first), *(event for event in changes for _ in range(chance.choice([1, 1, 2])))])
        if chance.random() < 0.5:
            queues.append([Listed(etcd.listing(scope))])
    known = mirror(*scopes)
    while any(queues):
        known.observe(chance.choice([queue for queue in queues if queue]).pop(0))
    assert known.knows(*scopes)
    for scope in scopes:
        assert sorted(known.under(scope), key=lambda held: held.key) == list(etcd.listing(scope).items)
