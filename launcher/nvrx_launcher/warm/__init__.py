"""Warm workers: idle processes that have imported torch and wait to become the next round's ranks."""

from nvrx_launcher.warm.crew import WarmCrew

__all__ = ["WarmCrew"]
