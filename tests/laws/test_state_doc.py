"""`docs/state.md` names every key, every record, and every field of it."""

from __future__ import annotations

import dataclasses
import re

import pytest
from support.source import REPOSITORY

from nvrx_async.job import records
from nvrx_async.job.keys import AttemptKeys, current

PAGE = (REPOSITORY / "docs" / "state.md").read_text(encoding="utf-8")
RECORDS = [cls for cls in vars(records).values() if isinstance(cls, type) and dataclasses.is_dataclass(cls)]
EXTRAS = {name: value for name, value in vars(records).items() if name.isupper() and isinstance(value, str)}


def section(name: str) -> str:
    """The table below the record's first mention as a heading of one."""
    found = re.search(rf"`{name}`[^|\n]*(?:\n[^|\n]+)*\n\n(\| field .*?)\n\n", PAGE, re.DOTALL)
    assert found, f"docs/state.md has no table of {name}"
    return found[1]


@pytest.mark.parametrize("cls", RECORDS, ids=lambda cls: cls.__name__)
def test_every_field_of_a_record_is_explained(cls):
    told = set(
        re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in section(cls.__name__).splitlines()))
    )
    fields = {field.name for field in dataclasses.fields(cls)} - {"extra"}
    assert not fields - told, f"missing in docs/state.md: {fields - told}"


@pytest.mark.parametrize("cls", RECORDS, ids=lambda cls: cls.__name__)
def test_nothing_is_explained_that_a_record_does_not_have(cls):
    told = set(
        re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in section(cls.__name__).splitlines()))
    )
    extra = {*EXTRAS.values(), "log_dir", "hang", "requeue", "for_s"}
    fields = {field.name for field in dataclasses.fields(cls)}
    shared = {"host", "group_rank", "first_rank", "slots"} if cls.__name__ == "Spare" else set()
    assert not told - fields - extra - shared


def test_every_key_is_explained():
    keys = AttemptKeys("<run_id>", 0)
    spelled = [
        keys.job,
        keys.outcome,
        keys.requeue,
        keys.round,
        keys.node("<node_id>"),
        keys.elections.key,
        keys.join("<n>", "<node_id>"),
        keys.world("<n>", "<token>", "<shard>"),
        keys.assignment("<n>", "<token>", "<node_id>"),
        keys.interrupt("<n>"),
        keys.fault("<n>", "<node_id>"),
        keys.done("<n>", "<node_id>"),
        keys.stop("<n>"),
        keys.stop_vote("<n>", "<node_id>"),
        keys.grow("<n>"),
        keys.end("<n>"),
        keys.struck("<n>", "<node_id>"),
        keys.control("<id>"),
        keys.excluded("<node_id>"),
    ]
    missing = [key for key in spelled if f"`{key.removeprefix(keys.base)}`" not in PAGE]
    assert not missing
    assert f"`{current('<run_id>')}`" in PAGE


@pytest.mark.parametrize("mark", records.Mark, ids=lambda mark: mark.value)
def test_every_mark_is_explained(mark):
    assert f"| `{mark.value}` |" in PAGE
