"""When ranks that save or evaluate leave room for idle processes."""

from __future__ import annotations

import pytest

from nvrx_async.ranklink.page import NameView, PageView, SectionView
from nvrx_launcher.warm.quiet import LEAST_S, quiet_in_s


def view(*sections: SectionView, names: tuple[NameView, ...] = ()) -> PageView:
    return PageView(100.0, 0, 0, 1, None, None, None, 0, 0, None, (), sections, names)


def opened(name: str, for_s: float) -> SectionView:
    return SectionView(name, 1, 100.0 - for_s, for_s, runs=True, limit_s=None)


@pytest.mark.parametrize(
    "name", ["save", "checkpoint", "Checkpoint-7", "ckpt", "eval", "evaluation", "validate"]
)
def test_sections_that_load_a_node(name: str) -> None:
    assert quiet_in_s([view(opened(name, 5.0))]) > 0


@pytest.mark.parametrize("name", ["step", "forward", "data", "warm-up"])
def test_sections_that_are_training(name: str) -> None:
    assert quiet_in_s([view(opened(name, 5.0))]) == 0


def test_nobody_there_is_quiet() -> None:
    assert quiet_in_s([]) == 0
    assert quiet_in_s([view(), view()]) == 0


@pytest.mark.parametrize(
    ("open_s", "longest_s", "look_in_s"),
    [(2.0, 30.0, 28.0), (0.0, 0.0, LEAST_S), (8.0, 0.0, 8.0), (40.0, 30.0, 40.0), (29.9, 30.0, LEAST_S)],
)
def test_the_next_look_follows_from_earlier_ones_and_grows_rare(
    open_s: float, longest_s: float, look_in_s: float
) -> None:
    names = (NameView("save", 3, 1.0 if longest_s else 0.0, longest_s),)
    assert quiet_in_s([view(), view(opened("save", open_s), names=names)]) == pytest.approx(look_in_s)


def test_the_slowest_rank_counts() -> None:
    assert quiet_in_s([view(opened("eval", 3.0)), view(opened("eval", 7.0))]) == 7.0
