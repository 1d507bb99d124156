"""Which output is shown: torchrun's notation and torchrun's rules (DefaultLogsSpecs.reify of torch 2.13)."""

from __future__ import annotations

import pytest

from nvrx_launcher.errors import BadValueError
from nvrx_launcher.streams import STDERR, STDOUT, Shown, Streams, streams


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("0", []),
        ("1", [(0, STDOUT), (1, STDOUT)]),
        ("3", [(0, STDOUT), (0, STDERR), (1, STDOUT), (1, STDERR)]),
        ("0:1,1:2", [(0, STDOUT), (1, STDERR)]),
        ("1:3", [(1, STDOUT), (1, STDERR)]),
    ],
)
def test_the_notation(text: str, has: list[tuple[int, int]]) -> None:
    found = streams(text)
    assert str(found) == text
    assert [
        (rank, stream) for rank in (0, 1) for stream in (STDOUT, STDERR) if found.has(rank, stream)
    ] == has


@pytest.mark.parametrize("text", ["", "4", "1,2", "0:4", "a:1", "0:1,", "-1:1"])
def test_other_notations_are_refused(text: str) -> None:
    with pytest.raises(BadValueError):
        streams(text)


@pytest.mark.parametrize(
    ("redirects", "tee", "shown"),
    [
        ("0", "0", True),
        ("1", "0", False),
        ("2", "0", True),
        ("3", "1", True),
        ("3", "2", False),
        ("0", "3", True),
    ],
)
def test_what_is_redirected_is_shown_only_if_teed(redirects: str, tee: str, *, shown: bool) -> None:
    assert Shown(streams(redirects), streams(tee)).has(0, STDOUT) is shown


def test_other_local_ranks_are_never_shown() -> None:
    shown = Shown(tee=streams("3"), local_ranks=frozenset({1}))
    assert [shown.has(rank, STDERR) for rank in range(3)] == [False, True, False]


def test_what_is_not_shown_is_named() -> None:
    assert Shown().hidden(8) == ""
    assert Shown(Streams(1)).hidden(8) == "stdout of all ranks"
    assert Shown(Streams(by_rank=((1, 3),))).hidden(2) == "the output of local rank 1"
    assert Shown(local_ranks=frozenset({0})).hidden(8).endswith("the output of local rank 4 and 3 more")


def test_a_persons_own_prefix() -> None:
    shown = Shown(prefix_template="[trainer ${rank}/${local_rank} ${other}]:")
    assert shown.prefix(9, 1) == b"[trainer 9/1 ${other}]:"
    assert Shown().prefix(9, 1) is None
