"""The stage of a whole job: agents as processes, what they print, what their ranks tell, and who is alive.

One selector hears everything: pipes of agents, the FIFO of the ranks' news, ends of processes by pidfd. A test
says what it waits for, and within which bound; nothing here sleeps. At the end agents that still run are killed,
which must end all that is below them; what lives on is killed here and fails the test.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from support.etcd_view import EtcdView, Item

T = TypeVar("T")

RANK_PROGRAM = Path(__file__).with_name("rank_program.py")
TRAINING = Path(__file__).resolve().parents[2] / "examples" / "train_ddp.py"
BOUND_S = 30.0
"""How long a test waits for anything that should come at once; generous, since other work may take the cores."""
GONE_S = 5.0
LOOK_S = 0.05

STAGE_MARK, AGENT_MARK = "NVRX_TEST_STAGE", "NVRX_TEST_AGENT"
_OURS = ("NVRX_", "PET_", "SLURM_", "ETCD_", "ETCDCTL_", "TORCH")


@dataclass(frozen=True)
class News:
    """What a rank told."""

    word: str
    pid: int
    rank: int
    round: int
    attempt: int
    node: str
    group_rank: int
    world_size: int
    run_id: str


class Watched:
    """A process that is not ours to wait for; known by pidfd, so that its pid cannot become another's."""

    def __init__(self, stage: Stage, pid: int) -> None:
        self.pid = pid
        self.ended_s: float | None = None
        self._stage = stage
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self.ended_s = time.monotonic()
            return
        stage.hear(self._pidfd, self._ended)

    @property
    def alive(self) -> bool:
        return self.ended_s is None

    def _ended(self) -> None:
        self.ended_s = time.monotonic()
        self._stage.forget(self._pidfd)
        os.close(self._pidfd)


class Agent:
    """One `nvrx-launch`. `text` is all that it wrote so far, stdout and stderr in the order of writing."""

    def __init__(
        self, stage: Stage, command: Sequence[str], environment: Mapping[str, str], mark: str
    ) -> None:
        self._stage = stage
        self.mark = mark
        self.node: str | None = None
        self.text = ""
        self.popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**environment, AGENT_MARK: mark},
            cwd=stage.folder,
            start_new_session=True,
        )
        assert self.popen.stdout is not None
        self._pipe = self.popen.stdout.fileno()
        os.set_blocking(self._pipe, False)
        stage.hear(self._pipe, self._read)
        self.process = stage.watch(self.popen.pid)

    @property
    def pid(self) -> int:
        return self.popen.pid

    def says(self, pattern: str, *, bound_s: float = BOUND_S) -> re.Match[str]:
        """Wait until it printed something that matches."""

        def found() -> re.Match[str] | None:
            return re.search(pattern, self.text, re.MULTILINE)

        return self._stage.until(
            found, f"{self.mark} says /{pattern}/", bound_s, give_up=lambda: not self.process.alive
        )

    def said(self, pattern: str) -> bool:
        return re.search(pattern, self.text, re.MULTILINE) is not None

    def ends(self, *, bound_s: float = BOUND_S) -> int:
        """Wait for its end; the exit code, negative for a signal."""
        self._stage.until(lambda: not self.process.alive, f"{self.mark} ends", bound_s)
        code = self.popen.wait()
        self._read()
        return code

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def freeze(self) -> None:
        """Stopped for certain on return."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def processes(self) -> list[int]:
        """Pids of all that descends from it and lives, however far it moved away."""
        return list(_marked(AGENT_MARK, self.mark))

    def keeper(self) -> int:
        (found,) = [pid for pid in _marked("NVRX_KEEPER", "1") if pid in self.processes()]
        return found

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
        self.popen.wait()
        self._stage.forget(self._pipe)
        assert self.popen.stdout is not None
        self.popen.stdout.close()

    def _read(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self._pipe, 1 << 20):
                self.text += data.decode(errors="replace")
            self._stage.forget(self._pipe)


class Stage:
    """See the module. `endpoint`: the etcd that agents use unless the test says otherwise."""

    def __init__(self, folder: Path, endpoint: str | None) -> None:
        self.folder = folder
        self.endpoint = endpoint
        self.name = uuid.uuid4().hex[:10]
        self.run_id = f"job-{self.name}"
        self.news_path = folder / "news"
        self.news: list[News] = []
        self.agents: list[Agent] = []
        self._handlers: dict[int, Callable[[], None]] = {}
        self._selector = selectors.DefaultSelector()
        self._closing = ExitStack()
        self._partial = b""
        os.mkfifo(self.news_path)
        self._news_pipe = os.open(self.news_path, os.O_RDWR | os.O_NONBLOCK)
        self.hear(self._news_pipe, self._read_news)

    @property
    def etcd(self) -> EtcdView:
        assert self.endpoint is not None
        return EtcdView(self.endpoint)

    def held(self) -> dict[str, Item]:
        """What etcd holds of the stage's job."""
        return self.etcd.job(self.run_id)

    def coordinator(self, *agents: Agent) -> Agent:
        """Which of them leads: the oldest candidate."""
        found = [item for key, item in self.held().items() if "/election/" in key]
        leader = min(found, key=lambda item: item.created).value["node_id"]
        return next(agent for agent in agents if agent.node == leader)

    def ask(self, verb: str, node: str | None = None, *, name: str = "1", **extra: object) -> None:
        """Ask the job for something, as `nvrx` does."""
        command = {"schema": 1, "verb": verb, "by": "ada@desk", "reason": "maintenance", **extra}
        asked = {**command, "asked_utc": "2026-01-01T00:00:00.000Z", "node_id": node, "phase": "asked"}
        self.etcd.put(f"/nvrx/v1/{self.run_id}/0/control/{name}", asked)

    # Starting -----------------------------------------------------------------------------------------

    def launch(
        self,
        *program: str,
        node: str | None = None,
        options: Sequence[str] = (),
        run_id: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Agent:
        """Start an agent; without a program, of ranks that wait for SIGUSR1."""
        meeting = (
            ["--rdzv-endpoint", self.endpoint, "--rdzv-id", run_id or self.run_id] if self.endpoint else []
        )
        named = ["--node-id", node] if node else []
        agent = self.run(
            *meeting,
            *named,
            "--log-dir",
            str(self.folder / "logs" / (node or "")),
            *options,
            *(program or self.ranks()),
            environment=environment,
        )
        agent.node = node
        return agent

    def run(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Agent:
        """Start `nvrx-launch` with exactly these arguments."""
        return self.start(sys.executable, "-m", "nvrx_launcher", *arguments, environment=environment)

    def start(self, *command: str, environment: Mapping[str, str] | None = None) -> Agent:
        """Start a program that is, or embeds, an agent."""
        base = {
            name: value for name, value in os.environ.items() if not name.startswith(_OURS) or "TEST" in name
        }
        base[STAGE_MARK] = self.name
        agent = Agent(self, command, {**base, **(environment or {})}, f"{self.name}-{len(self.agents)}")
        self.agents.append(agent)
        return agent

    def ranks(self, *options: str) -> tuple[str, ...]:
        """The program of ranks without torch."""
        return (str(RANK_PROGRAM), str(self.news_path), *options)

    def bystander(self) -> Watched:
        """A process that somebody started from the same shell."""
        popen = subprocess.Popen(["sleep", "3600"], env={**os.environ, STAGE_MARK: self.name})
        self._closing.callback(popen.wait)
        self._closing.callback(popen.kill)
        return self.watch(popen.pid)

    # Waiting ------------------------------------------------------------------------------------------

    def until(
        self,
        reached: Callable[[], T],
        what: str,
        bound_s: float = BOUND_S,
        *,
        give_up: Callable[[], bool] = lambda: False,
    ) -> T:
        """Hear events until `reached` answers something true, and return that."""
        deadline_s = time.monotonic() + bound_s
        while not (found := reached()):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or give_up():
                self.hear_now()
                if found := reached():
                    return found
                raise AssertionError(f"not within {bound_s:g} s: {what}\n{self.told()}")
            self._dispatch(left_s)
        return found

    def until_seen(self, reached: Callable[[], T], what: str, bound_s: float = BOUND_S) -> T:
        """As `until`, for what tells nobody when it is reached: look again and again."""
        deadline_s = time.monotonic() + bound_s
        while not (found := reached()):
            assert time.monotonic() < deadline_s, f"not within {bound_s:g} s: {what}\n{self.told()}"
            self.for_a_while(LOOK_S)
        return found

    def for_a_while(self, window_s: float) -> None:
        """Let the job run, hearing events: for tests whose subject is that nothing happens in a time."""
        end_s = time.monotonic() + window_s
        while (left_s := end_s - time.monotonic()) > 0:
            self._dispatch(left_s)

    def hear_now(self) -> None:
        """Take in what has already happened."""
        while self._dispatch(0):
            pass

    def up(
        self, number: int, count: int, *, run_id: str | None = None, bound_s: float = BOUND_S
    ) -> list[News]:
        """Wait until `count` ranks of a round are up; in order of rank."""
        return self.tell("up", number, count, run_id=run_id, bound_s=bound_s)

    def tell(
        self, word: str, number: int, count: int, *, run_id: str | None = None, bound_s: float = BOUND_S
    ) -> list[News]:
        def heard() -> list[News]:
            named = (word, number, run_id or self.run_id)
            found = {news.rank: news for news in self.news if (news.word, news.round, news.run_id) == named}
            return [found[rank] for rank in sorted(found)] if len(found) >= count else []

        return self.until(heard, f"{count} ranks tell {word!r} in round {number}", bound_s)

    def all_gone(self, processes: Sequence[Watched], within_s: float) -> None:
        """Wait until none of them lives."""
        self.until(
            lambda: all(not one.alive for one in processes),
            f"gone: {[one.pid for one in processes if one.alive]}",
            within_s,
        )

    def finish(self, ranks: Sequence[News]) -> None:
        """Let these ranks exit 0."""
        for one in ranks:
            os.kill(one.pid, signal.SIGUSR1)

    def watch(self, pid: int) -> Watched:
        return Watched(self, pid)

    def hear(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ)
        self._handlers[descriptor] = handler

    def forget(self, descriptor: int) -> None:
        if self._handlers.pop(descriptor, None) is not None:
            self._selector.unregister(descriptor)

    def told(self) -> str:
        """All that is known, for the report of a test that failed."""
        parts = [f"--- {agent.mark} (pid {agent.pid})\n{agent.text[-6000:]}" for agent in self.agents]
        return "\n".join([*parts, "--- news", *(str(news) for news in self.news[-20:])])

    # Ending -------------------------------------------------------------------------------------------

    def left(self) -> list[str]:
        """What still lives of the stage, once what is on its way out had GONE_S to go."""
        self.all_known_gone()
        return [f"{pid}: {_command(pid)}" for pid in _marked(STAGE_MARK, self.name)]

    def all_known_gone(self) -> None:
        living = [self.watch(pid) for pid in _marked(STAGE_MARK, self.name)]
        with suppress(AssertionError):
            self.all_gone(living, GONE_S)

    def close(self) -> None:
        self._closing.close()
        # An agent that still runs ends with all that is below it: that, too, is the product's promise.
        for agent in self.agents:
            agent.close()
        left = self.left()
        for pid in _marked(STAGE_MARK, self.name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.all_known_gone()
        for descriptor in list(self._handlers):
            self.forget(descriptor)
            os.close(descriptor)
        self._selector.close()
        assert not left, "the job left processes:\n" + "\n".join(left)

    def _dispatch(self, timeout_s: float) -> bool:
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            handler = self._handlers.get(key.fd)
            if handler is not None:
                handler()
        return bool(ready)

    def _read_news(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self._news_pipe, 1 << 16):
                self._partial += data
        *lines, self._partial = self._partial.split(b"\n")
        self.news.extend(News(**json.loads(line)) for line in lines)


@contextmanager
def stage(endpoint: str | None) -> Iterator[Stage]:
    """A stage in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="nvrx-e2e-"))
    made = Stage(folder, endpoint)
    try:
        yield made
    finally:
        try:
            made.close()
        finally:
            shutil.rmtree(folder)


def _marked(name: str, value: str) -> Iterator[int]:
    """Living processes with this variable in the environment they were started with."""
    needle = f"{name}={value}".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with suppress(OSError):
            if needle in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                yield int(entry)


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return "(gone meanwhile)"
