"""The contracts of `[tool.importlinter]` in pyproject.toml: who may import whom."""

import os
import subprocess
import sys

from support.source import REPOSITORY, ROOTS

LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_logo=True, no_cache=True))"


def test_all_import_contracts_are_kept():
    paths = os.pathsep.join(str(root.parent) for root in ROOTS)
    linted = subprocess.run(
        [sys.executable, "-c", LINT],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr
    assert " kept, 0 broken" in linted.stdout, linted.stdout
