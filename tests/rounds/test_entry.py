"""How an agent enters a job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rounds_kit import KEYS, SPEC, UTC, Keys, identity, node, opened, process, sealed, seat, spec

from nvrx_async.etcd.types import CreatedAt, Empty, Exists, ModifiedAt, Put, Scope
from nvrx_async.job.codec import decode, encode
from nvrx_async.job.keys import AttemptKeys, current
from nvrx_async.job.records import Assignment, Current, Job, Node, Outcome, Phase, Round, Spare, Struck
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
    Strike,
    Superseded,
)
from nvrx_async.rounds.events import Changed, Listed, Now, Proof
from nvrx_async.rounds.fencing import SETTLE_S, takeover_wait_s
from nvrx_async.rounds.identity import Earlier
from nvrx_async.rounds.mirror import Mirror
from nvrx_async.rounds.predecessors import FOLLOWED_BY_ALL

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
    opened(door.etcd)
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


def test_the_first_attempt_has_the_number_that_the_agent_brings():
    entry = Door(replace(identity("a"), first_attempt=3)).decide()
    assert isinstance(entry, Open)
    assert entry.keys == AttemptKeys("job", 3)


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


def test_where_etcd_has_forgotten_an_attempt_without_a_verdict_its_ranks_are_waited_for():
    me = identity(first_attempt=3, earlier=Earlier(2, 10.0, "/logs/history.jsonl"))
    door = Door(me)
    entry = door.decide(at_s=100.0)
    assert isinstance(entry, Pause)
    assert entry.until_s == 110.0
    assert "/logs/history.jsonl tells of attempt 2, which left no verdict" in entry.reason
    assert "then attempt 3 begins (--takeover" in entry.reason
    assert door.decide(at_s=109.9) == entry
    begun = door.decide(at_s=110.0)
    assert isinstance(begun, Open)
    assert begun.keys == AttemptKeys("job", 3)
    assert isinstance(Door(replace(me, takeover=True)).decide(), Open)


def test_an_attempt_that_etcd_knows_of_is_entered_whatever_the_log_folder_tells():
    door = Door(identity(first_attempt=3, earlier=Earlier(2, 10.0, "/logs/history.jsonl")))
    opened(door.etcd)
    door.etcd.put(KEYS.node("b"), node("b"))
    assert isinstance(door.decide(), Register)


def test_who_saw_the_attempt_alive_takes_the_verdict_that_came_meanwhile():
    door = living()
    assert isinstance(door.decide(), Register)
    door.etcd.put(KEYS.outcome, outcome())  # which its transaction compares: it is refused
    assert door.decide() == Adopt(outcome())


def test_who_waited_for_its_place_in_the_attempt_takes_its_verdict():
    door = living()
    door.etcd.put(KEYS.node("a"), node("a", "a-0", process=process(8)), lease=0x9)
    door.proven("a-0", Proof.UNKNOWN)
    assert isinstance(door.decide(), Pause)
    door.etcd.put(KEYS.outcome, outcome())
    assert door.decide() == Adopt(outcome())


def test_who_waited_for_an_attempt_to_be_gone_begins_the_next():
    door = Door()
    opened(door.etcd)
    assert isinstance(door.decide(), Pause), "nobody is in it"
    door.etcd.put(KEYS.outcome, outcome())
    assert isinstance(door.decide(), Open)


@pytest.mark.parametrize(
    ("proof", "kind"), [(Proof.DEAD, Adopt), (Proof.ALIVE, Open), (Proof.UNKNOWN, Open), (None, Prove)]
)
def test_whose_predecessor_was_killed_in_an_attempt_takes_its_verdict(proof, kind):
    door = Door()
    opened(door.etcd)
    door.etcd.put(KEYS.node("a"), node("a", "a-0", process=process(8)), lease=0x9)
    door.etcd.put(KEYS.outcome, outcome())
    if proof is not None:
        door.proven("a-0", proof)
    assert isinstance(door.decide(), kind)


@pytest.mark.parametrize("other", [{"takeover": True}, {"launch_id": "slurm-7.1"}])
def test_another_launch_takes_no_verdict_of_the_one_before(other):
    door = Door(identity(**other))
    opened(door.etcd)
    door.etcd.put(KEYS.node("a"), node("a", "a-0", process=process(8)), lease=0x9)
    door.etcd.put(KEYS.outcome, outcome(launch_id="slurm-7.0"))
    door.proven("a-0", Proof.DEAD)
    assert isinstance(door.decide(), Open)


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


def left(*names, me=None, spares=(), token="t", known=True):
    """An attempt in which a world ran, whose agents have all lost their leases."""
    door = Door(me)
    opened(door.etcd, Phase.RUNNING, 3, token=token, sealed_in=2)
    seats = tuple(seat(name, place) for place, name in enumerate(names))
    sealed(door.etcd, seats, 2, spares, token)
    for one in seats:
        of = process(50 + one.group_rank) if known else None
        assigned = Assignment(2, one, 2 * len(seats), len(seats), "10.0.0.a", 1, process=of)
        door.etcd.put(KEYS.assignment(2, token, one.node_id), assigned)
    return door


def me(**changes):
    return identity(incarnation="a-2", **changes)


def moved(door, entry):
    assert isinstance(entry, Open), entry
    assert entry.keys == NEXT
    as_read = ModifiedAt(KEYS.round, door.etcd.held[KEYS.round].mod_revision)
    assert entry.txn.when[1:] == (Empty(KEYS.nodes), as_read), "however late the watches are"
    assert door.etcd.commit(entry.txn).succeeded
    return True


@pytest.mark.parametrize(
    "why", ["nobody proves it", "it lives", "nobody can tell", "its process is not known"]
)
def test_an_attempt_without_verdict_and_nodes_is_waited_out(why):
    door = left("a" if why != "nobody proves it" else "b", me=me(), known=why != "its process is not known")
    name = "b" if why == "nobody proves it" else "a"
    if why in ("it lives", "nobody can tell"):
        assert isinstance(door.decide(110.0), Prove)
        door.proven("a-1", Proof.ALIVE if why == "it lives" else Proof.UNKNOWN)
    wait_s = takeover_wait_s(SPEC)
    entry = door.decide(110.0)
    assert isinstance(entry, Pause)
    assert entry.until_s == 110.0 + wait_s
    for words in (
        "attempt 0 of run id job",
        f"not proven dead: {name} (host host-{name})",
        "131 s",
        "--takeover",
    ):
        assert words in entry.reason
    assert isinstance(door.decide(110.0 + wait_s - 0.01), Pause)
    assert moved(door, door.decide(110.0 + wait_s))


def test_the_only_member_is_proven_dead_by_its_successor_and_the_next_attempt_begins_at_once():
    door = left("a", me=me())
    holder = door.decide()
    assert isinstance(holder, Prove)
    assert (holder.holder.incarnation, holder.holder.process) == ("a-1", process(50))
    door.proven("a-1", Proof.DEAD)
    assert moved(door, door.decide())


def test_each_says_that_its_predecessor_is_dead_and_who_sees_all_dead_begins():
    door = left("a", "b", me=me())
    door.decide()
    door.proven("a-1", Proof.DEAD)
    door.entrance.evidence["a-1"] = "pid 50 is dead"
    entry = door.decide()
    assert isinstance(entry, Strike)
    assert door.etcd.commit(entry.txn).succeeded
    told = decode(Struck, "", door.etcd.held[KEYS.struck(2, "a")].value)
    assert told == Struck("a", "a-1", "pid 50 is dead", proven=True)
    waits = door.decide()
    assert isinstance(waits, Pause)
    assert "not proven dead: b (host host-b);" in waits.reason
    other = Door(identity("b", lease=0xB, incarnation="b-2"))
    other.etcd = door.etcd
    assert isinstance(other.decide(), Prove)
    other.proven("b-1", Proof.DEAD)
    assert moved(other, other.decide())
    door.look()
    assert isinstance(door.decide(), Register)


def test_one_agent_proves_all_that_ran_on_its_host():
    door = left("a", "b", me=me(host="host-b"))
    for name in "ab":
        assert door.decide().holder.incarnation == f"{name}-1"
        door.proven(f"{name}-1", Proof.DEAD)
    assert moved(door, door.decide())


@pytest.mark.parametrize("struck", [Struck("b", "b-1", "fenced"), Struck("b", "b-0", "dead", proven=True)])
def test_only_a_proof_of_this_very_member_ends_the_wait(struck):
    """Fenced says that its round was over for it; it may have come back for the next one."""
    door = left("a", "b", me=me())
    door.etcd.put(KEYS.struck(2, "b"), struck)
    door.decide()
    door.proven("a-1", Proof.DEAD)
    door.etcd.commit(door.decide().txn)
    assert isinstance(door.decide(), Pause)


def test_a_strike_overrules_what_a_coordinator_said():
    door = left("a", "b", me=me())
    door.etcd.put(KEYS.struck(2, "a"), Struck("a", "a-1", "fenced"))
    door.decide()
    door.proven("a-1", Proof.DEAD)
    assert door.etcd.commit(door.decide().txn).succeeded
    assert isinstance(door.decide(), Pause)


@pytest.mark.parametrize("changed", ["round", "attempt", "outcome", "strike"])
def test_a_strike_is_refused_when_anything_it_was_decided_on_has_changed(changed):
    door = left("a", "b", me=me())
    door.decide()
    door.proven("a-1", Proof.DEAD)
    entry = door.decide()
    key, record = {
        "round": (KEYS.round, Round(4, Phase.FORMING, UTC)),
        "attempt": (current("job"), Current(1, UTC)),
        "outcome": (KEYS.outcome, outcome()),
        "strike": (KEYS.struck(2, "a"), Struck("a", "a-1", "fenced")),
    }[changed]
    door.etcd.put(key, record)
    assert not door.etcd.commit(entry.txn).succeeded


@pytest.mark.parametrize("changed", ["a node", "round", "attempt"])
def test_the_next_attempt_is_refused_when_anything_it_was_decided_on_has_changed(changed):
    door = left("a", me=me())
    door.decide()
    door.proven("a-1", Proof.DEAD)
    entry = door.decide()
    key, record = {
        "a node": (KEYS.node("b"), node("b")),
        "round": (KEYS.round, Round(4, Phase.FORMING, UTC)),
        "attempt": (current("job"), Current(1, UTC)),
    }[changed]
    door.etcd.put(key, record)
    assert not door.etcd.commit(entry.txn).succeeded


@pytest.mark.parametrize("who", ["nobody sealed", "a spare"])
def test_who_has_no_ranks_is_given_time_to_come_back_and_no_more(who):
    """After a mass loss of leases all register again: a newcomer must not throw them out."""
    door = left("a", me=me(), spares=(Spare("s", "s-1"),))
    if who == "nobody sealed":
        door = Door(me())
        opened(door.etcd)
    else:
        door.decide()
        door.proven("a-1", Proof.DEAD)
        assert door.etcd.commit(door.decide(100.0).txn).succeeded, "others that wait may be told already"
    entry = door.decide(100.0)
    assert isinstance(entry, Pause)
    assert entry.until_s == 100.0 + SPEC.lease_ttl_s + SETTLE_S
    assert "no rank of it lives" in entry.reason
    assert moved(door, door.decide(entry.until_s))


def test_in_a_large_world_only_the_first_members_successor_is_told_of_every_death():
    names = [f"n{number}" for number in range(FOLLOWED_BY_ALL + 1)]
    struck = KEYS.all_struck(2)
    first = left(*names, me=me(node_id="n0", host="host-n0"))
    last = left(*names, me=me(node_id=names[-1], host=f"host-{names[-1]}"))
    first.look()
    last.look()
    assert struck in first.entrance.scopes(first.mirror)
    assert struck not in last.entrance.scopes(last.mirror)
    assert Scope(KEYS.struck(2, names[-1])) in last.entrance.scopes(last.mirror)
    last.decide()
    last.proven(f"{names[-1]}-1", Proof.DEAD)
    assert last.etcd.commit(last.decide().txn).succeeded
    assert "and 248 more" in last.decide().reason


@pytest.mark.parametrize(
    ("proof", "succeeds"), [(Proof.DEAD, "a-1"), (Proof.ALIVE, None), (Proof.UNKNOWN, None)]
)
def test_who_registers_first_proves_dead_who_had_its_seat(proof, succeeds):
    """Its lease is over, another member's is not: without a proof a new leader has to wait for it."""
    door = left("a", "b", me=me())
    door.etcd.put(KEYS.node("b"), node("b"))
    assert isinstance(door.decide(), Prove)
    door.proven("a-1", proof)
    entry = door.decide()
    assert isinstance(entry, Register)
    assert (entry.node.node_id, entry.node.succeeds) == ("a", succeeds)


def test_the_wait_begins_anew_when_a_node_was_there_meanwhile():
    door = left("c")
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
