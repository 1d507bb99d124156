"""Faults on order, for tests and demonstrations: `NVRX_FAULTS="hang rank=1 step=40"`.

Several faults are separated by `;`. Each is a kind and settings: `rank` (a number or `any`, default any), `round`
(default 0), `step` (a number or a range `10-200`, default 0), `seed`, `s` (seconds), `code`. What is not fixed is
drawn from the seed, the same on all ranks. A fault happens when the rank reports its step (`progress`, `steps`).

Kinds:
    exception, exit, sigkill, segfault   the rank ends
    early_exit                           it ends with 0
    hang, sleep, gil, sigstop            it stands still: in Python, in a sleep, in native code that holds the
                                         interpreter's lock, by a signal
    skip                                 its next `torch.distributed.all_reduce` is left out
    slow                                 every step from this one on takes `s` seconds longer
    agent_kill, agent_freeze             its agent gets SIGKILL, SIGSTOP
    etcd_stop                            an etcd that its agent started gets SIGSTOP
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from nvrx_async.ranklink.errors import InjectedError, OrderError
from nvrx_async.ranklink.messages import FAULTS_VARIABLE
from nvrx_async.ranklink.page import H_AGENT_PID
from nvrx_async.ranklink.rank import Rank

if TYPE_CHECKING:
    from nvrx_async.ranklink.client import Link
    from nvrx_async.ranklink.page import Page

AGENTS = "agent:"
"""Begins a fault of the agent itself, which no rank commits."""
_FOREVER_S = 1e6


class Fault(NamedTuple):
    """One fault: what happens on which rank, in which round, at which step."""

    kind: str
    rank: int
    round: int
    step: int
    seconds: float
    code: int


def orders(text: str, world_size: int) -> list[Fault]:
    """Read `NVRX_FAULTS`.

    Raises:
        OrderError: an unknown kind or setting.
    """
    ours = [one for one in text.split(";") if one.strip() and not one.strip().startswith(AGENTS)]
    return [_order(one.split(), world_size) for one in ours]


def _order(words: list[str], world_size: int) -> Fault:
    kind, settings = words[0], dict(word.partition("=")[::2] for word in words[1:])
    unknown = settings.keys() - {"rank", "round", "step", "seed", "s", "code"}
    if kind not in _ACTS or unknown:
        raise OrderError(
            f"{FAULTS_VARIABLE}: {' '.join(words)}: no such {'kind' if kind not in _ACTS else 'setting'}"
        )
    drawn = random.Random(settings.get("seed", "0"))  # noqa: S311 - to be repeatable is what it is for
    rank = settings.get("rank", "any")
    low, _, high = settings.get("step", "0").partition("-")
    try:
        return Fault(
            kind,
            drawn.randrange(world_size) if rank == "any" else int(rank),
            int(settings.get("round", "0")),
            drawn.randint(int(low), int(high or low)),
            float(settings.get("s", "1")),
            int(settings.get("code", "1")),
        )
    except ValueError as error:
        raise OrderError(f"{FAULTS_VARIABLE}: {' '.join(words)}: {error}") from error


class FaultyRank(Rank):
    """A rank that commits the faults it was ordered to."""

    def __init__(
        self, page: Page | None, link: Link | None, *, rank: int, world_size: int, number: int
    ) -> None:
        super().__init__(page, link, rank=rank, world_size=world_size, number=number)
        ordered = orders(os.environ.get(FAULTS_VARIABLE, ""), world_size)
        self._orders = [one for one in ordered if (one.rank, one.round) == (rank, number)]
        self.slow_s = 0.0

    def progress(self, *, step: int) -> None:
        """Report the step, then commit what was ordered for it."""
        super().progress(step=step)
        for fault in [one for one in self._orders if one.step == step]:
            sys.stderr.write(f"nvrx-async: rank {self.rank}, step {step}: {fault.kind}, as ordered\n")
            sys.stderr.flush()
            _ACTS[fault.kind](self, fault)
        if self.slow_s:
            time.sleep(self.slow_s)


def _exception(rank: FaultyRank, fault: Fault) -> None:
    raise InjectedError(f"ordered on rank {rank.rank} at step {fault.step}")


def _exit(_: FaultyRank, fault: Fault) -> None:
    os._exit(fault.code)


def _early_exit(_: FaultyRank, __: Fault) -> None:
    os._exit(0)


def _sigkill(_: FaultyRank, __: Fault) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _sigstop(_: FaultyRank, __: Fault) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _segfault(_: FaultyRank, __: Fault) -> None:
    import ctypes  # noqa: PLC0415 - only where it is needed

    ctypes.string_at(0)


def _hang(_: FaultyRank, __: Fault) -> None:
    while True:
        pass


def _sleep(_: FaultyRank, __: Fault) -> None:
    time.sleep(_FOREVER_S)


def _gil(_: FaultyRank, __: Fault) -> None:
    import ctypes  # noqa: PLC0415 - only where it is needed

    library = ctypes.PyDLL(None)  # unlike CDLL it keeps the interpreter's lock
    while True:
        library.sleep(1000)


def _skip(_: FaultyRank, __: Fault) -> None:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None:
        raise OrderError(f"{FAULTS_VARIABLE}: skip: this script has not imported torch.distributed")
    real = distributed.all_reduce

    def left_out(*_: Any, **__: Any) -> None:
        distributed.all_reduce = real

    distributed.all_reduce = left_out


def _slow(rank: FaultyRank, fault: Fault) -> None:
    rank.slow_s = fault.seconds


def _agent_kill(rank: FaultyRank, _: Fault) -> None:
    os.kill(rank.words[H_AGENT_PID], signal.SIGKILL)


def _agent_freeze(rank: FaultyRank, _: Fault) -> None:
    os.kill(rank.words[H_AGENT_PID], signal.SIGSTOP)


def _etcd_stop(rank: FaultyRank, _: Fault) -> None:
    agent = rank.words[H_AGENT_PID]
    with open(f"/proc/{agent}/task/{agent}/children", encoding="ascii") as file:  # noqa: PTH123 - /proc
        children = file.read().split()
    for pid in children:
        with open(f"/proc/{pid}/comm", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - /proc
            if file.read().strip() == "etcd":
                os.kill(int(pid), signal.SIGSTOP)


_ACTS = {
    "exception": _exception,
    "exit": _exit,
    "early_exit": _early_exit,
    "sigkill": _sigkill,
    "sigstop": _sigstop,
    "segfault": _segfault,
    "hang": _hang,
    "sleep": _sleep,
    "gil": _gil,
    "skip": _skip,
    "slow": _slow,
    "agent_kill": _agent_kill,
    "agent_freeze": _agent_freeze,
    "etcd_stop": _etcd_stop,
}
