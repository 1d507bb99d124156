"""The port on which an agent answers questions: of other agents while etcd is away, and of people at any time.

One question a connection. Each kind of question has a handler; `ask` is the other side. A job token, where
there is one, proves both sides to each other without ever travelling.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nvrx_async.probe.errors import (
    ProbeError,
    ProtocolError,
    QuestionRefusedError,
    UnreachableError,
    UntrustedError,
)

if TYPE_CHECKING:
    from nvrx_async.probe.client import ask
    from nvrx_async.probe.server import Handler, ProbeServer

__all__ = [
    "Handler",
    "ProbeError",
    "ProbeServer",
    "ProtocolError",
    "QuestionRefusedError",
    "UnreachableError",
    "UntrustedError",
    "ask",
]

_HOME = {"ask": "client", "Handler": "server", "ProbeServer": "server"}


def __getattr__(name: str) -> Any:
    """Who asks loads nothing of the side that answers (PEP 562)."""
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
