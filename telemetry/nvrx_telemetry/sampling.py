"""Which traces are recorded: `OTEL_TRACES_SAMPLER` and its argument. Pure.

A round's trace has its root at one agent and spans at all. Each decides by the trace's id, hence all alike, without a
word between them.
"""

from __future__ import annotations

from dataclasses import dataclass

from nvrx_telemetry.variables import Variables

_LOW_BITS = 64
_PARENT = "parentbased_"
_KNOWN = tuple(f"{of}{name}" for name in ("always_on", "always_off", "traceidratio") for of in ("", _PARENT))
_ARGUMENT = "OTEL_TRACES_SAMPLER_ARG"


@dataclass(frozen=True, slots=True)
class Sampling:
    """The part of all traces that is recorded, 0 to 1."""

    ratio: float = 1.0

    def takes(self, trace_id: int) -> bool:
        """Whether a trace is recorded (OpenTelemetry's TraceIdRatioBased: the low 64 bits below a bound)."""
        return (trace_id & ((1 << _LOW_BITS) - 1)) < round(self.ratio * (1 << _LOW_BITS))


def sampling(variables: Variables) -> Sampling:
    """What the variables ask for; `parentbased_` makes no difference to traces that begin here."""
    name = variables.word("OTEL_TRACES_SAMPLER", _KNOWN, "all traces are recorded").removeprefix(_PARENT)
    if name == "always_off":
        return Sampling(0.0)
    text = variables.text(_ARGUMENT)
    if name != "traceidratio" or not text:
        return Sampling()
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1
    if 0 <= ratio <= 1:
        return Sampling(ratio)
    variables.say(f"{_ARGUMENT}={text} is no number from 0 to 1, all traces are recorded")
    return Sampling()
