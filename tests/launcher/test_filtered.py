"""Lines with a chosen word, of all ranks, in one file more."""

from __future__ import annotations

from pathlib import Path

from nvrx_launcher.filtered import FilteredFile


def test_whole_lines_with_one_of_the_words_and_their_rank(tmp_path: Path) -> None:
    found = FilteredFile(tmp_path / "filtered_stdout.log", ("loss", "step 3"), tmp_path / "familiar")
    found.feed(0, b"loss 1\nnothing\nlo")
    found.feed(1, b"step 2\nstep 3\nthe end: loss 2")
    found.feed(0, b"ss 3\n")
    found.close()
    assert (tmp_path / "filtered_stdout.log").read_text() == (
        "[rank 0] loss 1\n[rank 1] step 3\n[rank 0] loss 3\n[rank 1] the end: loss 2\n"
    )
    assert (tmp_path / "familiar" / "filtered_stdout.log").samefile(tmp_path / "filtered_stdout.log")


def test_without_such_lines_there_is_no_file_and_a_disk_that_takes_nothing_costs_only_it(
    tmp_path: Path,
) -> None:
    found = FilteredFile(tmp_path / "no" / "file", ("loss",))
    found.feed(0, b"other\n")
    found.close()
    found.feed(0, b"loss\n")
    found.close()
    assert list(tmp_path.iterdir()) == []
