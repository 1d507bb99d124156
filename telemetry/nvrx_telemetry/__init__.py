"""OpenTelemetry names of a job's life. Importing it imports nothing."""

__all__: list[str] = []
