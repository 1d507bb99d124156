"""Errors of the telemetry."""

from __future__ import annotations


class TelemetryError(Exception):
    """Telemetry cannot be set up as asked. `hint` says what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message}; {hint}")
        self.message = message
        self.hint = hint
