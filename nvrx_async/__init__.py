"""Keeps large PyTorch trainings running: rounds agreed through etcd, ranks restarted when one fails.

This package imports nothing on its own: a rank that imports it pays for what it uses. The rooms are
`nvrx_async.etcd`, `nvrx_async.job` and `nvrx_async.rounds` (agent side).
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
