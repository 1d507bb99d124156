"""Errors of the keeper."""


class FrameError(ValueError):
    """Bytes that are no frame; nothing behind them can be read."""
