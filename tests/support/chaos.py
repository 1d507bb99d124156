"""Random faults in a whole job: three nodes and a spare in network namespaces, etcd on the three nodes.

Every random choice comes from one seed. A hurt node recovers before another one is hurt, since an etcd of three bears
the loss of one; the smaller faults come whenever they come, also in the midst of a recovery.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from support.clock_step import SteppedClock
from support.netspaces import Network, network_here
from support.stage import AGENT_MARK, Agent, Stage, stage
from support.worlds import Frozen, prepare, recorded

MEMBERS, NODES = 3, 4
RANK_PROGRAM = Path(__file__).with_name("chaos_rank.py")
PORT = 2379
TTL_S = 3
LOG_BYTES = 16 << 20
QUIET_S = 60.0
"""Within this time after the last fault the job trains again, and later ends."""
OPTIONS = (
    *("--nnodes", str(MEMBERS), "--nproc-per-node", "1", "--lease-ttl", str(TTL_S), "--hang-timeout", "8"),
    *("--hang-startup-timeout", "20", "--max-restarts", "100000", "--restart-limit", "100000"),
    *(
        "--no-progress-limit",
        "0",
        "--culprit-limit",
        "0",
        "--node-loss-limit",
        "100000",
        "--warm-workers",
        "off",
    ),
    *("--startup-grace", "0"),
)


class Node:
    """One host, its agent while there is one, and what is wrong with it at the moment."""

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.agent: Agent | None = None
        self.hurt = ""
        self.clock: SteppedClock | None = None

    @property
    def alive(self) -> bool:
        return self.agent is not None and self.agent.process.alive


class Chaos:
    """The job, what can be done to it, and the order in which that is done."""

    def __init__(self, on: Stage, net: Network, seed: int, say: Callable[[str], None]) -> None:
        self.stage = on
        self.net = net
        self.random = random.Random(seed)
        self.say = say
        self.began_s = time.monotonic()
        self.nodes = [Node(number, f"n{number}") for number in range(NODES)]
        self.training = on.folder / "training"
        self.frozen: list[Frozen] = []
        self.exits: list[str] = []
        self.failures: list[str] = []
        self.done: dict[str, int] = {}
        self._due: list[tuple[float, Callable[[], None]]] = []
        prepare(self.training)
        (on.folder / "tmp").mkdir()
        for node in self.nodes:
            logs = self._logs(node)
            logs.mkdir(parents=True)
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={LOG_BYTES}", "logs", str(logs)], check=True, timeout=20
            )
            clock = on.folder / f"clock-{node.name}"
            clock.mkdir()
            with suppress(
                FileNotFoundError, subprocess.CalledProcessError
            ):  # without a compiler no clock jumps
                node.clock = SteppedClock(clock)

    # The job --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start all nodes; returns when the training makes steps."""
        for node in self.nodes[:MEMBERS]:
            self.start(node)
        self.until_it_trains()
        self.start(self.nodes[MEMBERS])

    def start(self, node: Node) -> None:
        command = [sys.executable, "-m", "nvrx_launcher", "--node-id", node.name, *OPTIONS]
        command += ["--rdzv-endpoint", self.stage.endpoint or "", "--rdzv-id", self.stage.run_id]
        command += ["--log-dir", str(self._logs(node)), str(RANK_PROGRAM), str(self.training)]
        environment = {
            "TMPDIR": str(self.stage.folder / "tmp"),
            **(node.clock.environment if node.clock else {}),
        }
        inside = self.net.hosts[node.number].command(*command)
        node.agent = self.stage.start(*inside, environment=environment)
        node.agent.node = node.name

    def until_it_trains(self, bound_s: float = QUIET_S) -> None:
        """Wait until all ranks of one round have made a step from now on."""
        since_s = time.clock_gettime(time.CLOCK_BOOTTIME)

        def trains() -> bool:
            made: dict[int, set[int]] = {}
            for entry in recorded(self.training):
                if entry.what == "step" and entry.at_s > since_s:
                    made.setdefault(entry.round, set()).add(entry.rank)
            return any(len(ranks) == MEMBERS for ranks in made.values())

        self._until(trains, "all ranks make steps", bound_s)

    def _until(self, reached: Callable[[], bool], what: str, bound_s: float) -> None:
        """Files and etcd tell nobody here: look again and again."""
        ends_s = time.monotonic() + bound_s
        while not reached():
            assert not self.failures, "\n".join(self.failures)
            assert time.monotonic() < ends_s, f"not within {bound_s:g} s: {what}\n{self.stage.told()}"
            self._pass(0.2)

    def rage(self, seconds: float) -> None:
        """Faults, one every few seconds, for so long."""
        ends_s = time.monotonic() + seconds
        while (left_s := ends_s - time.monotonic()) > 0 and not self.failures:
            self._pass(min(left_s, self.random.uniform(1.0, 5.0)))
            name, fault = self.random.choice(FAULTS)
            if (what := fault(self)) is not None:
                self.done[name] = self.done.get(name, 0) + 1
                self._note(f"{name}: {what}")

    def calm(self) -> None:
        """Undo what is wrong, wait until all nodes are in the job, and let the training end."""
        self._note("the faults end")
        for _, undo in sorted(self._due, key=lambda due: due[0]):
            undo()
        self._due = []
        self._pass(0.1)
        for _, undo in sorted(self._due, key=lambda due: due[0]):  # agents that ended are started at once
            undo()
        self._due = []
        self._until(self._all_registered, "all nodes are in the job", QUIET_S)
        self.until_it_trains()
        (self.training / "end").touch()
        for node in self.nodes:
            assert node.agent is not None
            code = node.agent.ends(bound_s=QUIET_S)
            if code != 0:
                self.failures.append(f"the agent of {node.name} ended with {code}")

    def _all_registered(self) -> bool:
        """Whether each node's agent of now is in the job; the key of one that was killed stays for a TTL."""
        held = self._ask("/v3/kv/range", {"key": "AA==", "range_end": "AA=="}, self.nodes[0])
        pattern = rf"/{self.stage.run_id}/\d+/nodes/"
        found = {
            json.loads(base64.b64decode(one["value"]))["process"]["pid"]
            for one in held.get("kvs", [])
            if re.search(pattern, base64.b64decode(one["key"]).decode())
        }
        return len(found) == NODES and found == {node.agent.pid for node in self.nodes if node.agent}

    # Time -----------------------------------------------------------------------------------------------

    def _pass(self, seconds: float) -> None:
        """Let time pass, doing what is due in it, and starting agents anew that have ended."""
        ends_s = time.monotonic() + seconds
        while True:
            self._look_for_ends()
            self._due.sort(key=lambda due: due[0])
            now_s = time.monotonic()
            if self._due and self._due[0][0] <= now_s:
                self._due.pop(0)[1]()
            elif now_s >= ends_s:
                return
            else:
                until_s = min(ends_s, self._due[0][0] if self._due else ends_s, now_s + 0.5)
                self.stage.for_a_while(until_s - now_s)

    def _later(self, after_s: float, action: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + after_s, action))

    def _look_for_ends(self) -> None:
        for node in self.nodes:
            if node.agent is None or node.alive:
                continue
            code = node.agent.popen.wait()
            self.exits.append(f"{node.name}: {code}")
            if code >= 0:
                self._note(f"the agent of {node.name} has ended with {code}")
            if code in (0, 1, 2, 3, 93):
                self.failures.append(
                    f"the agent of {node.name} has ended with {code}\n{node.agent.text[-3000:]}"
                )
            node.agent = None
            node.hurt = node.hurt or "down"
            self._later(self.random.uniform(0.5, 6.0), lambda node=node: self._again(node))

    def _again(self, node: Node) -> None:
        self._note(f"{node.name} starts again")
        node.hurt = ""
        self.start(node)

    def _note(self, text: str) -> None:
        self.say(f"{time.monotonic() - self.began_s:7.1f} s  {text}")

    # Faults: each says what it did, or None where it cannot be done now ----------------------------------

    def hit_rank(self, number: int) -> str | None:
        found = self._rank_of(self._any(alive=True))
        if found is None:
            return None
        self._signal(found, number)
        if number == signal.SIGSTOP:
            self._later(self.random.uniform(0.5, 12.0), lambda: self._signal(found, signal.SIGCONT))
        return f"rank with pid {found} gets {signal.Signals(number).name}"

    def hit_agent(self, number: int) -> str | None:
        node = self._whole_one()
        if node is None or node.agent is None:
            return None
        self._signal(node.agent.pid, number)
        return f"agent of {node.name}{self._thaw_later(node, [node.agent.pid]) if number == signal.SIGSTOP else ''}"

    def hit_keeper(self, number: int) -> str | None:
        node = self._any(alive=True)
        pids = self._pids(node, b"NVRX_KEEPER=1")
        if not pids or node.hurt:
            return None
        self._signal(pids[0], number)
        if number == signal.SIGSTOP:
            self._later(self.random.uniform(0.5, 10.0), lambda: self._signal(pids[0], signal.SIGCONT))
        return f"keeper of {node.name}, pid {pids[0]}, gets {signal.Signals(number).name}"

    def hit_etcd(self, number: int, *, leader: bool = False) -> str | None:
        node = self._leader() if leader else self._whole_one()
        if node is None or not self._is_whole(node) or (pid := self._etcd_of(node)) is None:
            return None
        self._signal(pid, number)
        frozen = number == signal.SIGSTOP
        return f"etcd of {node.name}, pid {pid}{self._thaw_later(node, [pid]) if frozen else ''}"

    def kill_node(self) -> str | None:
        node = self._whole_one()
        if node is None or node.agent is None:
            return None
        node.hurt = "killed"
        for pid in [node.agent.pid, *node.agent.processes()]:
            self._signal(pid, signal.SIGKILL)
        return f"{node.name} with all that it runs"

    def freeze_node(self) -> str | None:
        node = self._whole_one()
        if node is None or node.agent is None:
            return None
        stopped: set[int] = set()
        while more := set(node.agent.processes()) - stopped:
            for pid in more:
                self._signal(pid, signal.SIGSTOP)
            stopped |= more
        since_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.frozen.append(Frozen(node.name, since_s, frozenset(stopped)))
        pids = list(stopped)
        self.random.shuffle(pids)
        return f"{node.name} with all that it runs{self._thaw_later(node, pids)}"

    def cut(self, count: int) -> str | None:
        if any(node.hurt for node in self.nodes) or not self._etcd_is_whole():
            return None
        numbers = self.random.sample(range(NODES), count)
        self.net.cut(*numbers)
        for number in numbers:
            self.nodes[number].hurt = "cut off"
        seconds = self.random.uniform(0.5, 10.0)
        self._later(seconds, lambda: self._heal(numbers))
        return f"{', '.join(self.nodes[number].name for number in numbers)} for {seconds:.1f} s"

    def fill_disk(self) -> str | None:
        node = self._any()
        filler = self._logs(node) / "filler"
        if filler.exists():
            return None
        with filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(1 << 20)):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
        self._later(self.random.uniform(1.0, 8.0), filler.unlink)
        return f"log folder of {node.name}"

    def step_clock(self) -> str | None:
        node = self._any()
        if node.clock is None:
            return None
        offset_s = self.random.choice((-86_400, -3600, -5, 5, 3600, 86_400))
        node.clock.step_to(offset_s)
        return f"{node.name} by {offset_s} s"

    # Looking --------------------------------------------------------------------------------------------

    def _any(self, *, alive: bool = False) -> Node:
        return self.random.choice([node for node in self.nodes if node.alive or not alive])

    def _whole_one(self) -> Node | None:
        """A node that may be hurt now, since all others are well."""
        node = self.random.choice(self.nodes)
        return node if self._is_whole(node) else None

    def _is_whole(self, node: Node) -> bool:
        """Whether the others do without it: its member is of a cluster of three that all answer."""
        return all(one.alive and not one.hurt for one in self.nodes) and self._etcd_is_whole() and node.alive

    def _etcd_is_whole(self) -> bool:
        return len([node for node in self.nodes[:MEMBERS] if self._status(node).get("leader")]) == MEMBERS

    def _leader(self) -> Node | None:
        for node in self.nodes[:MEMBERS]:
            status = self._status(node)
            if status.get("leader") and status["header"]["member_id"] == status["leader"]:
                return node
        return None

    def _status(self, node: Node) -> dict[str, object]:
        found = self._ask("/v3/maintenance/status", {}, node)
        return {} if found.get("isLearner") else found

    def _ask(self, path: str, body: dict[str, object], node: Node) -> dict[str, object]:
        url = f"http://{Network.address(node.number)}:{PORT}{path}"
        try:
            with urllib.request.urlopen(url, data=json.dumps(body).encode(), timeout=1.0) as answer:
                found: dict[str, object] = json.load(answer)
        except (OSError, urllib.error.URLError):
            return {}
        return found

    def _rank_of(self, node: Node) -> int | None:
        return next(iter(self._pids(node, b"NVRX_ROUND=", command=b"chaos_rank.py")), None)

    def _etcd_of(self, node: Node) -> int | None:
        return next(iter(self._pids(node, b"", command=b"--initial-cluster=")), None)

    def _pids(self, node: Node, variable: bytes, command: bytes = b"") -> list[int]:
        assert node.agent is not None
        found = []
        for pid in node.agent.processes():
            with suppress(OSError):
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                if b"\0" + variable in environment and command in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found if variable != b"NVRX_ROUND=" else [pid for pid in found if pid != node.agent.pid]

    def _thaw_later(self, node: Node, pids: list[int]) -> str:
        node.hurt = "frozen"
        seconds = self.random.uniform(0.3, 12.0)

        def thaw() -> None:
            self._note(f"{node.name} goes on")
            node.hurt = ""
            for pid in pids:
                self._signal(pid, signal.SIGCONT)

        self._later(seconds, thaw)
        return f" for {seconds:.1f} s"

    def _heal(self, numbers: list[int]) -> None:
        self._note("the network is whole again")
        self.net.heal()
        for number in numbers:
            self.nodes[number].hurt = ""

    def _signal(self, pid: int, number: int) -> None:
        mark = f"{AGENT_MARK}={self.stage.name}".encode()
        with suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes():  # still the one it was
                os.kill(pid, number)

    def _logs(self, node: Node) -> Path:
        return self.stage.folder / "logs" / node.name


FAULTS: tuple[tuple[str, Callable[[Chaos], str | None]], ...] = (
    ("a rank raises", lambda on: on.hit_rank(signal.SIGUSR1)),
    ("a rank exits", lambda on: on.hit_rank(signal.SIGUSR2)),
    ("a rank is killed", lambda on: on.hit_rank(signal.SIGKILL)),
    ("a rank crashes", lambda on: on.hit_rank(signal.SIGSEGV)),
    ("a rank freezes", lambda on: on.hit_rank(signal.SIGSTOP)),
    ("an agent is killed", lambda on: on.hit_agent(signal.SIGKILL)),
    ("an agent freezes", lambda on: on.hit_agent(signal.SIGSTOP)),
    ("a keeper is killed", lambda on: on.hit_keeper(signal.SIGKILL)),
    ("a keeper freezes", lambda on: on.hit_keeper(signal.SIGSTOP)),
    ("an etcd is killed", lambda on: on.hit_etcd(signal.SIGKILL)),
    ("an etcd freezes", lambda on: on.hit_etcd(signal.SIGSTOP)),
    ("etcd's leader is killed", lambda on: on.hit_etcd(signal.SIGKILL, leader=True)),
    ("a node is killed", Chaos.kill_node),
    ("a node freezes", Chaos.freeze_node),
    ("one node is cut off", lambda on: on.cut(1)),
    ("two nodes are cut off", lambda on: on.cut(2)),
    ("a disk is full", Chaos.fill_disk),
    ("a clock jumps", Chaos.step_clock),
)


@contextmanager
def chaos(seed: int, say: Callable[[str], None]) -> Iterator[Chaos]:
    """The job on a stage of its own. Must run in namespaces of its own."""
    endpoints = ",".join(f"{Network.address(number)}:{PORT}" for number in range(MEMBERS))
    with ExitStack() as stack:
        net = stack.enter_context(network_here(NODES))
        made = Chaos(stack.enter_context(stage(endpoints)), net, seed, say)
        stack.callback(_unmount, made)
        yield made


def _unmount(made: Chaos) -> None:
    for node in made.nodes:
        subprocess.run(["umount", "-l", str(made.stage.folder / "logs" / node.name)], check=False, timeout=20)
