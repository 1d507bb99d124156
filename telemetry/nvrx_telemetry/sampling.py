"""Which traces are recorded: `OTEL_TRACES_SAMPLER` and its argument. Pure.

A round's trace has its root at one agent and spans at all. Each decides by the trace's id, hence all alike, without a
word between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_LOW_BITS = 64


@dataclass(frozen=True, slots=True)
class Sampling:
    """The part of all traces that is recorded, 0 to 1."""

    ratio: float = 1.0

    def takes(self, trace_id: int) -> bool:
        """Whether a trace is recorded (OpenTelemetry's TraceIdRatioBased: the low 64 bits below a bound)."""
        return (trace_id & ((1 << _LOW_BITS) - 1)) < round(self.ratio * (1 << _LOW_BITS))


def sampling(environment: Mapping[str, str]) -> Sampling:
    """What the variables ask for; `parentbased_` makes no difference to traces that begin here."""
    name = environment.get("OTEL_TRACES_SAMPLER", "").strip().lower().removeprefix("parentbased_")
    if name == "always_off":
        return Sampling(0.0)
    if name != "traceidratio":
        return Sampling()
    try:
        ratio = float(environment.get("OTEL_TRACES_SAMPLER_ARG", ""))
    except ValueError:
        return Sampling()
    return Sampling(ratio) if 0 <= ratio <= 1 else Sampling()
