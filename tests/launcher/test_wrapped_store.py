"""A store around another one passes every call on."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from nvrx_async.rounds.drivers import Store
from nvrx_launcher.wrapped_store import WrappedStore

CALLS: dict[str, tuple[Any, ...]] = {
    "follow": (frozenset(),),
    "changes": (),
    "relist": (),
    "commit": ("a transaction",),
    "revoke": (7,),
    "lead": ("elections", "key", 3),
    "deposed": ("key", 3),
}


@pytest.mark.parametrize("name", CALLS)
async def test_every_call_is_passed_on_with_its_answer(name: str) -> None:
    plain = name in {"follow", "changes"}
    inner = MagicMock(**{name: (MagicMock if plain else AsyncMock)(return_value="answer")})
    said = getattr(WrappedStore(inner), name)(*CALLS[name])
    assert (said if plain else await said) == (None if name in {"follow", "revoke", "deposed"} else "answer")
    getattr(inner, name).assert_called_once_with(*CALLS[name])


def test_there_are_no_others() -> None:
    assert {name for name in vars(Store) if not name.startswith("_")} == set(CALLS)
