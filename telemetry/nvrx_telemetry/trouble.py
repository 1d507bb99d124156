"""What people are told of a collector that cannot be reached: one line when it begins, one when it is over."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

_ABORTED = ("Shutdown in progress", "Exporter already shutdown")
"""How lines of OpenTelemetry's exporters begin that are ended while they try again: no reason for anything."""

_GIVEN_UP = "due to timeout, max retries or shutdown"
"""In the exporters' last line on a batch; what was wrong stands in those before it."""

_SPEAKS_OTHERWISE = {
    r"BadStatusLine('\x00\x00": "it speaks HTTP/2 there, as OTLP over gRPC does: OTEL_EXPORTER_OTLP_PROTOCOL=grpc, "
    "or the port for HTTP, mostly 4318",
    "Expected SETTINGS frame as the first frame": "it does not speak gRPC there: "
    "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf, or the port for gRPC, mostly 4317",
}
"""What HTTP's and gRPC's clients say of the other's port, and what to do."""

_RETRIES = re.compile(r",? retrying in [\d.]+s\.?")

_USER = re.compile(r"(//)?[^/\s@'\"]*[^\s'\"]*@")
_PATH = re.compile(r"(with url: |https?://[^\s/'\"?]+)/(?!v1/(?:traces|metrics)\b)[^\s'\"]+")
_HEADER = re.compile(r"(header value: ).*", re.DOTALL)

_TAKES_NONE = re.compile(
    r"Failed to export (metrics|spans) batch code: 404|Failed to export (metrics|traces) to .* StatusCode.UNIMPLEMENTED"
)
"""What exporters say of a collector that does not know a signal at all, as Jaeger metrics."""

QUIET_S = 600.0
"""A collector that comes and goes is spoken of once in so long."""


class Trouble:
    """Heard from several threads. `tell` is given a line for people; it must not block."""

    def __init__(self, where: str, tell: Callable[[str], None]) -> None:
        self._where = where
        self._tell = tell
        self._lock = threading.Lock()
        self._reason = ""
        self._lasts = False
        self._told_s: float | None = None
        self._ends = False
        self.failures = 0

    def heard(self, reason: str) -> None:
        """What the exporter says is kept as the reason."""
        if reason.startswith(_ABORTED):
            return
        with self._lock:
            if _GIVEN_UP not in reason or not self._reason:
                self._reason = reason

    def ends(self) -> None:
        """The process ends: what cannot be delivered now never will."""
        self._ends = True

    def failed(self, reason: str = "") -> None:
        """Something could not be delivered."""
        with self._lock:
            self.failures += 1
            self._reason = reason or self._reason
            first, self._lasts = not self._lasts, True
            now_s = time.monotonic()
            quiet = self._told_s is not None and now_s - self._told_s < QUIET_S
            if not first or quiet:
                return
            self._told_s = now_s
            text = f": {_shown(self._reason)}" if self._reason else ""
        then = "the last of it is lost" if self._ends else "the job goes on, it is tried again"
        unknown = _TAKES_NONE.search(self._reason)
        if unknown is not None:
            signal = "METRICS" if "metrics" in unknown.groups() else "TRACES"
            then = f"it takes no {signal.lower()} there; OTEL_{signal}_EXPORTER=none sends it none"
        then = next((what for sign, what in _SPEAKS_OTHERWISE.items() if sign in self._reason), then)
        self._tell(f"telemetry cannot be delivered to {self._where}{text}; {then}")

    def worked(self) -> None:
        """Something was delivered."""
        with self._lock:
            self._lasts, self._reason = False, ""


def _shown(reason: str) -> str:
    """What exporters say, without what they quote of an endpoint's user, path and query, or of a header's value."""
    plain = _RETRIES.sub(";", reason).rstrip("; .")  # when it tries again is not what was wrong
    return _PATH.sub(r"\1/…", _HEADER.sub(r"\1(left out)", _USER.sub(r"\1", plain)))
