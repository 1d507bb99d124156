"""Jobs, nodes and ranks as text. Pure: records in, lines out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from nvrx_async.job.records import Exclusion
from nvrx_async.job.status import JobState, JobStatus, NodeStatus, RankStatus, Role
from nvrx_launcher.ctl.lines import packed
from nvrx_launcher.ctl.screen import Screen
from nvrx_launcher.ctl.table import Cell, Column, Paint, signs, table
from nvrx_launcher.wording import clean, count, duration

T = TypeVar("T")

_GOOD = frozenset({"running", "finished", "member", "done"})
_BAD = frozenset({"failed", "abandoned", "lost", "exception", "signal", "exit_code", "hang", "out_of_memory"})
_USUAL = frozenset({"running", "done", "finished", ""})
_OLD_BEAT_S = 10.0
_TITLE = 11
_LEAST_TEXT = 20
_NO_END = 1_000_000
_PATHS = ("log", "logs")
_WIDE = 110
"""In a narrower list of jobs the kind of a fault says more than the beginning of its sentence."""


def state_paint(screen: Screen, word: str) -> Paint:
    """Green for what goes well, red for what failed, yellow for what is on its way."""
    if word in _GOOD:
        return screen.palette.success
    return screen.palette.error if word in _BAD else screen.palette.warning


def jobs(found: Sequence[JobStatus], screen: Screen) -> list[str]:
    """`nvrx ps`."""
    if not found:
        return ["no jobs"]
    columns = [
        Column("JOB"),
        Column("STATE"),
        Column("ROUND", right=True),
        Column("NODES", right=True, priority=2),
        Column("RANKS", right=True, priority=3),
        Column("AGE", right=True, priority=1),
        *(
            [
                Column("RESTARTS", right=True, priority=5 * screen.narrow),
                Column("ATTEMPT", right=True, priority=6 * screen.narrow),
            ]
            if screen.wide
            else []
        ),
        Column("LAST FAULT", flexible=True, priority=4),
        *([Column("COMMAND", flexible=True, priority=7 * screen.narrow)] if screen.wide else []),
    ]
    rows = [_job(one, screen) for one in found]
    return table(columns, rows, screen.width, screen.palette.quiet)


def _job(one: JobStatus, screen: Screen) -> list[Cell | str]:
    nodes = f"{one.nodes_present}/{_range(one)}"
    fault = one.last_fault
    said = "-"
    if fault is not None:
        narrow = screen.width is not None and screen.width < _WIDE
        about = fault.kind.value.replace("_", " ") if narrow else clean(fault.sentence)
        said = f"{about} ({screen.roughly_ago(fault.at_utc)} ago)"
    return [
        Cell(one.run_id),
        Cell(one.state.value, state_paint(screen, one.state.value)),
        str(one.round),
        nodes,
        str(one.world_size),
        screen.roughly_ago(one.created_utc),
        *([f"{one.restarts}/{one.max_restarts}", str(one.attempt)] if screen.wide else []),
        said,
        *([clean(" ".join(one.command))] if screen.wide else []),
    ]


def _range(one: JobStatus) -> str:
    if not one.max_nodes:
        return "?"
    return str(one.max_nodes) if one.min_nodes == one.max_nodes else f"{one.min_nodes}-{one.max_nodes}"


def status(one: JobStatus, screen: Screen) -> list[str]:
    """`nvrx status JOB`: head, nodes, ranks."""
    lines = [*head(one, screen), ""]
    if one.nodes:
        lines += [*nodes(one.nodes, screen), ""]
    if one.ranks:
        lines += [*packed([summary_of_ranks(one.ranks)], screen.width, "  "), *ranks(one.ranks, screen), ""]
    if one.silent:
        silent: list[Cell | str] = [
            Cell("no live numbers from", screen.palette.warning),
            f" {_named(one.silent)}",
        ]
        lines += packed(silent, screen.width, "  ")
    while lines and not lines[-1]:
        lines.pop()
    return lines


def head(one: JobStatus, screen: Screen) -> list[str]:
    """What the job is and how it stands, a fact a line."""
    state = Cell(f"  {one.state.value}", state_paint(screen, one.state.value))
    since = (
        f" for {screen.ago(one.since_utc)}" if not one.state.is_over else f" {screen.ago(one.since_utc)} ago"
    )
    facts = [("command", clean(" ".join(one.command)))]
    if one.state is JobState.UNKNOWN:
        since = f", last heard of {screen.ago(one.since_utc)} ago"
    present = f"{one.nodes_present} of {_range(one)} registered"
    facts.append(("nodes", present + (f", {count(one.world_size, 'rank')}" if one.world_size else "")))
    facts.append(("spent", _spent(one)))
    if one.waits_for:
        facts.append(("waits for", one.waits_for))
    if one.last_fault is not None:
        fault = one.last_fault
        facts.append(
            ("last fault", f"{screen.ago(fault.at_utc)} ago, round {fault.round}: {clean(fault.sentence)}")
        )
    if one.last_asked is not None and one.outcome is None:
        asked = one.last_asked
        facts.append(
            ("on request", f"{screen.ago(asked.at_utc)} ago, round {asked.round}: {clean(asked.sentence)}")
        )
    facts += [("excluded", _excluded(x, screen)) for x in one.excluded]
    facts += [("asked", f"{c.verb.value} {c.node_id or ''} by {c.by}, no answer yet") for c in one.commands]
    if one.outcome is not None:
        facts.append(("outcome", f"exit code {one.outcome.exit_code}: {clean(one.outcome.reason)}"))
    first: list[Cell | str] = [one.run_id, state, f"{since}, round {one.round}, attempt {one.attempt}"]
    return [*packed(first, screen.width, "  "), *_facts(facts, screen, indent="")]


def ending(one: JobStatus, screen: Screen) -> str:
    """How a job ended, in a line for those who followed it."""
    state = state_paint(screen, one.state.value)(one.state.value)
    if one.outcome is None:
        return f"job {one.run_id} {state}: no agent of it is registered any more"
    return f"job {one.run_id} {state}, exit code {one.outcome.exit_code}: {clean(one.outcome.reason)}"


def _excluded(one: Exclusion, screen: Screen) -> str:
    until = f", until {screen.clock(one.until_utc)}" if one.until_utc else ""
    return f"{one.node_id}: {clean(one.why)} ({one.by}{until})"


def _spent(one: JobStatus) -> str:
    lost = f", {count(one.lost_nodes, 'lost node')}" if one.lost_nodes else ""
    if not one.max_nodes:  # a history that a version before this one wrote knows no limits
        return f"{count(one.restarts, 'restart')}{lost}"
    return f"{one.restarts} of {one.max_restarts} restarts{lost}"


def nodes(found: Sequence[NodeStatus], screen: Screen) -> list[str]:
    """`nvrx nodes JOB`."""
    if not found:
        return ["no nodes are registered"]
    columns = [
        Column("NODE"),
        Column("ROLE"),
        Column("RANKS", right=True),
        Column("HOST", flexible=True, priority=2),
        Column("SINCE", right=True, priority=1),
        Column("WARM", right=True, priority=3),
        Column("ETCD", right=True, priority=4),
        *(
            [
                Column("ADDRESS", priority=7 * screen.narrow),
                Column("PROBE", priority=8 * screen.narrow),
                Column("PID", right=True, priority=5),
                Column("INCARNATION", priority=6),
                Column("LOGS", flexible=True, least=24, priority=9 * screen.narrow),
            ]
            if screen.wide
            else []
        ),
        Column("", flexible=True),
    ]
    shown, left_out = _cut(found, screen.rows, lambda one: one.role is not Role.MEMBER)
    rows = [_node(one, screen) for one in shown]
    return [*table(columns, rows, screen.width, screen.palette.quiet), *packed(left_out, screen.width)]


def _node(one: NodeStatus, screen: Screen) -> list[Cell | str]:
    last = one.first_rank + one.slots - 1
    where = "-" if one.first_rank < 0 else str(last) if one.slots == 1 else f"{one.first_rank}-{last}"
    told = "leads" if one.leads else ""
    return [
        one.node_id,
        Cell(one.role.value, state_paint(screen, one.role.value)),
        where,
        one.host,
        screen.ago(one.registered_utc),
        "-" if one.warm is None else str(one.warm),
        "-" if one.etcd_ms is None else f"{one.etcd_ms:.1f} ms",
        *(
            [one.address, one.probe or "-", str(one.pid or "-"), one.incarnation, one.log_dir or "-"]
            if screen.wide
            else []
        ),
        ", ".join(part for part in (told, clean(one.why)) if part),
    ]


def ranks(found: Sequence[RankStatus], screen: Screen) -> list[str]:
    """`nvrx ranks JOB`: those that are not as they should be come first where not all are shown."""
    if not found:
        return ["no ranks run"]
    steps = [one.step for one in found if one.step is not None]
    behind = max(steps, default=0)

    def unusual(one: RankStatus) -> bool:
        late = one.beat_age_s is not None and one.beat_age_s > _OLD_BEAT_S
        return one.state not in _USUAL or late or (one.step is not None and one.step < behind - 1)

    columns = [
        Column("RANK", right=True),
        Column("NODE", flexible=True, priority=1),
        Column("STATE"),
        Column("STEP", right=True),
        Column("LAST BEAT", right=True),
        Column("SECTION", flexible=True, priority=2),
        Column("OUTPUT", right=True, priority=3),
        Column("PID", right=True, priority=4),
        *(
            [
                Column("HOST", priority=5 * screen.narrow),
                Column("LOG", flexible=True, priority=6 * screen.narrow),
            ]
            if screen.wide
            else []
        ),
    ]
    shown, left_out = _cut(found, screen.rows, unusual)
    rows = [_rank(one, screen) for one in shown]
    return [*table(columns, rows, screen.width, screen.palette.quiet), *packed(left_out, screen.width)]


def _rank(one: RankStatus, screen: Screen) -> list[Cell | str]:
    section = f"{clean(one.section)} for {duration(one.section_s)}" if one.section else "-"
    late = one.beat_age_s is not None and one.beat_age_s > _OLD_BEAT_S
    beat = "-" if one.beat_age_s is None else duration(one.beat_age_s)
    return [
        str(one.rank),
        one.node_id,
        Cell(one.state or "-", state_paint(screen, one.state) if one.state else None),
        "-" if one.step is None else str(one.step),
        Cell(beat, screen.palette.warning if late else None),
        section,
        size(one.output_bytes) if one.output_bytes else "-",
        str(one.pid or "-"),
        *([one.host, one.log or "-"] if screen.wide else []),
    ]


def summary_of_ranks(found: Sequence[RankStatus]) -> str:
    """One line on any number of ranks."""
    states = Counter(one.state or "without live numbers" for one in found)
    told = ", ".join(f"{number} {state}" for state, number in states.most_common())
    steps = [one.step for one in found if one.step is not None]
    at = ""
    if steps:
        low, high = min(steps), max(steps)
        at = f", step {high}" if low == high else f", steps {low} to {high}"
    sections = Counter(one.section for one in found if one.section)
    inside = "".join(f", {number} in {clean(name)}" for name, number in sections.most_common(3))
    return f"{count(len(found), 'rank')}: {told}{at}{inside}"


def size(number: int) -> str:
    """Bytes for people: `940 B`, `1.2 MB`."""
    amount = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:  # noqa: PLR2004 - the step between decimal units
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"  # noqa: PLR2004
        amount /= 1000
    return f"{amount:.1f} TB"


def described_node(one: JobStatus, screen: Screen) -> list[str]:
    """`nvrx describe JOB node X`: `one` holds this node and its ranks only."""
    (node,) = one.nodes
    facts = [
        ("role", node.role.value + (", leads" if node.leads else "")),
        ("host", f"{node.host}, {node.address}"),
        ("probe", node.probe),
        ("agent", f"pid {node.pid}, incarnation {node.incarnation}" if node.pid else ""),
        (
            "since",
            f"{node.registered_utc} ({screen.ago(node.registered_utc)})" if node.registered_utc else "",
        ),
        ("warm", "" if node.warm is None else f"{count(node.warm, 'idle worker')} for the next restart"),
        ("etcd", "" if node.etcd_ms is None else f"{node.etcd_ms:.1f} ms for the last renewal"),
        ("logs", node.log_dir),
        ("why", clean(node.why)),
    ]
    named = packed([f"node {node.node_id} of {one.run_id}"], screen.width, "  ")
    return [*named, *_facts(facts, screen), "", *ranks(one.ranks, screen)]


def described_rank(one: RankStatus, screen: Screen) -> list[str]:
    """`nvrx describe JOB rank N`."""
    facts = [
        ("where", f"{one.node_id}, host {one.host}, local rank {one.local_rank}"),
        ("state", one.state or "its agent gave no answer"),
        ("pid", str(one.pid) if one.pid else ""),
        ("step", "" if one.step is None else str(one.step)),
        ("last beat", "" if one.beat_age_s is None else f"{duration(one.beat_age_s)} ago"),
        ("section", f"{clean(one.section)} for {duration(one.section_s)}" if one.section else ""),
        ("output", size(one.output_bytes)),
        ("log", one.log),
    ]
    return [f"rank {one.rank}", *_facts(facts, screen)]


def _facts(facts: Sequence[tuple[str, str]], screen: Screen, indent: str = "  ") -> list[str]:
    """A fact a line, broken where the screen ends."""
    room = max((screen.width or _NO_END) - _TITLE - len(indent), _LEAST_TEXT)
    lines = []
    for name, text in facts:
        whole = name in _PATHS and signs(clean(text)) > room
        for place, part in enumerate([] if whole else packed([clean(text)], room) if text else []):
            title = name if place == 0 else ""
            lines.append(f"{indent}{screen.palette.quiet(f'{title:<{_TITLE}}')}{part}")
        if whole:  # a path is never parted, so that it can be taken from the screen
            lines += [f"{indent}{screen.palette.quiet(name)}", f"{indent}{clean(text)}"]
    return lines


def _cut(
    found: Sequence[T], rows: int | None, comes_first: Callable[[T], bool]
) -> tuple[Sequence[T], list[str]]:
    """As many as a person reads, those first that matter; and a line that says how many are left out."""
    if rows is None or len(found) <= rows:
        return found, []
    ordered = sorted(found, key=lambda one: not comes_first(one))
    left = f"... {len(found) - rows} more: --all shows them, and so does -o json"
    return ordered[:rows], [left]


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")  # noqa: PLR2004 - what a line holds
