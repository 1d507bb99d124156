"""How an agent enters a job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rounds_kit import KEYS, SPEC, UTC, Keys, identity, node, opened, process, spec

from nvrx_async.etcd.types import CreatedAt, Empty, Exists, ModifiedAt, Put, Scope
from nvrx_async.job.codec import decode, encode
from nvrx_async.job.keys import AttemptKeys, current
from nvrx_async.job.records import Current, Job, Node, Outcome, Phase, Round
from nvrx_async.rounds.entry import (
    LAPSE_SLACK_S,
    Adopt,
    Entrance,
    Evict,
    Inside,
    Open,
    Pause,
    Prove,
    Refuse,
    Register,
    Superseded,
)
from nvrx_async.rounds.events import Changed, Listed, Now, Proof
from nvrx_async.rounds.fencing import takeover_wait_s
from nvrx_async.rounds.mirror import Mirror

NEXT = AttemptKeys("job", 1)


class Door:
    """An entrance before an etcd."""

    def __init__(self, me=None, of=SPEC):
        self.etcd = Keys()
        self.mirror = Mirror()
        self.entrance = Entrance(me or identity(), of)

    def look(self):
        seen = None
        while (scopes := self.entrance.scopes(self.mirror)) != seen:
            seen = scopes
            self.mirror.open(scopes)
            for scope in scopes:
                self.mirror.observe(Listed(self.etcd.listing(scope)))

    def decide(self, at_s=100.0):
        self.look()
        entry = self.entrance.decide(Now(at_s, UTC), self.mirror)
        if self.mirror.knows(*self.entrance.scopes(self.mirror)):
            return entry
        self.look()
        return self.entrance.decide(Now(at_s, UTC), self.mirror)

    def proven(self, incarnation, proof):
        self.entrance.proofs[incarnation] = proof


def test_who_registers_reads_one_node_and_then_follows_none_of_the_others():
    """A thousand that enter at once would each be told of all: a million messages."""
    door = living()
    door.look()
    whole = [scope for scope in door.entrance.scopes(door.mirror) if scope.prefix]
    assert whole == [KEYS.any_node]
    assert KEYS.any_node.first
    assert isinstance(door.decide(), Register)
    assert not [scope for scope in door.entrance.scopes(door.mirror) if scope.prefix]


def test_where_nobody_is_the_others_are_followed_to_see_the_first_that_comes():
    door = Door()
    opened(door.etcd, Phase.RUNNING)
    assert isinstance(door.decide(), Pause), "nobody is there: the attempt may be over"
    assert KEYS.nodes in door.entrance.scopes(door.mirror)
    door.etcd.put(KEYS.node("b"), node("b"))
    door.mirror.observe(Changed(door.etcd.held[KEYS.node("b")]))
    assert isinstance(door.decide(), Register)


def test_a_refused_registration_reads_again_who_is_there():
    door = living()
    assert isinstance(door.decide(), Register)
    assert door.entrance.decide(Now(100.0, UTC), door.mirror) == Pause("reading who is in the job")
    door.etcd.delete(KEYS.node("b"))
    door.etcd.put(KEYS.round, Round(0, Phase.RUNNING, UTC))
    assert isinstance(door.decide(), Pause), "nobody is: it waits until their ranks are surely dead"


def written(txn):
    return {put.key: put for put in txn.then if isinstance(put, Put)}


def outcome(keys=KEYS, launch_id=None):
    return Outcome(success=True, exit_code=0, reason="done", round=3, decided_utc=UTC, launch_id=launch_id)


def living():
    """An attempt with another agent in it."""
    door = Door()
    opened(door.etcd)
    door.etcd.put(KEYS.node("b"), node("b"))
    return door


def test_nothing_is_decided_before_the_keys_are_read():
    door = Door()
    assert door.entrance.decide(Now(0.0, UTC), door.mirror) == Pause("reading the job's keys")
    assert door.entrance.scopes(door.mirror) == {Scope(current("job"))}


def test_the_first_agent_opens_attempt_0_and_registers_in_the_same_step():
    door = Door()
    entry = door.decide()
    assert isinstance(entry, Open)
    assert entry.keys == KEYS
    assert entry.txn.when == (ModifiedAt(current("job"), 0),)
    puts = written(entry.txn)
    assert set(puts) == {current("job"), KEYS.job, KEYS.round, KEYS.node("a"), KEYS.election(0xA)}
    assert [puts[key].lease for key in (KEYS.node("a"), KEYS.election(0xA))] == [0xA, 0xA]
    assert [puts[key].lease for key in (current("job"), KEYS.job, KEYS.round)] == [0, 0, 0]
    assert decode(Job, "", puts[KEYS.job].value).spec == SPEC
    assert decode(Round, "", puts[KEYS.round].value).phase is Phase.FORMING
    assert door.etcd.commit(entry.txn).succeeded
    assert isinstance(door.decide(), Inside)


def test_of_two_that_open_one_is_refused_and_registers_instead():
    first, second = Door(), Door(identity("b", lease=0xB))
    second.etcd = first.etcd
    opening, late = first.decide(), second.decide()
    assert first.etcd.commit(opening.txn).succeeded
    assert not first.etcd.commit(late.txn).succeeded
    entry = second.decide()
    assert isinstance(entry, Register)
    assert first.etcd.commit(entry.txn).succeeded


def test_registration_compares_the_attempt_its_verdict_and_the_free_id():
    door = living()
    entry = door.decide()
    assert isinstance(entry, Register)
    revision = door.etcd.held[current("job")].mod_revision
    assert entry.txn.when == (
        ModifiedAt(current("job"), revision),
        CreatedAt(KEYS.outcome, 0),
        CreatedAt(KEYS.node("a"), 0),
    )
    assert set(written(entry.txn)) == {KEYS.node("a"), KEYS.election(0xA)}


def test_a_registration_whose_answer_was_lost_is_recognized():
    door = living()
    entry = door.decide()
    revision = door.etcd.commit(entry.txn).revision
    assert door.decide() == Inside(KEYS, entry.node, revision)


@pytest.mark.parametrize("blocking", ["outcome", "attempt", "node id"])
def test_a_registration_is_refused_when_anything_it_was_decided_on_has_changed(blocking):
    door = living()
    entry = door.decide()
    if blocking == "outcome":
        door.etcd.put(KEYS.outcome, outcome())
    elif blocking == "attempt":
        door.etcd.put(current("job"), Current(1, UTC))
    else:
        door.etcd.put(KEYS.node("a"), node("a", "other"))
    assert not door.etcd.commit(entry.txn).succeeded


# The node id is taken ------------------------------------------------------------------------------------


def taken(me=None, holder=None, of=SPEC):
    door = Door(me, of)
    opened(door.etcd)
    door.etcd.put(KEYS.node("a"), holder or node("a", "other", process=process(99)), lease=0x99)
    return door


def test_the_holder_of_the_wished_id_is_to_be_proven_dead():
    assert taken().decide() == Prove(node("a", "other", process=process(99)))


def test_a_dead_holder_is_evicted_and_then_succeeded():
    door = taken()
    door.proven("other", Proof.DEAD)
    assert door.decide() == Evict(0x99)
    door.etcd.delete(KEYS.node("a"))
    entry = door.decide()
    assert isinstance(entry, Register)
    assert (entry.node.node_id, entry.node.succeeds) == ("a", "other")


def test_a_living_holder_keeps_its_id_and_this_agent_takes_a_suffix():
    door = taken()
    door.proven("other", Proof.ALIVE)
    entry = door.decide()
    assert isinstance(entry, Register)
    assert (entry.node.node_id, entry.node.succeeds) == ("a-2", None)
    assert CreatedAt(KEYS.node("a-2"), 0) in entry.txn.when
    assert door.etcd.commit(entry.txn).succeeded
    assert isinstance(door.decide(), Inside)


def test_suffixes_are_tried_in_order():
    door = taken()
    door.etcd.put(KEYS.node("a-2"), node("a-2", "second", process=process(98)))
    door.proven("other", Proof.ALIVE)
    assert door.decide() == Prove(node("a-2", "second", process=process(98)))
    door.proven("second", Proof.ALIVE)
    assert door.decide().node.node_id == "a-3"


def test_a_dead_second_agent_is_succeeded_under_its_suffix():
    door = taken()
    door.etcd.put(KEYS.node("a-2"), node("a-2", "second", process=process(98)), lease=0x98)
    door.proven("other", Proof.ALIVE)
    door.proven("second", Proof.DEAD)
    assert door.decide() == Evict(0x98)
    door.etcd.delete(KEYS.node("a-2"))
    assert (door.decide().node.node_id, door.decide().node.succeeds) == ("a-2", "second")


def test_a_holder_on_another_host_may_be_dead_and_has_its_lease_to_lapse():
    door = taken()
    door.proven("other", Proof.UNKNOWN)
    lapse_s = SPEC.lease_ttl_s + LAPSE_SLACK_S
    assert door.decide(100.0) == Pause(
        "node id a is held by another agent, perhaps a dead one", 100 + lapse_s
    )
    assert isinstance(door.decide(100 + lapse_s - 0.01), Pause), "counted from the first look"
    assert door.decide(100 + lapse_s).node.node_id == "a-2"


def test_a_holder_that_lapses_meanwhile_leaves_its_id_without_a_proof():
    door = taken()
    door.etcd.put(KEYS.node("b"), node("b"))
    door.proven("other", Proof.UNKNOWN)
    door.decide(100.0)
    door.etcd.delete(KEYS.node("a"))
    entry = door.decide(104.0)
    assert (entry.node.node_id, entry.node.succeeds) == ("a", None), "gone is not proven dead"


@pytest.mark.parametrize("proof", [Proof.ALIVE, Proof.UNKNOWN])
def test_a_fixed_id_is_refused_with_evidence_and_hint(proof):
    door = taken(identity(fixed_id=True))
    door.proven("other", proof)
    door.decide(100.0)
    entry = door.decide(200.0)
    assert isinstance(entry, Refuse)
    for words in ("node id a is taken", "host host-a", "pid 99", UTC, "hint: ", "--node-id"):
        assert words in entry.message


def test_a_fixed_id_of_a_dead_holder_is_taken():
    door = taken(identity(fixed_id=True))
    door.proven("other", Proof.DEAD)
    assert door.decide() == Evict(0x99)
    door.etcd.delete(KEYS.node("a"))
    assert isinstance(door.decide(), Register)


# Another job under the same id -----------------------------------------------------------------------------


def test_another_specification_is_refused_with_both_named():
    door = taken(of=spec(command=("other.py", "--lr", "1"), max_restarts=0))
    entry = door.decide()
    assert isinstance(entry, Refuse)
    for words in (
        "run id job belongs to a living job with another specification",
        "its  command: train.py, max_restarts: 3",
        "ours command: other.py --lr 1, max_restarts: 0",
        "hint: ",
        "--rdzv-id",
    ):
        assert words in entry.message
    assert "lease_ttl_s" not in entry.message, "only what differs"


def test_a_newer_versions_unknown_field_is_a_difference_that_is_named():
    door = Door()
    opened(door.etcd, of=replace(SPEC, extra={"flavour": "mild"}))
    door.etcd.put(KEYS.node("b"), node("b"))
    entry = door.decide()
    assert isinstance(entry, Refuse)
    assert "flavour" in entry.message


# Attempts --------------------------------------------------------------------------------------------------


def test_after_a_verdict_the_next_attempt_begins_and_compares_that_it_stands():
    door = Door()
    opened(door.etcd)
    door.etcd.put(KEYS.outcome, outcome())
    entry = door.decide()
    assert isinstance(entry, Open)
    assert entry.keys == NEXT
    revision = door.etcd.held[current("job")].mod_revision
    assert entry.txn.when == (ModifiedAt(current("job"), revision), Exists(KEYS.outcome))
    assert NEXT.node("a") in written(entry.txn)


@pytest.mark.parametrize(
    ("mine", "theirs", "kind"),
    [
        ("slurm-7.0", "slurm-7.0", Adopt),
        ("slurm-7.1", "slurm-7.0", Open),
        (None, None, Open),
        (None, "x", Open),
    ],
)
def test_only_a_late_agent_of_the_same_launch_adopts_the_verdict(mine, theirs, kind):
    door = Door(identity(launch_id=mine))
    opened(door.etcd)
    door.etcd.put(KEYS.outcome, outcome(launch_id=theirs))
    entry = door.decide()
    assert isinstance(entry, kind)
    if kind is Adopt:
        assert entry.outcome.exit_code == 0


@pytest.mark.parametrize("over", [False, True], ids=["it runs", "it has its verdict"])
def test_what_an_earlier_launch_left_is_refused_once_the_scheduler_has_started_another(over):
    door = Door(identity(launch_id="slurm-7.0"))
    opened(door.etcd)
    door.etcd.put(KEYS.job, Job(SPEC, "slurm-7.1", UTC))
    if over:
        door.etcd.put(KEYS.outcome, outcome(launch_id="slurm-7.1"))
    entry = door.decide()
    assert isinstance(entry, Refuse)
    assert "launch slurm-7.0, which launch slurm-7.1" in entry.message


def test_an_agent_of_the_same_launch_enters_without_reading_the_others():
    door = Door(identity(launch_id="slurm-7.0"))
    opened(door.etcd)
    door.etcd.put(KEYS.job, Job(SPEC, "slurm-7.0", UTC))
    assert isinstance(door.decide(), Register)
    assert KEYS.nodes not in door.entrance.scopes(door.mirror)


def test_an_attempt_without_verdict_and_nodes_is_waited_out():
    door = Door()
    opened(door.etcd, Phase.RUNNING)
    door.etcd.put(KEYS.node("b"), node("b"))
    assert isinstance(door.decide(100.0), Register), "it has a node: a living job that this agent belongs to"
    door.etcd.delete(KEYS.node("b"))
    wait_s = takeover_wait_s(SPEC)
    entry = door.decide(110.0)
    assert isinstance(entry, Pause)
    assert entry.until_s == 110.0 + wait_s
    assert "--takeover" in entry.reason
    assert "attempt 0" in entry.reason
    assert isinstance(door.decide(110.0 + wait_s - 0.01), Pause)
    entry = door.decide(110.0 + wait_s)
    assert isinstance(entry, Open)
    assert entry.keys == NEXT
    assert Empty(KEYS.nodes) in entry.txn.when, "however late the watch is"


def test_an_attempt_that_never_had_a_world_is_entered_though_all_have_left_it():
    door = Door()
    opened(door.etcd)
    entry = door.decide()
    assert isinstance(entry, Register), "no rank of it can live, and who comes back to it finds it as it was"
    assert entry.keys == KEYS
    other = Door(of=replace(SPEC, max_restarts=77))
    opened(other.etcd)
    assert isinstance(other.decide(), Pause), "what was agreed on there is not what this agent wants"


def test_the_wait_begins_anew_when_a_node_was_there_meanwhile():
    door = Door()
    opened(door.etcd, Phase.RUNNING)
    door.decide(100.0)
    door.etcd.put(KEYS.node("b"), node("b"))
    door.decide(150.0)
    door.etcd.delete(KEYS.node("b"))
    assert door.decide(151.0).until_s == 151.0 + takeover_wait_s(SPEC)


@pytest.mark.parametrize(
    "me",
    [identity(takeover=True), identity(launch_id="slurm-7.1")],
    ids=["a person's word", "the scheduler restarted the same job"],
)
def test_the_wait_is_skipped_where_the_old_launch_is_known_to_be_dead(me):
    door = Door(me)
    opened(door.etcd)
    door.etcd.put(KEYS.job, Job(SPEC, "slurm-7.0", UTC))
    entry = door.decide()
    assert isinstance(entry, Open)
    assert entry.keys == NEXT


@pytest.mark.parametrize("mine", ["slurm-8.1", "slurm-7.0x", "other-7.1", "slurm-6.9", ".1", "slurm-7.-1"])
def test_no_other_launch_id_proves_that(mine):
    door = Door(identity(launch_id=mine))
    opened(door.etcd)
    door.etcd.put(KEYS.job, Job(SPEC, "slurm-7.0", UTC))
    assert isinstance(door.decide(), Pause)


def test_another_launch_with_living_nodes_is_waited_for():
    door = Door(identity(launch_id="slurm-8.0"))
    opened(door.etcd)
    door.etcd.put(KEYS.job, Job(SPEC, "slurm-7.0", UTC))
    door.etcd.put(KEYS.node("b"), node("b"))
    entry = door.decide()
    assert isinstance(entry, Pause)
    assert "launch slurm-7.0 of run id job still has nodes (b)" in entry.reason


def test_another_launch_with_another_specification_is_refused():
    door = Door(identity(launch_id="slurm-8.0"), spec(max_restarts=9))
    opened(door.etcd)
    door.etcd.put(KEYS.job, Job(SPEC, "slurm-7.0", UTC))
    door.etcd.put(KEYS.node("b"), node("b"))
    assert isinstance(door.decide(), Refuse)


def test_an_agent_without_launch_enters_a_launchs_job():
    door = Door()
    opened(door.etcd)
    door.etcd.put(KEYS.job, Job(SPEC, "slurm-7.0", UTC))
    door.etcd.put(KEYS.node("b"), node("b"))
    assert isinstance(door.decide(), Register)


def test_a_restarted_agent_that_was_the_only_one_goes_on_in_its_attempt():
    """Proven dead by this agent: there is nothing to wait for."""
    door = taken()
    door.proven("other", Proof.DEAD)
    door.decide()
    door.etcd.delete(KEYS.node("a"))
    assert isinstance(door.decide(), Register)


def test_two_successors_of_an_attempt_do_not_both_open():
    one, two = Door(identity(takeover=True)), Door(identity("b", lease=0xB, takeover=True))
    two.etcd = one.etcd
    opened(one.etcd)
    first, second = one.decide(), two.decide()
    assert one.etcd.commit(first.txn).succeeded
    assert not one.etcd.commit(second.txn).succeeded
    assert isinstance(two.decide(), Register)


def test_another_life_of_a_process_enters_its_own_attempt_only():
    door = Door(identity(attempt=0, incarnation="a-2"))
    opened(door.etcd)
    door.etcd.put(KEYS.node("a"), node("a", "a-1"), lease=0x9)
    assert door.decide() == Evict(0x9), "the holder is this very process: dead without a proof"
    door.etcd.delete(KEYS.node("a"))
    entry = door.decide()
    assert isinstance(entry, Register), "though the attempt has no node: its own ranks are gone"
    assert entry.node.succeeds == "a-1"
    door.etcd.put(KEYS.outcome, outcome())
    assert door.decide() == Adopt(outcome())
    door.etcd.put(current("job"), Current(1, UTC))
    assert door.decide() == Superseded("attempt 1 replaced attempt 0")


def test_every_record_that_is_written_can_be_read():
    door = Door()
    puts = written(door.decide().txn)
    assert decode(Node, "", puts[KEYS.node("a")].value).incarnation == "a-1"
    assert decode(Current, "", puts[current("job")].value) == Current(0, UTC)
    assert b'"incarnation":"a-1"' in puts[KEYS.election(0xA)].value
    assert encode(outcome())
