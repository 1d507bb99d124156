"""Spans in a training process: `with nvrx_telemetry.span("load"): …`.

Where they go: to the OpenTelemetry provider that the training has set up, if it has; else into the spool that the
agent gave this rank, from where the agent sends them. With neither, a span is one look into a table: no clock is
read and nothing of OpenTelemetry is loaded. Nothing here waits for a collector, starts a thread or has to be
flushed: a span that was left is safe, also from `os._exit` and SIGKILL, in forked children too.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from nvrx_telemetry import spool_line
from nvrx_telemetry.groups import VARIABLE as GROUPS_VARIABLE
from nvrx_telemetry.groups import enabled_groups, is_on
from nvrx_telemetry.traceparent import SpanName, parsed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from nvrx_telemetry.model import Value

_ABOVE: ContextVar[Any] = ContextVar("nvrx_span", default=None)
"""The OpenSpan that is open here, None for none."""
_ID_BYTES = 8


class OpenSpan:
    """A span that is open, for `with`. One object is good for one `with`."""

    def __init__(self, recorder: Recorder, name: str, attributes: Mapping[str, Value] | None) -> None:
        self._recorder, self._what = recorder, name
        self._attributes: dict[str, Value] = dict(attributes or {})
        self._start_ns = 0
        self._above: OpenSpan | None = None
        self._told = False
        self.name = SpanName(0, 0)

    def set(self, key: str, value: Value) -> None:
        """Add an attribute."""
        self._attributes[key] = value

    @property
    def parent(self) -> SpanName:
        """The span that this one is below."""
        return self._recorder.parent if self._above is None else self._above.name

    def __enter__(self) -> OpenSpan:  # noqa: PYI034 - Self would cost a rank an import of typing
        self._above = _ABOVE.get()
        self.name = _new_name(self.parent)
        # No token: a span may be left in another context than it was entered in (generators, tasks).
        _ABOVE.set(self)
        self._start_ns = self._recorder.now_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_ns = self._recorder.now_ns()
        if _ABOVE.get() is self:
            _ABOVE.set(self._above)
        if self._above is not None:
            self._above.tell_open()
        told = None if kind is None else f"{kind.__name__}: {error}"
        self._write(end_ns, told)

    def tell_open(self) -> None:
        """Say that this span exists, before one below it is told of: it may never end."""
        if self._told:
            return
        self._told = True
        if self._above is not None:
            self._above.tell_open()
        self._write(self._start_ns, None, still_open=True)

    def _write(self, end_ns: int, error: str | None, *, still_open: bool = False) -> None:
        times = (self._start_ns, end_ns)
        self._recorder.record(
            self._what, self.name, self.parent, times, self._attributes, error, still_open=still_open
        )


class Nothing:
    """A span that nobody wants."""

    def set(self, key: str, value: Value) -> None:
        """Nothing is added."""

    def __enter__(self) -> Nothing:  # noqa: PYI034 - as above
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is recorded."""


NOTHING = Nothing()


class ForeignSpan:
    """A span of the provider that the training set up."""

    def __init__(self, entered: AbstractContextManager[Any]) -> None:
        self._entered = entered
        self._span: Any = None

    def set(self, key: str, value: Value) -> None:
        """Add an attribute."""
        self._span.set_attribute(key, value)

    def __enter__(self) -> ForeignSpan:  # noqa: PYI034 - as above
        self._span = self._entered.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.__exit__(kind, error, trace)


def span(
    name: str, attributes: Mapping[str, Value] | None = None, *, group: str = ""
) -> OpenSpan | ForeignSpan | Nothing:
    """A span over the body of a `with`; spans inside it, also in tasks begun there, are its children.

    `group` is one of the groups in `semconv`; names known there have theirs, others are always on. An exception
    that leaves the body is noted and goes on.
    """
    tracer = _tracer()
    if tracer is None and _recorder() is None:
        return NOTHING
    if not is_on(name, _groups(), group):
        return NOTHING
    if tracer is not None:
        return ForeignSpan(
            tracer.start_as_current_span(name, context=_foreign_parent(), attributes=attributes)
        )
    recorder = _recorder()
    return NOTHING if recorder is None else OpenSpan(recorder, name, attributes)


class Recorder:
    """Writes spans to the agent's spool. `parent` is what the agent has told to be above this rank's spans."""

    def __init__(self, descriptor: int, epoch_ns: int, parent: SpanName) -> None:
        self.parent = parent
        self._descriptor = descriptor
        self._epoch_ns = epoch_ns
        self._lost = 0

    def now_ns(self) -> int:
        """Nanoseconds since 1970 by the agent's clock: no step of the wall clock is in it."""
        return self._epoch_ns + time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def record(
        self,
        name: str,
        me: SpanName,
        parent: SpanName,
        times_ns: tuple[int, int],
        attributes: Mapping[str, Value],
        error: str | None,
        *,
        still_open: bool = False,
    ) -> None:
        """Append a span from `times_ns` to `times_ns`; one for which there is no room is lost."""
        try:
            told = spool_line.line(
                name, me, parent.span_id, times_ns, attributes, error, still_open=still_open
            )
            if os.fstat(self._descriptor).st_blocks * 512 + len(told) >= spool_line.LIMIT_BYTES:
                self._lost += 1
                return
            if self._lost:
                told += spool_line.lost(self._lost)
                self._lost = 0
            os.write(self._descriptor, told)
        except (OSError, TypeError, ValueError, RuntimeError):
            return  # law 8: a span that cannot be kept, or is no JSON, changes nothing for the training


def _new_name(parent: SpanName) -> SpanName:
    return SpanName(parent.trace_id, int.from_bytes(os.urandom(_ID_BYTES), "big") or 1)


@functools.cache
def _recorder() -> Recorder | None:
    """Made once a process; a forked child goes on with its parent's, since appending is atomic."""
    path, epoch = os.environ.get(spool_line.VARIABLE, ""), os.environ.get(spool_line.CLOCK_VARIABLE, "")
    parent = parsed(os.environ.get("TRACEPARENT"))
    if not path or not epoch.isdigit() or parent is None:
        return None
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError:  # the agent is gone, or it is another user's: nobody would read it
        return None
    return Recorder(descriptor, int(epoch), parent)


@functools.cache
def _groups() -> frozenset[str]:
    return enabled_groups(os.environ.get(GROUPS_VARIABLE, ""))[0]


def _tracer() -> Any:
    """The training's own tracer; None unless it has loaded OpenTelemetry and set a provider."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    provider = getattr(api, "get_tracer_provider", _no_provider)()
    if provider is None or isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
        return None
    return provider.get_tracer("nvrx_telemetry")


def _no_provider() -> None:
    """The API is being imported by another thread."""


def _foreign_parent() -> Any:
    """Below the training's own span if one is open, else below the agent's."""
    from opentelemetry import trace  # noqa: PLC0415 - the training has loaded it

    above = parsed(os.environ.get("TRACEPARENT"))
    if trace.get_current_span().get_span_context().is_valid or above is None:
        return None
    context = trace.SpanContext(
        above.trace_id, above.span_id, is_remote=True, trace_flags=trace.TraceFlags(1)
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(context))
