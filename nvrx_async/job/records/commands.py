"""What people ask of a running job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Verb(Enum):
    """What a person may ask of a running job."""

    STOP = "stop"
    RESTART = "restart"
    GROW = "grow"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    EXCLUDE = "exclude"


class CommandPhase(Enum):
    """How far a command has come."""

    ASKED = "asked"
    DONE = "done"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Command:
    """Key `control/<id>`: what a person asks of the job, carried out once.

    Whoever asks creates the key; the coordinator writes effect and answer in one transaction. `by` names
    the person (`user@host`), `node_id` the node that drain, undrain and exclude are about, `answer` is a
    sentence for the person.
    """

    verb: Verb
    by: str
    reason: str
    asked_utc: str
    node_id: str | None = None
    phase: CommandPhase = CommandPhase.ASKED
    answer: str = ""
    answered_utc: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
