"""The rank's side: what a training script says of itself, at the price of a few memory writes.

```python
with nvrx_async.connect() as rank:            # or: async with
    for step in rank.steps(1000):             # or: async for
        train(step)
        with rank.section("save"):
            save(step)
        if rank.should_stop(step):
            break
```

Nothing here blocks, but `should_stop` while a stop is being agreed. Loads the standard library only.
Without `nvrx-launch` every call works and reports to nobody.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from _thread import get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING

from nvrx_async.ranklink import page as layout
from nvrx_async.ranklink.errors import PageError
from nvrx_async.ranklink.messages import (
    FAULTS_VARIABLE,
    PAGE_VARIABLE,
    SOCKET_VARIABLE,
    STACKS_VARIABLE,
    AllowGrow,
    Hello,
    StepReached,
)
from nvrx_async.ranklink.page import (
    H_ASKED,
    H_DONE,
    H_FIRST_STEP,
    H_HELLO,
    H_MAIN,
    H_PID,
    H_PRINCIPAL,
    H_READY,
    H_SECOND_STEP,
    H_SIGNAL,
    H_STEPS,
    H_STOP,
    H_TELL,
    NS,
    STOP_HOLD,
    T_LAST,
    T_NATIVE,
    T_STEP,
    T_STEP_AT,
    Page,
)
from nvrx_async.ranklink.rank_reports import Reports, private_words
from nvrx_async.ranklink.rank_sections import Section, Steps

if TYPE_CHECKING:
    from types import TracebackType

    from nvrx_async.ranklink.client import Link

STOP_WAIT_S = 10.0
"""How long `should_stop` waits for the step that the job agrees on; then this rank goes on."""


def connect() -> Connection:
    """Connect this process to its agent, for `with` or `async with`.

    Never fails for want of an agent. In a helper of a rank (a data loader's worker), and outside of
    `nvrx-launch`, reports go nowhere.
    """
    return Connection()


class Connection:
    """What `connect` returns; entering it says hello, leaving it says that no report is to be expected any more.

    A process has one page, so it has one rank: who connects while it is connected (a library beside the script)
    gets the same one, and the last to leave says that training is over.
    """

    def __init__(self) -> None:
        self._rank: Rank | None = None

    def __enter__(self) -> Rank:
        self._rank = rank = _connected_rank() or _open_rank()
        rank.entered += 1
        return rank

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        rank, self._rank = self._rank, None
        if rank is None:
            return
        rank.entered -= 1
        if not rank.entered:
            rank.done()
            rank.close()

    async def __aenter__(self) -> Rank:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


class Rank(Reports):
    """One training process as its agent sees it. Safe to use from several threads and tasks.

    Attributes:
        rank: number of this process in the world.
        world_size: number of processes in the world.
        round: number of this life of the job, 0 for the first (torchrun's restart count).
        connected: whether reports reach an agent.
        entered: how many connections of this process share it.
    """

    def __init__(
        self, page: Page | None, link: Link | None, *, rank: int, world_size: int, number: int
    ) -> None:
        self.rank, self.world_size, self.round = rank, world_size, number
        self.connected = page is not None
        self._page = page
        self._link = link
        self._grows = False
        self._told = 0
        self.entered = 0
        super().__init__(page.words if page is not None else private_words())

    # Reports ------------------------------------------------------------------------------------------

    def progress(self, *, step: int) -> None:
        """Say that the calling thread has begun this step. Counts as a heartbeat."""
        self.heartbeat()
        words, ident = self.words, get_ident()
        slot = self.slots[ident]
        words[slot + T_STEP_AT] = words[slot + T_LAST]
        words[slot + T_STEP] = step + 1
        if not words[H_SECOND_STEP]:
            words[H_SECOND_STEP if words[H_FIRST_STEP] else H_FIRST_STEP] = words[slot + T_LAST]
        if words[H_PRINCIPAL] != ident and not self._principal_trains():
            words[H_PRINCIPAL] = ident
        if words[H_TELL]:
            self._tell(step)

    def expect(self, steps: int) -> None:
        """Say that training has so many steps; `steps` says it by itself. A smaller number changes nothing."""
        words = self.words
        words[H_STEPS] = max(words[H_STEPS], steps)

    def section(self, name: str, *, limit_s: float | None = None) -> Section:
        """A part of the work with a deadline of its own: `with rank.section("save"): …`.

        Sections may lie inside each other and overlap; time in an inner one is not counted for the outer
        one. `limit_s`: longest time that is normal, instead of what is learned and of `--hang-timeout`.
        """
        return Section(self, name, limit_s)

    def steps(self, stop: int, *, start: int = 0) -> Steps:
        """Iterate over steps, `for` or `async for`: each is reported, and is a section named "step"."""
        return Steps(self, start, stop)

    def ready(self) -> None:
        """Say that start-up is over (a model is loaded, say), before the first step is."""
        self.heartbeat()
        self.words[H_READY] = monotonic_ns()

    def done(self) -> None:
        """Say that training is over: from now on the process only has to end."""
        self.words[H_DONE] = monotonic_ns()

    def should_stop(self, step: int) -> bool:
        """Whether the job stops at this step: then save and leave the loop. All ranks agree on one step.

        To be called by every rank once in each step, with the same numbers. Costs a memory write, but while
        a stop is being agreed it waits, up to 10 s.
        """
        words = self.words
        words[H_ASKED] = step + 1
        if words[H_TELL] and not words[H_FIRST_STEP]:  # else it is progress that counts
            self._tell(step)
        stop = words[H_STOP]
        if stop == layout.STOP_NONE:
            return False
        if stop == STOP_HOLD:
            stop = self._await_stop()
        return stop > 0 and step >= stop - 1

    def allow_grow(self) -> None:
        """Say that nodes which wait may be taken in, from now on in this round (`--grow when-asked`).

        A word of any rank counts for all. The job then stops at a step, as `should_stop` tells, and goes on with
        more ranks.
        """
        if self._link is not None and not self._grows:
            self._grows = True
            self._link.send(AllowGrow(self.round))

    # Inside -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give page and connection back; later reports go nowhere."""
        page, link = self._page, self._link
        self._page = self._link = None
        self.words, self.connected = private_words(), False
        self.forget()
        if link is not None:
            link.close()
        if page is not None:
            page.close()

    def _after_fork(self) -> None:
        """In a forked child: it is another process, and never speaks for its parent."""
        self.words, self.connected = private_words(), False
        self.forget()
        if self._link is not None:
            self._link.close()
            self._link = None

    def _tell(self, step: int) -> None:
        """Tell the agent of a step that somebody waits for, once; again if the count began anew before it."""
        wanted = self.words[H_TELL]
        if step + 1 < wanted:
            self._told = 0
        elif wanted != self._told and self._link is not None:
            self._told = wanted
            self._link.send(StepReached(self.round, self.rank, step))

    def _principal_trains(self) -> bool:
        """Whether the thread that trained so far has reported a step, and still lives (its ident may be another's)."""
        slot, words = self.slots.get(self.words[H_PRINCIPAL]), self.words
        if slot is None or not words[slot + T_STEP]:
            return False
        return os.path.exists(f"/proc/self/task/{words[slot + T_NATIVE]}")  # noqa: PTH110 - pathlib costs a rank 5 ms

    def _await_stop(self) -> int:
        """Wait until the agent has written the step. Asks the page again after each word from the agent."""
        end = monotonic_ns() + round(STOP_WAIT_S * NS)
        link, words = self._link, self.words
        while words[H_STOP] == STOP_HOLD and link is not None and link.is_open:
            left_ns = end - monotonic_ns()
            if left_ns <= 0:
                break
            link.stop_within(left_ns / NS)
        return int(words[H_STOP])


_CONNECTED: weakref.WeakValueDictionary[str, Rank] = weakref.WeakValueDictionary()
"""This process's rank by the path of its page, while somebody holds it: the page has one writer."""


def _connected_rank() -> Rank | None:
    """The rank that this process is connected as already."""
    rank = _CONNECTED.get(os.environ.get(PAGE_VARIABLE, ""))
    return rank if rank is not None and rank.connected else None


def _open_rank() -> Rank:
    path = os.environ.get(PAGE_VARIABLE)
    page = _claimed(path) if path else None
    if not path:
        _say_once("not started by nvrx-launch: heartbeats, sections and steps are reported to nobody")
    link = None
    if page is not None:
        from nvrx_async.ranklink.client import Link  # noqa: PLC0415 - without an agent it is not needed

        link = Link(os.environ.get(SOCKET_VARIABLE, ""))
    rank = _kind_of_rank()(
        page,
        link,
        rank=_number("RANK", 0),
        world_size=_number("WORLD_SIZE", 1),
        number=_number("NVRX_ROUND", 0),
    )
    if path and page is not None and link is not None:
        _CONNECTED[path] = rank
        _introduce(rank, page, link)
    return rank


def _kind_of_rank() -> type[Rank]:
    """The plain one, unless somebody wants to see faults."""
    if not os.environ.get(FAULTS_VARIABLE):
        return Rank
    from nvrx_async.ranklink.rank_inject import FaultyRank  # noqa: PLC0415 - for demonstrations and tests

    return FaultyRank


def _claimed(path: str) -> Page | None:
    """The page, if this process is the one that speaks for the rank: the first to ask, while it lives."""
    try:
        page = Page.open(path)
    except (OSError, PageError) as error:
        _say_once(f"no reports to the agent, the page {path} cannot be used: {error}")
        return None
    owner = page.words[H_PID]
    if owner not in (0, os.getpid()) and os.path.exists(f"/proc/{owner}"):  # noqa: PTH110 - pathlib costs a rank 5 ms
        page.close()
        return None
    page.words[H_PID] = os.getpid()
    page.words[H_DONE] = 0
    return page


def _introduce(rank: Rank, page: Page, link: Link) -> None:
    """Say hello, let the agent's debugger in, and offer stacks."""
    import threading  # noqa: PLC0415 - only for its main thread

    words = page.words
    words[H_MAIN] = threading.main_thread().ident or 0
    words[H_PRINCIPAL] = get_ident()
    words[H_SIGNAL] = _offer_stacks(os.environ.get(STACKS_VARIABLE))
    _allow_tracing(words[layout.H_AGENT_PID])
    # Who connects anew, as in each epoch, has started once.
    words[H_HELLO] = words[H_HELLO] or monotonic_ns()
    known = weakref.WeakMethod(rank._after_fork)  # noqa: SLF001 - its own module
    os.register_at_fork(after_in_child=lambda: (known() or _nothing)())  # noqa: PLW0108 - the method is looked up then
    link.send(Hello("rank", os.getpid(), rank.round, rank.rank))


@functools.cache
def _offer_stacks(path: str | None) -> int:
    """Let faulthandler write all stacks to the file on a real-time signal; returns its number, 0 for none.

    It is written by C code in the signal handler: it works where the interpreter itself is stuck.
    """
    if not path:
        return 0
    import faulthandler  # noqa: PLC0415 - not needed without an agent
    import signal  # noqa: PLC0415 - not needed without an agent

    free = (
        n for n in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1) if signal.getsignal(n) == signal.SIG_DFL
    )
    number = next(free, 0)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError:
        return 0
    if number:
        # The interpreter gives the signal back when it ends, and a collective may end long after that: a rank that
        # is asked for its stacks then must not die of it. What it starts inherits a handled signal as the default.
        _ignore(number)
        faulthandler.register(number, file=fd, all_threads=True)
    return int(number)


def _ignore(number: int) -> None:
    """Ignore a signal; in another than the main thread by the system's signal(2), which asks for no certain thread."""
    import signal  # noqa: PLC0415 - not needed without an agent
    import threading  # noqa: PLC0415 - only for its main thread

    if threading.current_thread() is threading.main_thread():
        signal.signal(number, signal.SIG_IGN)
        return
    import ctypes  # noqa: PLC0415 - torch loads it anyway, a helper need not

    sig_ign = 1
    ctypes.CDLL(None).signal(number, ctypes.c_void_p(sig_ign))


def _allow_tracing(pid: int) -> None:
    """Let the agent and what it starts (py-spy) look into this process where Yama would forbid it (prctl(2))."""
    import ctypes  # noqa: PLC0415 - torch loads it anyway, a helper need not

    pr_set_ptracer = 0x59616D61
    ctypes.CDLL(None).prctl(pr_set_ptracer, ctypes.c_ulong(pid), 0, 0, 0)


@functools.cache
def _say_once(text: str) -> None:
    sys.stderr.write(f"nvrx-async: {text}\n")


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else default


def _nothing() -> None:
    """The rank that was connected is gone."""
