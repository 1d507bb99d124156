"""OpenTelemetry for the life of a training: names, spans in ranks, and how an agent sends them.

Importing it imports nothing. In a training script:

```python
with nvrx_telemetry.span("load checkpoint", {"path": path}):
    load(path)
```
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # the real imports are for those who use spans
    from collections.abc import Mapping

    from nvrx_telemetry.model import Value
    from nvrx_telemetry.spans import ForeignSpan, Nothing, OpenSpan

__all__ = ["span"]


def span(
    name: str, attributes: Mapping[str, Value] | None = None, *, group: str = ""
) -> OpenSpan | ForeignSpan | Nothing:
    """A span over the body of a `with`; see `nvrx_telemetry.spans.span`. Costs nothing where telemetry is off."""
    from nvrx_telemetry.spans import span as open_span  # noqa: PLC0415 - only those who use it pay for it

    return open_span(name, attributes, group=group)
