"""Tests of different rooms may bear the same name, so what several of them use lies in a kit of a name of its own."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_no_test_imports_from_a_test():
    for path in TESTS.rglob("*.py"):
        for one in ast.walk(ast.parse(path.read_text())):
            if isinstance(one, ast.ImportFrom):
                assert not (one.module or "").startswith("test_"), f"{path.name}:{one.lineno}"


def test_every_kit_has_a_name_of_its_own():
    rooms = [room for room in TESTS.iterdir() if room.name != "support"]  # a package, named in each import
    names = Counter(path.name for room in rooms for path in room.glob("*.py") if path.name[:5] != "test_")
    assert {name for name, count in names.items() if count > 1} <= {"conftest.py", "__init__.py"}
