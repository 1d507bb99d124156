"""How much of a span's attributes is sent: `OTEL_SPAN_ATTRIBUTE_…_LIMIT` and `OTEL_ATTRIBUTE_…_LIMIT`. Pure.

Limits of events and logs, which are not sent, have no meaning here, nor has that of links: a span has two at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from nvrx_telemetry.model import Value
from nvrx_telemetry.variables import Variables

_COUNT = 128
"""OpenTelemetry's default."""


@dataclass(frozen=True, slots=True)
class Limits:
    """So many attributes, the first ones, and so many characters of each text; None for all."""

    count: int = _COUNT
    length: int | None = None

    def cut(self, attributes: Mapping[str, Value]) -> dict[str, Value]:
        """What is sent of them."""
        kept = islice(attributes.items(), self.count)
        if self.length is None:
            return dict(kept)
        return {key: value[: self.length] if isinstance(value, str) else value for key, value in kept}


def limits(variables: Variables) -> Limits:
    """What the variables ask for; the one for spans goes before the one for all."""
    counts, lengths = (
        [variables.count(f"OTEL_{of}ATTRIBUTE_{what}_LIMIT") for of in ("SPAN_", "")]
        for what in ("COUNT", "VALUE_LENGTH")
    )
    return Limits(
        count=next((count for count in counts if count is not None), _COUNT),
        length=next((length for length in lengths if length is not None), None),
    )
