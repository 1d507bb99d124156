"""The port on which an agent answers questions: of other agents while etcd is away, and of people at any time.

One question a connection. Each kind of question has a handler; `ask` is the other side. A job token, where
there is one, proves both sides to each other without ever travelling.
"""

from nvrx_async.probe.client import ask
from nvrx_async.probe.errors import (
    ProbeError,
    ProtocolError,
    QuestionRefusedError,
    UnreachableError,
    UntrustedError,
)
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
