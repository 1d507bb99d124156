"""Whether a process of this host is dead, and the end of everything it had started.

Processes are known by marks and kinship, never by name: the environment mark `NVRX_JOB_TAG` of job, node and
incarnation, which every process of a keeper inherits, and being below a marked one. A process that is not
marked is left alone, also where it is a child of this one (an embedded etcd).

Calls here look through `/proc` and wait for deaths, for seconds at worst: the agent runs them in a thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from nvrx_async.job.records import Node, Process
from nvrx_launcher import life_sign
from nvrx_launcher.config import KILL_TIME_S
from nvrx_launcher.keeper import processes
from nvrx_launcher.keeper.linux import become_subreaper

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = [
    "KEEPER_MARK",
    "MARK",
    "Proof",
    "Swept",
    "Verdict",
    "become_subreaper",
    "prove_dead",
    "sweep",
    "sweep_orphans",
    "this_process",
    "verdict",
]

MARK = "NVRX_JOB_TAG"
"""Variable that every process of a keeper carries."""

KEEPER_MARK = "NVRX_KEEPER"
"""Variable that only the keeper itself carries, beside MARK."""

INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""That of no container (PROC_PID_INIT_INO in linux/proc_ns.h): it ends with the machine only."""

_LOOK_AGAIN_S = 1.0
_DYING_S = 0.3


class Verdict(Enum):
    """What can be said of a process that was recorded earlier."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep killed, and what outlived it: "pid (name)" each."""

    killed: tuple[str, ...]
    alive: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Proof:
    """What can be said of an agent: DEAD only with all that it had started. `evidence` says in a sentence why."""

    verdict: Verdict
    evidence: str


def this_process(tag: str, net_namespace: str = "") -> Process:
    """The record by which a successor on this host can tell whether this process, and what it started, lives."""
    stat = processes.read_stat(os.getpid())
    if stat is None:
        raise ProcessLookupError(
            "/proc does not show this process: it must be mounted for this pid namespace"
        )
    return Process(_boot_id(), _pid_namespace(), stat.pid, stat.start_ticks, tag, net_namespace)


def verdict(process: Process) -> Verdict:
    """Judge a recorded process. A zombie is dead.

    A pid says something only in the namespace and the boot it was seen in. Another boot id may mean another
    machine of the same name, another namespace a container whose processes are invisible here: unknown.
    """
    if process.boot_id != _boot_id() or process.pid_namespace != _pid_namespace():
        return Verdict.UNKNOWN
    stat = processes.read_stat(process.pid)
    if stat is None or stat.start_ticks != process.start_ticks or not stat.alive:
        return Verdict.DEAD
    return Verdict.ALIVE


def prove_dead(node: Node, run_id: str, *, within_s: float = 10.0) -> Proof:
    """Prove that the agent behind a registration is dead, ending what it left. Blocks up to `within_s`.

    Its keeper exits last and carries the mark too, so nothing marked alive means: no process of it is left.
    """
    was = node.process
    if not was.tag.startswith(f"{run_id}/"):
        # It comes out of etcd, where others write too: processes of another job are not this one's to end.
        return Proof(Verdict.UNKNOWN, f"its registration names no process of job {run_id}")
    found = verdict(was)
    if found is Verdict.UNKNOWN:
        return _prove_by_silence(was)
    if found is Verdict.ALIVE:
        return Proof(found, f"its process (pid {was.pid}) lives on this host")
    swept = sweep(was.tag, within_s=within_s)
    if swept.alive:
        alive = ", ".join(swept.alive)
        evidence = f"its process (pid {was.pid}) is dead, but SIGKILL does not end {alive}"
        return Proof(Verdict.UNKNOWN, evidence)
    left = f"; ended what it had left: {', '.join(swept.killed)}" if swept.killed else ""
    evidence = f"its process (pid {was.pid}) is dead and nothing it started lives on this host{left}"
    return Proof(Verdict.DEAD, evidence)


def _prove_by_silence(was: Process) -> Proof:
    """For a process of another container. Who is killed may do something for KILL_TIME_S more."""
    if was.boot_id != _boot_id():
        return Proof(Verdict.UNKNOWN, f"pid {was.pid} was seen in another boot: nobody can tell")
    here = was.net_namespace != "" and was.net_namespace == life_sign.network_namespace()
    if not here or was.pid_namespace == INITIAL_PID_NAMESPACE:
        return Proof(Verdict.UNKNOWN, f"pid {was.pid} was seen in another container: nobody can tell")
    if not life_sign.is_heard(was.tag):
        threading.Event().wait(KILL_TIME_S + _DYING_S)
        if not life_sign.is_heard(was.tag):
            evidence = (
                f"its process (pid {was.pid}) was in another container of this pod or host, and no process holds "
                "the socket any more that it, its keeper and its ranks held"
            )
            return Proof(Verdict.DEAD, evidence)
    return Proof(
        Verdict.UNKNOWN, f"something that pid {was.pid} started in another container of this host lives"
    )


def sweep_orphans(run_id: str) -> tuple[str, ...]:
    """End what earlier agents of this job left on this host: marked processes of which no keeper lives.

    An agent and its keeper that are killed together leave their ranks' helpers to nobody, and once the lease
    has ended no registration names them any more. Blocks; returns what was ended.
    """
    tags: dict[str, bool] = {}
    for stat in processes.table().values():
        environment = processes.environment(stat.pid) if stat.alive else frozenset()
        tag = next(
            (word[len(MARK) + 1 :] for word in environment if word.startswith(f"{MARK}=".encode())), b""
        )
        if tag.startswith(f"{run_id}/".encode()):
            kept = f"{KEEPER_MARK}=1".encode() in environment
            tags[os.fsdecode(tag)] = tags.get(os.fsdecode(tag), False) or kept
    return tuple(name for tag, kept in tags.items() if not kept for name in sweep(tag).killed)


def sweep(tag: str, *, sessions: Collection[int] = (), within_s: float = 10.0) -> Swept:
    """SIGKILL everything with the mark, and what is below it, until nothing lives or `within_s` have passed.

    A keeper is left to finish first, since it knows best what it started, and is killed if it does not end.
    `sessions`: sessions of ranks whose processes below this one belong to the sweep even without a mark (a
    process can overwrite its environment). Dead ones that became children of this process are reaped.
    """
    deadline_s = time.monotonic() + within_s
    killed: dict[int, str] = {}
    patience_s = time.monotonic() + _LOOK_AGAIN_S
    while True:
        targets = _targets(tag, sessions)
        left_s = deadline_s - time.monotonic()
        if not targets or left_s <= 0:
            break
        ranks = [stat for stat in targets if not _is_keeper(stat)]
        keepers_are_late = time.monotonic() >= patience_s
        for stat in targets if keepers_are_late else ranks:
            name = _name(stat)
            if processes.kill(stat):
                killed[stat.pid] = name
        _wait_for_deaths(targets, min(left_s, _LOOK_AGAIN_S))
    _reap(killed, sessions)
    return Swept(tuple(killed.values()), tuple(_name(stat) for stat in targets))


def _targets(tag: str, sessions: Collection[int]) -> list[processes.Stat]:
    mark = f"{MARK}={tag}".encode()
    table = processes.table()
    marked = [pid for pid in table if mark in processes.environment(pid)]
    below = processes.descendants(table, marked)
    mine = processes.descendants(table, [os.getpid()])
    found = {
        *marked,
        *(stat.pid for stat in below),
        *(stat.pid for stat in mine if stat.session in sessions),
    }
    found -= set(_ancestry(table))
    return [table[pid] for pid in found if table[pid].alive]


def _ancestry(table: dict[int, processes.Stat]) -> Iterable[int]:
    """This process and those above it: never swept, even by an agent that runs in a rank of another job."""
    pid = os.getpid()
    while pid in table:
        yield pid
        pid = table[pid].parent


def _is_keeper(stat: processes.Stat) -> bool:
    return f"{KEEPER_MARK}=1".encode() in processes.environment(stat.pid)


def _wait_for_deaths(stats: Iterable[processes.Stat], within_s: float) -> None:
    """Return when all of them are dead, or after `within_s`."""
    deadline_s = time.monotonic() + within_s
    poll = select.poll()
    with contextlib.ExitStack() as stack:
        waiting = 0
        for stat in stats:
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(stat.pid)
                stack.callback(os.close, pidfd)
                poll.register(pidfd, select.POLLIN)
                waiting += 1
        while waiting and (left_s := deadline_s - time.monotonic()) > 0:
            for pidfd, _ in poll.poll(left_s * 1000):
                poll.unregister(pidfd)
                waiting -= 1


def _reap(killed: Collection[int], sessions: Collection[int]) -> None:
    """Take the exit status of dead children that nobody else waits for; those of others stay theirs."""
    me = os.getpid()
    for stat in processes.table().values():
        ours = stat.pid in killed or stat.session in sessions
        if stat.parent == me and not stat.alive and ours:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(stat.pid, os.WNOHANG)


def _name(stat: processes.Stat) -> str:
    with contextlib.suppress(OSError):
        return f"{stat.pid} ({Path(f'/proc/{stat.pid}/comm').read_text().strip()})"
    return str(stat.pid)


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())
