"""The page that a rank shares with its agent: words of 8 bytes in memory that both map.

A rank reports by storing words, so a report costs well below a microsecond and cannot block, whatever its agent
does. The agent looks at the page only when a deadline comes due. All moments are nanoseconds of
CLOCK_MONOTONIC on this host (no step of the wall clock, no suspended time), 0 for "not yet".

Layout in words (signed, native order; each word has one writer and is stored at once):

```
   0 ..  63  head      see the constants H_*; words 4 to 6 are the agent's, the others the rank's
  64 .. 191  threads   16 slots of 8 words (T_*): a thread writes its own slot only
 192 .. 575  names     32 section names of 12 words (N_*): 4 of figures, 8 of UTF-8 text
 576 ..1087  sections  64 open sections of 8 words (S_*), each behind a sequence lock: odd while it is written
```

The rank also keeps its own maxima there (longest gap between reports, longest time in each section): limits are
learned from them though nobody watches every beat.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import TYPE_CHECKING, NamedTuple

from nvrx_async.ranklink.errors import PageError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = 0x4E565258_0001  # "NVRX" and the version of the layout
SIZE_BYTES = 12288
NS = 1_000_000_000

H_MAGIC, H_ROUND, H_RANK, H_AGENT_PID, H_STOP, H_TELL = 0, 2, 3, 4, 5, 6
H_PID, H_HELLO, H_READY, H_DONE, H_MAIN, H_PRINCIPAL, H_SIGNAL, H_ASKED, H_LOST = range(8, 17)
H_FIRST_STEP, H_STEPS, H_SECOND_STEP = range(17, 20)

# H_TELL: a step that somebody waits for, plus 1; the rank tells when it has come to it. 0: nobody waits.

STOP_NONE, STOP_HOLD = 0, -1
"""Values of H_STOP; any other is the step to stop at, plus 1."""

THREADS, THREAD_SLOTS, THREAD_WORDS = 64, 16, 8
T_IDENT, T_LAST, T_COUNT, T_STEP, T_STEP_AT, T_GAP, T_NATIVE, T_OPEN = range(THREAD_WORDS)

NAMES, NAME_SLOTS, NAME_WORDS, NAME_BYTES = 192, 32, 12, 64
N_COUNT, N_FIRST, N_LONGEST, N_LIMIT, N_TEXT = range(5)

SECTIONS, SECTION_SLOTS, SECTION_WORDS = 576, 64, 8
S_SEQUENCE, S_NAME, S_IDENT, S_START, S_OWN, S_SINCE = range(6)

_TRIES = 50


class ThreadView(NamedTuple):
    """What one thread has reported. `gap_s`: longest time between two reports outside of sections."""

    ident: int
    native_id: int
    principal: bool
    last_s: float
    reports: int
    step: int | None
    step_s: float
    gap_s: float
    open_sections: int


class SectionView(NamedTuple):
    """An open section. `own_s`: time spent in it and not in a section inside it; `runs`: this goes on now."""

    name: str
    ident: int
    start_s: float
    own_s: float
    runs: bool
    limit_s: float | None


class NameView(NamedTuple):
    """What was seen of a section: how often it was closed, the first time apart, the longest later one.

    `limit_s`: the limit that the script gave it last, None for none.
    """

    name: str
    seen: int
    first_s: float
    longest_s: float
    limit_s: float | None = None


class PageView(NamedTuple):
    """A page at a moment. Moments are seconds of CLOCK_MONOTONIC, None for "not yet"."""

    at_s: float
    round: int
    rank: int
    pid: int
    hello_s: float | None
    ready_s: float | None
    done_s: float | None
    main_ident: int
    stacks_signal: int
    asked_step: int | None
    threads: tuple[ThreadView, ...]
    sections: tuple[SectionView, ...]
    names: tuple[NameView, ...]
    first_step_s: float | None = None
    second_step_s: float | None = None
    stop_step: int | None = None
    steps: int = 0

    @property
    def finished(self) -> bool:
        """Whether no `should_stop` was answered by yes before the last step that `steps` was given."""
        told = (
            self.stop_step is not None and self.asked_step is not None and self.asked_step >= self.stop_step
        )
        return not told or (0 < self.steps <= (self.step if self.step is not None else -1) + 1)

    @property
    def principal(self) -> ThreadView | None:
        """The thread that trains, if it has reported anything."""
        return next((one for one in self.threads if one.principal and one.reports), None)

    @property
    def step(self) -> int | None:
        """The highest step that any thread reported."""
        steps = [one.step for one in self.threads if one.step is not None]
        return max(steps, default=self.asked_step)

    @property
    def is_ready(self) -> bool:
        """The rank said hello, or reported anything."""
        return self.hello_s is not None or bool(self.threads)


class Page:
    """The mapped memory as words. Both sides use it; who may write which word is said above."""

    def __init__(self, fd: int) -> None:
        """Map a page; the descriptor is this object's from now on.

        Raises:
            PageError: it is no page of this version.
        """
        self._fd = fd
        if os.fstat(fd).st_size != SIZE_BYTES:
            size = os.fstat(fd).st_size
            os.close(fd)
            raise PageError(f"it has {size} bytes, a page of this version has {SIZE_BYTES}")
        self._map = mmap.mmap(fd, SIZE_BYTES)
        self.words = memoryview(self._map).cast("q")
        self.bytes = memoryview(self._map)
        if self.words[H_MAGIC] != MAGIC:
            self.close()
            raise PageError("it is a page of another version of nvrx-async")

    @classmethod
    def create(cls, round: int, rank: int) -> Page:  # noqa: A002 - the domain's word
        """Make a page for one rank in one round; the agent's side. It is gone with the last that maps it.

        Raises:
            OSError: no memory, or no descriptor, is left.
        """
        fd = os.memfd_create(f"nvrx-rank-{rank}")
        try:
            # Written, not truncated to: memory that is out must be told here, and not by SIGBUS in the rank.
            os.write(fd, struct.pack("q", MAGIC) + bytes(SIZE_BYTES - 8))
        except OSError:
            os.close(fd)
            raise
        page = cls(fd)
        page.words[H_ROUND], page.words[H_RANK], page.words[H_AGENT_PID] = round, rank, os.getpid()
        return page

    @classmethod
    def open(cls, path: str) -> Page:
        """Map the page that an agent made; the rank's side.

        Raises:
            OSError: there is no such file, or it is another user's.
            PageError: it is no page of this version.
        """
        return cls(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    @property
    def path(self) -> str:
        """Where another process of this user opens it, while this process has it open (proc_pid_fd(5))."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        """Unmap."""
        self.words.release()
        self.bytes.release()
        self._map.close()
        os.close(self._fd)

    def name_at(self, index: int) -> str:
        """The text of a section name."""
        at = (NAMES + index * NAME_WORDS + N_TEXT) * 8
        return bytes(self.bytes[at : at + NAME_BYTES]).rstrip(b"\0").decode("utf-8", "replace")

    def view(self, now_ns: int) -> PageView:
        """What the page says; `now_ns` closes the account of sections that go on."""
        words = self.words
        return PageView(
            at_s=now_ns / NS,
            round=words[H_ROUND],
            rank=words[H_RANK],
            pid=words[H_PID],
            hello_s=_moment(words[H_HELLO]),
            ready_s=_moment(words[H_READY]),
            done_s=_moment(words[H_DONE]),
            main_ident=words[H_MAIN],
            stacks_signal=words[H_SIGNAL],
            asked_step=words[H_ASKED] - 1 if words[H_ASKED] else None,
            first_step_s=_moment(words[H_FIRST_STEP]),
            second_step_s=_moment(words[H_SECOND_STEP]),
            stop_step=words[H_STOP] - 1 if words[H_STOP] > 0 else None,
            steps=words[H_STEPS],
            threads=tuple(self._threads()),
            sections=tuple(self._sections(now_ns)),
            names=tuple(self._names()),
        )

    def _threads(self) -> Iterator[ThreadView]:
        words = self.words
        for at in range(THREADS, THREADS + THREAD_SLOTS * THREAD_WORDS, THREAD_WORDS):
            ident = words[at + T_IDENT]
            if ident:
                yield ThreadView(
                    ident=ident,
                    native_id=words[at + T_NATIVE],
                    principal=ident == words[H_PRINCIPAL],
                    last_s=words[at + T_LAST] / NS,
                    reports=words[at + T_COUNT],
                    step=words[at + T_STEP] - 1 if words[at + T_STEP] else None,
                    step_s=words[at + T_STEP_AT] / NS,
                    gap_s=words[at + T_GAP] / NS,
                    open_sections=words[at + T_OPEN],
                )

    def _names(self) -> Iterator[NameView]:
        words = self.words
        for index in range(NAME_SLOTS):
            at = NAMES + index * NAME_WORDS
            if not words[at + N_TEXT]:
                return
            yield NameView(
                self.name_at(index),
                words[at + N_COUNT],
                words[at + N_FIRST] / NS,
                words[at + N_LONGEST] / NS,
                words[at + N_LIMIT] / NS if words[at + N_LIMIT] else None,
            )

    def _sections(self, now_ns: int) -> Iterator[SectionView]:
        for at in range(SECTIONS, SECTIONS + SECTION_SLOTS * SECTION_WORDS, SECTION_WORDS):
            name, ident, start_ns, own_ns, since_ns = self._settled(at)
            if name:
                limit_ns = self.words[NAMES + (name - 1) * NAME_WORDS + N_LIMIT]
                own_ns += max(0, now_ns - since_ns) if since_ns else 0
                yield SectionView(
                    self.name_at(name - 1),
                    ident,
                    start_ns / NS,
                    own_ns / NS,
                    bool(since_ns),
                    limit_ns / NS if limit_ns else None,
                )

    def _settled(self, at: int) -> tuple[int, int, int, int, int]:
        """One section's words, read while nobody wrote them; those of a rank frozen half-way as they are."""
        words = self.words
        read = (0, 0, 0, 0, 0)
        for _ in range(_TRIES):
            before = words[at + S_SEQUENCE]
            read = (
                words[at + S_NAME],
                words[at + S_IDENT],
                words[at + S_START],
                words[at + S_OWN],
                words[at + S_SINCE],
            )
            if before % 2 == 0 and words[at + S_SEQUENCE] == before:
                break
        return read


def _moment(ns: int) -> float | None:
    return ns / NS if ns else None
