"""Which groups of spans are on: `NVRX_SPAN_GROUPS`. Pure."""

from __future__ import annotations

from nvrx_telemetry import semconv

VARIABLE = "NVRX_SPAN_GROUPS"
KNOWN = frozenset(semconv.PRESETS["all"])


def enabled_groups(text: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """Groups that a value of the variable names, and its words that name none.

    Words are presets (default, per_step, profiling, all, none) or groups, joined by commas; empty is default.
    """
    words = [word.strip() for word in text.split(",") if word.strip()] or ["default"]
    on: set[str] = set()
    unknown = []
    for word in words:
        if word in semconv.PRESETS:
            on.update(semconv.PRESETS[word])
        elif word in KNOWN:
            on.add(word)
        elif word != "none":
            unknown.append(word)
    return frozenset(on), tuple(unknown)


def is_on(name: str, groups: frozenset[str], group: str = "") -> bool:
    """Whether a span is recorded: its group is on, or it has none."""
    tag = group or semconv.GROUP_OF_SPAN.get(name)
    return tag is None or tag in groups or tag not in KNOWN
