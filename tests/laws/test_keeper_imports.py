"""Law: the keeper imports nothing but the standard library, and little of that."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import nvrx_launcher

FOLDER = Path(nvrx_launcher.__file__).parent / "keeper"
MODULES = sorted(FOLDER.glob("*.py"))
# Each would cost more memory than all of the keeper's own code.
HEAVY = {"asyncio", "typing", "dataclasses", "inspect", "subprocess", "threading", "logging", "argparse"}


def imported(tree: ast.AST) -> list[tuple[str, int]]:
    """Names that a module imports, with the number of dots in front."""
    names: list[tuple[str, int]] = []
    for item in ast.walk(tree):
        if isinstance(item, ast.Import):
            names += [(alias.name.partition(".")[0], 0) for alias in item.names]
        elif isinstance(item, ast.ImportFrom):
            names.append(((item.module or "").partition(".")[0], item.level))
    return names


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_the_keeper_imports_only_the_standard_library_and_its_own_folder(module: Path) -> None:
    own = {path.stem for path in MODULES} | {""}
    for name, dots in imported(ast.parse(module.read_text())):
        assert name in sys.stdlib_module_names if dots == 0 else (dots == 1 and name in own), name


def test_the_law_sees_the_modules() -> None:
    assert len(MODULES) >= 5


def test_a_running_keeper_has_loaded_no_heavy_module() -> None:
    code = (
        f"import sys; sys.path.append({str(FOLDER.parent)!r}); import keeper.service;"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert loaded & HEAVY == set()
    assert loaded - sys.stdlib_module_names <= {"keeper", "__main__"}
