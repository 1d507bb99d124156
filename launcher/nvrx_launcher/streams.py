"""Which output of the ranks goes where, in torchrun's notation: `3`, or by local rank `0:1,1:2`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from string import Template
from typing import Final

from nvrx_launcher.errors import BadValueError

STDOUT: Final = 1
STDERR: Final = 2
_BOTH: Final = STDOUT | STDERR
_ALL_RANKS = re.compile(r"[0-3]")
_ONE_RANK = re.compile(r"(\d+):([0-3])")


@dataclass(frozen=True, slots=True)
class Streams:
    """A choice of streams: those of `everywhere` for all ranks, or those of `by_rank`, nothing for the others."""

    everywhere: int = 0
    by_rank: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        """As it is written on a command line."""
        return ",".join(f"{rank}:{streams}" for rank, streams in self.by_rank) or str(self.everywhere)

    def has(self, local_rank: int, stream: int) -> bool:
        """Whether a stream (STDOUT or STDERR) of a rank is chosen."""
        return bool(dict(self.by_rank).get(local_rank, self.everywhere) & stream)


NONE: Final = Streams()


def streams(value: str) -> Streams:
    """Read the notation.

    Raises:
        BadValueError: it is another one.
    """
    if _ALL_RANKS.fullmatch(value):
        return Streams(int(value))
    found = [_ONE_RANK.fullmatch(part) for part in value.split(",")]
    chosen = [(int(one[1]), int(one[2])) for one in found if one]
    if len(chosen) < len(found):
        raise BadValueError(
            "neither 0, 1, 2, 3 nor a list such as 0:1,1:2", "1 is stdout, 2 is stderr, 3 is both"
        )
    return Streams(by_rank=tuple(chosen))


@dataclass(frozen=True, slots=True)
class Shown:
    """What of the ranks' output reaches the console; files get all of it.

    As with torchrun, a stream that is redirected is not shown unless it is teed too, and of ranks outside
    `local_ranks` (None: all) nothing is shown. `stdout_words` and `stderr_words` choose the lines that are
    also written to one filtered file a round. `prefix_template`: what stands before each line instead of our
    prefix, with `${rank}` and `${local_rank}` in it.
    """

    redirects: Streams = NONE
    tee: Streams = NONE
    local_ranks: frozenset[int] | None = None
    stdout_words: tuple[str, ...] = ()
    stderr_words: tuple[str, ...] = ()
    prefix_template: str = ""

    def has(self, local_rank: int, stream: int) -> bool:
        """Whether a stream of a rank is shown."""
        if self.local_ranks is not None and local_rank not in self.local_ranks:
            return False
        return self.tee.has(local_rank, stream) or not self.redirects.has(local_rank, stream)

    def prefix(self, rank: int, local_rank: int) -> bytes | None:
        """What stands before a rank's lines by the person's wish; None: what we put there."""
        if not self.prefix_template:
            return None
        filled = Template(self.prefix_template).safe_substitute(rank=rank, local_rank=local_rank)
        return filled.encode(errors="surrogateescape")

    def words(self, stream: int) -> tuple[str, ...]:
        """Words that put a line of this stream into the filtered file."""
        return self.stdout_words if stream == STDOUT else self.stderr_words

    def hidden(self, slots: int) -> str:
        """What is not shown of this many ranks, in words; empty when all is."""
        parts = [
            f"{_NAMES[missing]} of local rank {rank}"
            for rank in range(slots)
            if (missing := sum(stream for stream in (STDOUT, STDERR) if not self.has(rank, stream)))
        ]
        everywhere = {part.partition(" of ")[0] for part in parts}
        if len(parts) == slots and len(everywhere) == 1:
            return f"{everywhere.pop()} of all ranks"
        return ", ".join(parts[:_NAMED]) + (f" and {len(parts) - _NAMED} more" if len(parts) > _NAMED else "")


_NAMES: Final = {STDOUT: "stdout", STDERR: "stderr", _BOTH: "the output"}
_NAMED: Final = 4

SHOW_ALL: Final = Shown()
