"""Records as etcd holds them."""

from __future__ import annotations

import dataclasses

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvrx_async.job import records
from nvrx_async.job.codec import SCHEMA, decode, encode
from nvrx_async.job.errors import RecordError, UnknownSchemaError
from nvrx_async.job.records import (
    Assignment,
    End,
    EndedBy,
    Fault,
    FaultKind,
    Interrupt,
    Ledger,
    Level,
    Node,
    Phase,
    Process,
    PythonError,
    RankEnd,
    Root,
    Round,
    Seat,
    Spare,
    WorldShard,
)

CLASSES = [
    found for found in vars(records).values() if isinstance(found, type) and dataclasses.is_dataclass(found)
]
SEAT = Seat("a", "a-1", "host-a", 0, 0, 2)
END = RankEnd(
    3,
    1,
    4711,
    FaultKind.EXCEPTION,
    EndedBy.ITSELF,
    exit_code=1,
    ready=True,
    ran_s=2.5,
    error=PythonError("ValueError", "bad shard", "train.py", 41, "main"),
    last_lines=("one", "two"),
)


def test_text_that_is_no_utf8_is_written_so_that_people_can_read_it():
    error = PythonError("FileNotFoundError", "no /data/m\udcfcller/\ud83d", "m\udcfc.py")
    record = dataclasses.replace(END, error=error, extra={"\udcff": 1})
    found = decode(RankEnd, "key", encode(record))
    assert found.error.message == "no /data/m\\udcfcller/\\ud83d"
    assert found.extra == {"\\udcff": 1}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@settings(max_examples=15)
@given(data=st.data())
def test_every_record_comes_back_as_it_was(cls, data):
    record = data.draw(st.from_type(cls))
    assert decode(cls, "/key", encode(record)) == record


@pytest.fixture(autouse=True, scope="module")
def _strategies():
    """Values that JSON can hold; unknown fields never bear the name of a known one."""
    text = st.text(st.characters(codec="utf-8"), max_size=8)
    st.register_type_strategy(str, text)
    st.register_type_strategy(int, st.integers(-(2**53), 2**53))
    st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
    for cls in CLASSES:
        hints = {field.name: field for field in dataclasses.fields(cls)}
        if "extra" in hints:
            extra = st.dictionaries(text.map(lambda name: f"new_{name}"), st.integers(0, 9), max_size=2)
            st.register_type_strategy(cls, st.builds(cls, extra=extra))


def test_nested_records_optional_fields_enums_and_tuples():
    fault = Fault("a", "a-1", "host-a", (END, dataclasses.replace(END, rank=2, error=None, kind=None)))
    assert decode(Fault, "/f", encode(fault)) == fault
    shard = WorldShard(0, 1, (SEAT,), (Spare("b", "b-1"),))
    assert decode(WorldShard, "/w", encode(shard)) == shard
    end = End(4, Root(FaultKind.SIGNAL, "rank 0 died", end=END), Level.IN_JOB, "restart 1 of 3", "now")
    assert decode(End, "/e", encode(end)) == end


def test_a_person_can_read_it():
    raw = orjson.loads(encode(Round(2, Phase.RUNNING, "t0", token="x", ledger=Ledger(restarts=1))))
    assert raw["schema"] == SCHEMA
    assert (raw["number"], raw["phase"], raw["token"]) == (2, "running", "x")
    assert raw["ledger"]["restarts"] == 1
    assert "extra" not in raw


def test_missing_fields_have_their_defaults():
    raw = {"schema": SCHEMA, "number": 0, "phase": "forming", "opened_utc": "t0"}
    assert decode(Round, "/r", orjson.dumps(raw)) == Round(0, Phase.FORMING, "t0")


def test_unknown_fields_are_kept_when_a_record_is_written_back_nested_ones_too():
    raw = {**orjson.loads(encode(Round(0, Phase.FORMING, "t0"))), "colour": ["red", {"shade": 3}]}
    raw["ledger"]["dollars"] = 7
    record = decode(Round, "/r", orjson.dumps(raw))
    assert record.extra == {"colour": ["red", {"shade": 3}]}
    moved = dataclasses.replace(record, phase=Phase.RUNNING)
    written = orjson.loads(encode(moved))
    assert written["colour"] == ["red", {"shade": 3}]
    assert written["ledger"]["dollars"] == 7
    assert written["phase"] == "running"


def test_a_known_field_wins_over_an_unknown_one_of_its_name():
    assert orjson.loads(encode(records.Current(3, "t", extra={"attempt": 9})))["attempt"] == 3


@pytest.mark.parametrize("found", [2, None, "1"])
def test_an_unknown_schema_is_refused_naming_both(found):
    value = orjson.dumps({"schema": found, "attempt": 0, "since_utc": "t"})
    with pytest.raises(UnknownSchemaError) as caught:
        decode(records.Current, "/nvrx/v1/job/current", value)
    message = str(caught.value)
    assert "/nvrx/v1/job/current" in message
    assert f"schema {found!r}" in message
    assert f"schema {SCHEMA}" in message


def test_a_value_without_schema_is_refused():
    with pytest.raises(UnknownSchemaError):
        decode(records.Current, "/c", b'{"attempt": 0, "since_utc": "t"}')


@pytest.mark.parametrize(
    ("cls", "changes", "words"),
    [
        (records.Current, {"attempt": "zero"}, ["attempt", "'zero'"]),
        (records.Current, {"attempt": True}, ["attempt", "bool"]),
        (records.Current, {"attempt": None}, ["attempt"]),
        (records.Current, {"attempt": 1.5}, ["attempt", "1.5"]),
        (records.Round, {"phase": "dancing"}, ["phase", "dancing"]),
        (records.Round, {"ledger": []}, ["ledger"]),
        (records.Round, {"ledger": {"restarts": "many"}}, ["restarts", "'many'"]),
        (records.JobSpec, {"command": "train.py"}, ["command", "train.py"]),
        (records.JobSpec, {"command": ["train.py", 3]}, ["command", "3"]),
        (records.JobSpec, {"kill_time_s": True}, ["kill_time_s", "bool"]),
        (records.Fault, {"kind": 3}, ["kind", "3"]),
    ],
)
def test_wrong_types_are_named_with_their_field_and_key(cls, changes, words):
    raw = {**orjson.loads(encode(_sample(cls))), **changes}
    with pytest.raises(RecordError) as caught:
        decode(cls, "/the/key", orjson.dumps(raw))
    assert all(word in str(caught.value) for word in ["/the/key", cls.__name__, *words]), caught.value


def test_a_missing_field_is_named():
    with pytest.raises(RecordError, match="since_utc is missing"):
        decode(records.Current, "/c", orjson.dumps({"schema": SCHEMA, "attempt": 0}))


@pytest.mark.parametrize("value", [b"", b"{", b"\xff\xfe", b"[1]", b'"text"', b"null", b"3"])
def test_what_is_no_object_is_no_record(value):
    with pytest.raises(RecordError, match="/the/key"):
        decode(records.Current, "/the/key", value)


def test_whole_numbers_are_accepted_where_a_float_is_meant():
    raw = {**orjson.loads(encode(_sample(records.JobSpec))), "kill_time_s": 2}
    spec = decode(records.JobSpec, "/j", orjson.dumps(raw))
    assert spec.kill_time_s == 2.0
    assert isinstance(spec.kill_time_s, float)


def _sample(cls):
    samples = {
        records.Current: records.Current(0, "t"),
        records.Round: Round(0, Phase.FORMING, "t"),
        records.JobSpec: records.JobSpec(("a",), 1, 1, 0, 6, 2.0, 120.0, 600.0, 30.0),
        records.Fault: Fault("a", "a-1", "h", ()),
        records.Interrupt: Interrupt("a", FaultKind.SIGNAL, "a", "why", "t"),
        records.Node: Node("a", "a-1", "h", "addr", 2, Process("b", "p", 1, 2), "t"),
        records.Assignment: Assignment(0, SEAT, 2, 1, "addr", 1),
    }
    return samples[cls]
