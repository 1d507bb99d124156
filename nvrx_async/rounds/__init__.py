"""Rounds: who trains with which ranks, when a round is over and what comes next.

The machines and their deciders are pure; `Interpreter` does what they decide, by the drivers it is given. What
machines are told and say stands in `events` and `effects`. Names are imported on first use (PEP 562): who speaks
of an effect need not load the machines.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvrx_async.rounds.coordinator import Coordinator
    from nvrx_async.rounds.drivers import Ranks, Store
    from nvrx_async.rounds.fencing import good_until
    from nvrx_async.rounds.identity import Identity
    from nvrx_async.rounds.interpreter import Interpreter
    from nvrx_async.rounds.member import Member
    from nvrx_async.rounds.mirror import Mirror

__all__ = ["Coordinator", "Identity", "Interpreter", "Member", "Mirror", "Ranks", "Store", "good_until"]

_HOMES = {
    "Coordinator": "coordinator",
    "Identity": "identity",
    "Interpreter": "interpreter",
    "Member": "member",
    "Mirror": "mirror",
    "Ranks": "drivers",
    "Store": "drivers",
    "good_until": "fencing",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
