"""Names that a person may have meant."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

_MOST = 3


def nearest(name: str, known: Collection[str]) -> tuple[str, ...]:
    """At most three known names like this one, the best first; those that contain it count too."""
    close = get_close_matches(name, known, n=_MOST, cutoff=0.6)
    contained = [one for one in sorted(known) if name and name.lower() in one.lower()]
    return tuple(dict.fromkeys([*close, *contained]))[:_MOST]
