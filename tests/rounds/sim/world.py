"""A whole job under one seeded clock: hosts, agents, store, training, and the faults that may befall them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from rounds.sim.agent import Agent, Life
from rounds.sim.checks import RUN_ID, Checks
from rounds.sim.host import Host
from rounds.sim.keeper import Rank
from rounds.sim.store import Store
from rounds.sim.timeline import Timeline

from nvrx_async.etcd.types import Put, Txn
from nvrx_async.job.codec import decode, encode
from nvrx_async.job.keys import AttemptKeys, current
from nvrx_async.job.records import (
    Assignment,
    Command,
    Current,
    EndedBy,
    FaultKind,
    JobSpec,
    Node,
    Process,
    PythonError,
    Verb,
)
from nvrx_async.rounds.coordinator import Coordinator
from nvrx_async.rounds.effects import Effect, Machine, Notice, Registered
from nvrx_async.rounds.events import Event, Proof, Proven
from nvrx_async.rounds.identity import Identity
from nvrx_async.rounds.member import Member
from nvrx_async.rounds.promises import Answer, Peer, Question
from nvrx_async.rounds.tolerance import Tolerance

RENDEZVOUS_S = 15.0
"""Ranks that wait so long for the others of their world give up."""

SPEC = JobSpec(
    command=("train.py",),
    min_nodes=2,
    max_nodes=2,
    max_restarts=3,
    lease_ttl_s=6,
    kill_time_s=1.0,
    outage_limit_s=4.0,
    join_timeout_s=60.0,
    last_call_s=2.0,
)


def real_machines(life: Life) -> tuple[Machine, ...]:
    """The machines that are searched."""
    agent = life.agent
    me = Identity(
        run_id=RUN_ID,
        node_id=agent.node_id,
        fixed_id=agent.world.setup.fixed_ids,
        incarnation=life.incarnation,
        host=agent.host.name,
        address=agent.host.name,
        slots=agent.world.setup.slots,
        process=Process(agent.host.boot_id, agent.host.pid_namespace, agent.pid, agent.start_ticks),
        lease=life.lease,
        launch_id=agent.launch_id,
        attempt=agent.attempt,
        probe=f"{agent.host.name}:{agent.pid}",
    )
    spec, book = agent.world.setup.spec, agent.book
    member = Member(me, spec, life.mirror, book)
    return (
        member,
        Coordinator(me, spec, life.mirror, book),
        Tolerance(spec, life.mirror, member, book),
    )


@dataclass(frozen=True, slots=True)
class Setup:
    """What a model is made of. `work_s`: how long an undisturbed round trains until all ranks exit with 0.
    `asks`: ranks ask `should_stop`.

    `past_deadline_s` and `credits_late_answers` take rules away that are not the machines': keepers kill so
    much later than T; an answer that comes after its time-out is taken for the answer to the next renewal.
    """

    agents: int = 2
    spec: JobSpec = SPEC
    slots: int = 2
    work_s: float = 20.0
    grace_s: float = 0.5
    launch_id: str | None = "launch.0"
    fixed_ids: bool = False
    late_s: tuple[float, ...] = ()
    host_of: tuple[int, ...] = ()
    node_ids: tuple[str, ...] = ()
    drift: bool = True
    asks: bool = True
    slow_network: float = 0.03
    past_deadline_s: float = 0.0
    relies_on_the_registered_lease: bool = True
    credits_late_answers: bool = False
    machines: Callable[[Life], tuple[Machine, ...]] = real_machines

    def with_spec(self, **changes: object) -> Setup:
        return replace(self, spec=replace(self.spec, **changes))  # type: ignore[arg-type]


class Training:
    """The ranks of one world: all finish together, or, once one is lost, none does."""

    def __init__(self, world: World, world_size: int) -> None:
        self._world = world
        self._size = world_size
        self._ranks: list[Rank] = []
        self._broken = False
        self._done = False

    def joined(self, rank: Rank) -> None:
        self._ranks.append(rank)
        if len(self._ranks) == 1:
            self._world.timeline.after(RENDEZVOUS_S, self._give_up)
        if self._broken:
            self._lose_connection(rank)
        if len(self._ranks) == self._size:
            chance = self._world.timeline.random
            self._world.timeline.after(self._world.setup.work_s * chance.uniform(0.8, 1.2), self._finish)

    def agreed(self) -> None:
        """All stop at one step: who ends leaves nobody without a peer."""
        self._done = True

    def _give_up(self) -> None:
        """The store of the ranks waited for all of them."""
        if len(self._ranks) < self._size and not self._broken:
            for rank in self._ranks:
                self._lose_connection(rank)
            self._broken = True

    def left(self, rank: Rank) -> None:
        if self._done or self._broken:
            return
        self._broken = True
        for other in self._ranks:
            if other is not rank:
                self._lose_connection(other)

    def _finish(self) -> None:
        if self._broken or not all(rank.alive for rank in self._ranks):
            return
        self._done = True
        for rank in self._ranks:
            delay_s = self._world.timeline.random.uniform(0.0, 1.0)
            self._world.timeline.after(
                delay_s,
                lambda rank=rank: rank.host.run(lambda: rank.finish(None, exit_code=0)),  # type: ignore[misc]
            )

    def _lose_connection(self, rank: Rank) -> None:
        """A peer is gone: half of the ranks see it and raise, the others hang until a collective times out."""
        if rank.deaf:
            return
        chance = self._world.timeline.random
        kind, error, after_s = _CONNECTION_LOST if chance.random() < 0.5 else _TIMED_OUT

        def fall() -> None:
            rank.finish(kind, exit_code=1, error=error)

        self._world.timeline.after(after_s + chance.uniform(0.0, 0.5), lambda: rank.host.run(fall))


_CONNECTION_LOST = (
    FaultKind.CONNECTION_LOST,
    PythonError("DistNetworkError", "Connection closed by peer"),
    0.0,
)
_TIMED_OUT = (FaultKind.TIMEOUT, PythonError("RuntimeError", "Timed out waiting for a collective"), 12.0)


class World:
    """See the module. All public methods act at the current model time."""

    def __init__(self, setup: Setup, seed: int) -> None:
        self.setup = setup
        self.timeline = Timeline(seed)
        self.timeline.slow = setup.slow_network
        self.store = Store(self.timeline)
        self.story: list[str] = []
        self.slow_kills = False
        self.asked = 0
        self.fail_points: dict[tuple[int, int], tuple[Literal["crash", "freeze"], float]] = {}
        self.on_effect: list[Callable[[Agent, Effect], Literal["crash", "freeze"] | None]] = []
        self.notices: list[tuple[float, str, Notice]] = []
        self.hosts = self._make_hosts()
        self.agents: dict[int, Agent] = {}
        self.past_agents: list[Agent] = []
        self.checks = Checks(self)
        self.store.listeners.append(self.checks.committed)
        self._trainings: dict[tuple[int, int], Training] = {}
        self._effects_done: dict[int, int] = {}
        for slot in range(setup.agents):
            delay_s = setup.late_s[slot] if slot < len(setup.late_s) else self.timeline.random.uniform(0, 0.5)
            self.timeline.after(delay_s, lambda slot=slot: self.launch(slot))  # type: ignore[misc]

    def _make_hosts(self) -> list[Host]:
        places = self.setup.host_of or tuple(range(self.setup.agents))
        hosts = []
        for slot in range(self.setup.agents):
            host = Host(f"host{slot}", self.timeline, f"boot{places[slot]}", f"pidns{slot}")
            if self.setup.drift:
                host.rate = self.timeline.random.uniform(0.995, 1.005)
            host.offset_s = self.timeline.random.uniform(0, 1000)
            hosts.append(host)
        return hosts

    # --- running -------------------------------------------------------------------------------------

    def run(self, for_s: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Let model time pass."""
        self.timeline.run(self.timeline.now_s + for_s, stop)

    def run_until(self, reached: Callable[[], bool], within_s: float) -> bool:
        """Let model time pass until something holds; whether it did."""
        if not reached():
            self.run(within_s, reached)
        return reached()

    def over(self) -> bool:
        """Whether every agent has exited and nothing runs any more."""
        if not self.agents:
            return False
        return all(not agent.alive for agent in self.everyone) and not any(
            rank.alive for rank in self.checks.ranks
        )

    @property
    def everyone(self) -> list[Agent]:
        return [*self.past_agents, *self.agents.values()]

    def tell(self, agent: Agent | None, text: str) -> None:
        """Add a line to the story that a failing test shows."""
        if text:
            who = agent.life.incarnation if agent and agent.life else agent.node_id if agent else "-"
            self.story.append(f"{self.timeline.now_s:9.3f} {who:12s} {text}")

    # --- faults --------------------------------------------------------------------------------------

    def launch(self, slot: int, launch_id: str | None = None) -> None:
        """Start an agent's process, if none lives in this slot."""
        old = self.agents.get(slot)
        if old is not None:
            if old.alive:
                return
            self.past_agents.append(old)
        launch_id = launch_id or self.setup.launch_id
        self.agents[slot] = Agent(self, self.hosts[slot], slot, self._node_id(slot), launch_id)

    def _node_id(self, slot: int) -> str:
        return self.setup.node_ids[slot] if self.setup.node_ids else f"n{slot}"

    def agents_named(self, node_id: str) -> list[int]:
        """Slots of the agents that wish for this node id."""
        return [slot for slot in range(self.setup.agents) if self._node_id(slot) == node_id]

    def crash(self, slot: int) -> None:
        if slot in self.agents:
            self.agents[slot].crash()

    def freeze(self, slot: int, for_s: float) -> None:
        agent = self.agents.get(slot)
        if agent is not None and agent.alive and not agent.frozen:
            self.tell(agent, f"FREEZES for {for_s:g} s")
            agent.freeze()
            self.timeline.after(for_s, lambda: self._thaw(agent))

    def _thaw(self, agent: Agent) -> None:
        self.tell(agent, "THAWS")
        agent.thaw()

    def freeze_host(self, slot: int, for_s: float) -> None:
        host = self.hosts[slot]
        if not host.frozen:
            self.tell(self.agents.get(slot), f"WHOLE HOST FREEZES for {for_s:g} s")
            host.freeze()

            def thaw() -> None:
                self.tell(self.agents.get(slot), "WHOLE HOST THAWS")
                for agent in self.everyone:
                    groups = agent.keeper.groups.values() if agent.host is host and agent.keeper else ()
                    for group in groups:
                        if agent.keeper is not None and agent.keeper.until_s(group) <= host.clock_s():
                            for rank in group.alive:
                                rank.ghost = True
                host.thaw()
                self._reconnect()

            self.timeline.after(for_s, thaw)

    def cut(self, slot: int, for_s: float) -> None:
        host = self.hosts[slot]
        if not host.cut:
            self.tell(self.agents.get(slot), f"CUT from the store for {for_s:g} s")
            host.cut = True

            def heal() -> None:
                self.tell(self.agents.get(slot), "reaches the store again")
                host.cut = False
                self._reconnect()

            self.timeline.after(for_s, heal)

    def cut_peers(self, slot: int, for_s: float) -> None:
        """No question reaches this host's agents, and none of theirs anybody."""
        host = self.hosts[slot]
        self.tell(self.agents.get(slot), f"CUT from its peers for {for_s:g} s")
        host.cut_from_peers = True
        self.timeline.after(for_s, lambda: setattr(host, "cut_from_peers", False))

    def revoke_all(self) -> None:
        """A stuck old leader of the store wakes and ends all leases early (etcd #15247)."""
        if self.store.up:
            self.tell(None, "ALL LEASES ARE REVOKED")
            for lease in list(self.store.leases):
                self.store.revoke(lease)

    def lose_answers(self, slot: int, for_s: float) -> None:
        """Requests reach the store, answers and watch events do not come back."""
        host = self.hosts[slot]
        self.tell(self.agents.get(slot), f"ANSWERS LOST for {for_s:g} s")
        host.answers_lost = True

        def heal() -> None:
            host.answers_lost = False
            self._reconnect()

        self.timeline.after(for_s, heal)

    def flaky(self, slot: int, for_s: float) -> None:
        """Requests come late, perhaps after their time-out; answers get lost."""
        host = self.hosts[slot]
        self.tell(self.agents.get(slot), f"FLAKY NETWORK for {for_s:g} s")
        host.flaky = True
        self.timeline.after(for_s, lambda: setattr(host, "flaky", False))

    def outage(self, for_s: float) -> None:
        if self.store.up:
            self.tell(None, f"STORE OUTAGE for {for_s:g} s")
            self.store.stop()

            def back() -> None:
                self.tell(None, "store is back")
                self.store.restart()
                self._reconnect()

            self.timeline.after(for_s, back)

    def lag_watches(self, slot: int, lag_s: float, for_s: float) -> None:
        """What an agent watches comes late; what it reads and writes does not."""
        agent = self.agents[slot]
        life = agent.life
        if life is not None:
            self.tell(agent, f"WATCHES LAG {lag_s:g} s for {for_s:g} s")
            life.link.lag_s = lag_s
            self.timeline.after(for_s, lambda: setattr(life.link, "lag_s", 0.0))

    def _reconnect(self) -> None:
        for life in self.lives:
            if not life.link.closed:
                life.link.catch_up()

    @property
    def lives(self) -> list[Life]:
        return [agent.life for agent in self.agents.values() if agent.life is not None]

    def end_rank(self, slot: int, how: str) -> None:
        """A living rank of this agent ends by itself."""
        agent = self.agents.get(slot)
        ranks = [rank for rank in agent.ranks if not rank.killed] if agent is not None else []
        if not ranks:
            return
        rank = self.timeline.random.choice(ranks)
        self.tell(agent, f"RANK {rank.number} of round {rank.assignment.round} ends: {how}")
        match how:
            case "exit":
                rank.finish(FaultKind.EXIT_CODE, exit_code=1)
            case "signal":
                rank.finish(FaultKind.SIGNAL, EndedBy.SOMEONE_ELSE, signal=11)
            case "exception":
                line = self.timeline.random.randrange(3)
                rank.finish(
                    FaultKind.EXCEPTION, exit_code=1, error=PythonError("ValueError", "bad", "train.py", line)
                )
            case "early":
                rank.finish(None, exit_code=0)

    def ask(self, verb: Verb, slot: int) -> None:
        """A person asks for something, of this slot's node where it is about one."""
        living = self.store.keys.get(current(RUN_ID))
        if living is None:
            return
        keys = AttemptKeys(RUN_ID, decode(Current, living.key, living.value).attempt)
        about = self._node_id(slot) if verb in (Verb.DRAIN, Verb.UNDRAIN, Verb.EXCLUDE) else None
        command = Command(verb, "ada@desk", "", "", about)
        self.tell(None, f"ADA ASKS for {verb.value} {about or ''}")
        self.asked += 1
        self.store.commit(Txn((), (Put(keys.control(f"c{self.asked}"), encode(command)),)))

    def make_unkillable(self, slot: int) -> None:
        agent = self.agents.get(slot)
        if agent is not None and agent.ranks:
            rank = self.timeline.random.choice(agent.ranks)
            self.tell(agent, f"RANK {rank.number} becomes unkillable")
            rank.stuck = True

    def leave(self, slot: int, event: Event) -> None:
        agent = self.agents.get(slot)
        if agent is not None and agent.alive and agent.life is not None:
            life = agent.life
            self.tell(agent, "is asked to leave")
            agent.run(lambda: life.enqueue(event))

    def kill_delay_s(self) -> float:
        """How long a SIGKILL takes, within the kill time."""
        if self.slow_kills:
            return self.setup.spec.kill_time_s * self.timeline.random.uniform(0.3, 0.95)
        return self.timeline.random.uniform(0.002, 0.05)

    # --- what agents ask of their host ---------------------------------------------------------------

    def before_effect(self, agent: Agent, effect: Effect) -> Literal["crash", "freeze"] | None:
        """What befalls the agent right before its next effect."""
        count = self._effects_done[agent.slot] = self._effects_done.get(agent.slot, 0) + 1
        for hook in self.on_effect:
            what = hook(agent, effect)
            if what is not None:
                return what
        point = self.fail_points.pop((agent.slot, count), None)
        if point is None:
            return None
        what, for_s = point
        self.tell(agent, f"{what.upper()} before effect {count}: {type(effect).__name__}")
        if what == "crash":
            self.timeline.after(for_s, lambda: self.launch(agent.slot, agent.launch_id))
        else:
            self.timeline.after(for_s, lambda: self._thaw(agent))
        return what

    def prove_dead(self, life: Life, node: Node, answer: Callable[[Proven], None]) -> None:
        """Dead only when process and keeper are, and nothing that they started lives: swept, then told."""
        host = life.agent.host
        process = node.process
        if process.boot_id != host.boot_id or process.pid_namespace != host.pid_namespace:
            life.agent.after(0.005, lambda: answer(Proven(node.incarnation, Proof.UNKNOWN, "another host")))
            return
        held = host.processes.get(process.pid)
        if held is not None and held.alive:
            life.agent.after(0.005, lambda: answer(Proven(node.incarnation, Proof.ALIVE, "lives")))
            return
        left = [agent for agent in self.everyone if agent.pid == process.pid and agent.host is host]
        ranks = [rank for agent in left for rank in agent.ranks]
        keepers = [agent.keeper for agent in left if agent.keeper is not None and agent.keeper.alive]
        if ranks or keepers:
            for rank in ranks:
                rank.kill(self.kill_delay_s(), FaultKind.STOPPED_BY_US)
            life.agent.after(0.05, lambda: self.prove_dead(life, node, answer))
            return
        life.agent.after(0.005, lambda: answer(Proven(node.incarnation, Proof.DEAD, "dead and swept")))

    def ask_peer(
        self, asker: Agent, peer: Peer, question: Question, answer: Callable[[Answer], None]
    ) -> None:
        """Bring a question to a peer's probe port, and the answer back; silence where there is no way."""

        def open_way(one: Host, other: Host) -> bool:
            cut = one.cut_from_peers or other.cut_from_peers
            return one is other or not cut

        def arrive() -> None:
            for asked in self.agents.values():
                if asked.life_is(peer.incarnation) and asked.alive and open_way(asker.host, asked.host):
                    asked.run(lambda asked=asked: serve(asked))  # type: ignore[misc]

        def serve(asked: Agent) -> None:
            if asked.life is None:
                return
            said = asked.life.asked(question, peer.incarnation)
            self.tell(asked, f"{'PROMISES' if said.yes else 'refuses'} {question.node_id}: {said.reason}")

            def back() -> None:
                if open_way(asker.host, asked.host):
                    asker.run(lambda: answer(said))

            self.timeline.after(self.timeline.latency_s(), back)

        self.timeline.after(self.timeline.latency_s(), arrive)

    def noticed(self, agent: Agent, notice: Notice) -> None:
        if isinstance(notice, Registered):
            agent.attempt = notice.attempt
        self.notices.append((self.timeline.now_s, agent.node_id, notice))

    def step(self) -> int | None:
        """How far ranks that are held have come; None in a job whose ranks never ask."""
        return int(self.timeline.now_s * 10) if self.setup.asks else None

    def stop_at_step(self, agent: Agent, number: int) -> None:
        """This agent's ranks come to the step that all agreed on, save, and exit with 0."""
        for rank in agent.ranks:
            if rank.assignment.round == number and agent.attempt is not None:
                self._training(agent.attempt, rank.assignment).agreed()
                delay_s = self.timeline.random.uniform(0.1, 1.0)
                self.timeline.after(
                    delay_s,
                    lambda rank=rank: rank.host.run(lambda: rank.finish(None, exit_code=0)),  # type: ignore[misc]
                )

    # --- ranks ---------------------------------------------------------------------------------------

    def rank_began(self, rank: Rank) -> None:
        attempt = self.checks.rank_began(rank)
        training = self._training(attempt, rank.assignment)
        ended = rank.on_end

        def end(rank: Rank) -> None:
            training.left(rank)
            ended(rank)

        rank.on_end = end
        training.joined(rank)

    def _training(self, attempt: int, assignment: Assignment) -> Training:
        key = (attempt, assignment.round)
        if key not in self._trainings:
            self._trainings[key] = Training(self, assignment.world_size)
        return self._trainings[key]
