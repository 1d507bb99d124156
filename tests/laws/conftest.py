"""Laws keep the product's parsed source."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _parsed_source_is_kept_for_good() -> Iterator[None]:
    """Millions of nodes, which no later collection of garbage in this process is to look through."""
    yield
    gc.freeze()
