"""The documented interface: constants with their values, every span and attribute of the contract, and no others."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

import pytest

from nvrx_telemetry import semconv
from nvrx_telemetry.groups import enabled_groups, is_on

SOURCE = Path(semconv.__file__)

CONSTANTS = {
    "SPAN_GROUP_STARTUP": ("nv.nvrx.ftl.python", "Process startup and import spans."),
    "SPAN_GROUP_FT": ("nv.nvrx.ftl", "Fault-tolerance operation spans."),
    "SPAN_GROUP_CKPT": ("nv.nvrx.ckpt", "Checkpoint scheduling, worker request, and finalization spans."),
    "SPAN_GROUP_CKPT_PHASES": (
        "nv.nvrx.ckpt.save",
        "Checkpoint stage and completion synchronization spans.",
    ),
    "CKPT_CALL_IDX": (
        "nv.nvrx.ckpt.call_idx",
        "Attribute key for the queue-local index shared by schedule, request, and finalize spans.",
    ),
}

STARTUP = {"nv.nvrx.ftl.python.startup", "nv.nvrx.ftl.python.imports"}
FT = {
    f"nv.nvrx.ftl.{name}"
    for name in (
        "cycle_start", "cycle", "await_round", "rendezvous", "health_check", "worker_launch", "run_start", "run",
        "fault", "teardown", "attribution",
    )
}  # fmt: skip
CKPT = {f"nv.nvrx.ckpt.save.{name}" for name in ("schedule", "request", "finalize")}
PHASES = {
    f"nv.nvrx.ckpt.save.{name}"
    for name in ("stage_wait", "shm_drain", "stage", "preload", "write", "completion_sync")
}
ATTRIBUTES = {
    "nv.nvrx.cycle.index", "nv.nvrx.cycle.outcome", "nv.nvrx.ftl.rdzv.round", "nv.nvrx.ftl.profiling.cycle",
    "nv.nvrx.ftl.node", "nv.nvrx.ftl.membership", "nv.nvrx.ftl.group.rank", "nv.nvrx.ftl.group.world_size",
    "nv.nvrx.ftl.cycle.failures", "nv.nvrx.ftl.cycle.state", "nv.nvrx.ftl.max_restarts",
    "nv.nvrx.ftl.remaining_restarts", "nv.nvrx.ftl.rdzv.run_id", "nv.nvrx.ftl.infra.rank",
    "nv.dl.launch.nnodes.active", "nv.dl.launch.nnodes.spare", "nv.nvrx.ckpt.call_idx", "nv.dl.rank", "nv.dl.role",
}  # fmt: skip
OURS = {
    f"nv.nvrx.ftl.{name}"
    for name in (
        "round_start", "round", "detection", "notification", "evidence", "report", "decision", "run_slice",
        "restart", "restart.told", "restart.stopped", "restart.reaped", "restart.reported", "restart.ended",
        "restart.sealed", "restart.released", "restart.started", "restart.connected", "restart.first_step",
        "rank.startup", "rank.setup", "rank.first_step",
    )
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTANTS)
def test_documented_constants_have_their_values_and_docstrings(name: str) -> None:
    value, text = CONSTANTS[name]
    assert getattr(semconv, name) == value
    assert documented()[name] == text


def test_every_span_of_the_contract_is_in_its_group_and_no_other_span_is() -> None:
    groups = {
        semconv.SPAN_GROUP_STARTUP: STARTUP,
        semconv.SPAN_GROUP_FT: FT | OURS,
        semconv.SPAN_GROUP_CKPT: CKPT,
        semconv.SPAN_GROUP_CKPT_PHASES: PHASES,
    }
    found: dict[str, set[str]] = {group: set() for group in groups}
    for name, group in semconv.GROUP_OF_SPAN.items():
        found[group].add(name)
    assert found == groups


def test_every_attribute_of_the_contract_has_a_constant() -> None:
    values = {value for value in vars(semconv).values() if isinstance(value, str)}
    assert values >= ATTRIBUTES


def test_every_constant_says_what_it_is() -> None:
    names = {name for name in vars(semconv) if name.isupper()}
    assert names == set(documented())


def documented() -> dict[str, str]:
    """Constants and the string below each."""
    body = ast.parse(SOURCE.read_text(encoding="utf-8")).body
    found = {}
    for node, after in pairwise(body):
        if isinstance(node, ast.Assign) and isinstance(after, ast.Expr):
            (target,) = node.targets
            assert isinstance(target, ast.Name)
            assert isinstance(after.value, ast.Constant)
            found[target.id] = str(after.value.value)
    return found


@pytest.mark.parametrize(
    ("text", "on", "unknown"),
    [
        ("", set(semconv.PRESETS["default"]), ()),
        ("default", {"nv.nvrx.ftl.python", "nv.nvrx.ftl", "nv.nvrx.ckpt"}, ()),
        ("per_step", {"nv.nvrx.ftl.python", "nv.nvrx.ftl", "nv.nvrx.ckpt", "nv.nvrx.ckpt.save"}, ()),
        ("profiling", set(semconv.PRESETS["all"]), ()),
        ("all", set(semconv.PRESETS["all"]), ()),
        ("nv.nvrx.ckpt, nv.nvrx.ckpt.save", {"nv.nvrx.ckpt", "nv.nvrx.ckpt.save"}, ()),
        ("none", set(), ()),
        ("nv.nvrx.ftl,nonsense", {"nv.nvrx.ftl"}, ("nonsense",)),
    ],
)
def test_groups_by_preset_and_by_name(text: str, on: set[str], unknown: tuple[str, ...]) -> None:
    assert enabled_groups(text) == (frozenset(on), unknown)


def test_groups_are_tags_and_no_prefixes() -> None:
    assert not is_on(semconv.STARTUP, frozenset({semconv.SPAN_GROUP_FT}))
    assert is_on(semconv.CKPT_SCHEDULE, frozenset({semconv.SPAN_GROUP_CKPT}))
    assert not is_on(semconv.CKPT_SCHEDULE, frozenset({semconv.SPAN_GROUP_CKPT_PHASES}))
    assert is_on("my.own", frozenset())
