"""The life that this agent leads at the moment, for what outlives it: signals, limits, questions of other agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvrx_async.probe import QuestionRefusedError
from nvrx_async.rounds.events import Event
from nvrx_async.rounds.interpreter import Interpreter
from nvrx_async.rounds.promises import Peer
from nvrx_launcher.tenure import Tenure


class CurrentLife:
    """None before the first life, between two of them and after the last."""

    def __init__(self) -> None:
        self._interpreter: Interpreter | None = None
        self._tenure: Tenure | None = None

    def begin(self, interpreter: Interpreter, tenure: Tenure) -> None:
        """A life has begun."""
        self._interpreter, self._tenure = interpreter, tenure

    def end(self) -> None:
        """It is over."""
        self._interpreter = self._tenure = None

    @property
    def is_led(self) -> bool:
        """Whether there is one."""
        return self._interpreter is not None

    def tell(self, event: Event) -> None:
        """Tell its machines; lost where there is none."""
        if self._interpreter is not None:
            self._interpreter.tell(event)

    def others(self, number: int) -> tuple[Peer, ...]:
        """The other agents of a round that runs."""
        return self._tenure.others(number) if self._tenure is not None else ()

    async def promise(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Another agent asks for this one's promise: a handler of the probe port.

        Raises:
            QuestionRefusedError: there is no life that could promise anything.
        """
        if self._tenure is None:
            raise QuestionRefusedError("this agent is not in the job now")
        return await self._tenure.answer(payload)
