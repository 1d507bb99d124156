"""What rank and agent say to each other over the socket. The only place that spells it.

On the wire a message is an object: `"is"` names the message, the other fields are its own. Fields that a
version does not know are ignored, a message that it does not know is an error of that connection alone.
Imports nothing but the standard library: ranks load this.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias

from nvrx_async.ranklink.errors import MessageError

if TYPE_CHECKING:
    from collections.abc import Mapping

SOCKET_VARIABLE = "NVRX_AGENT_SOCKET"
"""Environment of a rank: path of its agent's socket."""

PAGE_VARIABLE = "NVRX_RANK_PAGE"
"""Environment of a rank: path of its page."""

STACKS_VARIABLE = "NVRX_STACKS_FILE"
"""Environment of a rank: file that it dumps its stacks into when it is asked by a signal."""

FAULTS_VARIABLE = "NVRX_FAULTS"
"""Environment of a rank: faults that it is to commit, see `rank_inject`."""


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of a connection. `role` is rank (a training process) or tool."""

    role: str
    pid: int
    round: int
    rank: int


@dataclass(frozen=True, slots=True)
class StopAt:
    """To a rank: the job stops at this step. Every rank that asks at this step or later is told to."""

    round: int
    step: int


@dataclass(frozen=True, slots=True)
class AllowGrow:
    """To the agent: nodes that wait may be taken into the job, from now on in this round."""

    round: int


@dataclass(frozen=True, slots=True)
class StepReached:
    """To the agent: this rank has come to the step that its page asks for, or beyond."""

    round: int
    rank: int
    step: int


Message: TypeAlias = Hello | StopAt | AllowGrow | StepReached
_BY_NAME: dict[str, type[Message]] = {
    "hello": Hello,
    "stop_at": StopAt,
    "allow_grow": AllowGrow,
    "step_reached": StepReached,
}
_NAMES = {cls: name for name, cls in _BY_NAME.items()}
_TYPES: dict[str, type] = {"str": str, "int": int}


def to_wire(message: Message) -> dict[str, Any]:
    """The object that a frame carries."""
    return {"is": _NAMES[type(message)], **asdict(message)}


def from_wire(raw: Mapping[str, Any]) -> Message:
    """The message in an object.

    Raises:
        MessageError: unknown name, a field is missing or of another type.
    """
    cls = _BY_NAME.get(str(raw.get("is")))
    if cls is None:
        raise MessageError(f"no message is called {raw.get('is')!r}")
    values: dict[str, Any] = {}
    for field in fields(cls):
        value = raw.get(field.name)
        if not isinstance(value, _TYPES[str(field.type)]) or isinstance(value, bool):
            raise MessageError(f"{raw['is']}: field {field.name} holds {value!r}")
        values[field.name] = value
    return cls(**values)
