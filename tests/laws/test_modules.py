"""Small modules, one `errors.py` a package, and every package says what it offers."""

import ast
from statistics import median

import pytest
from support.source import ROOTS, Module, modules

LONGEST = 600
MEDIAN = 250
INTERPRETER = 200

CODE = [module for module in modules() if not module.is_package]
PACKAGES = [module for module in modules() if module.is_package]


def by_name(module: Module) -> str:
    return module.name


def test_no_module_is_long():
    long = {module.name: len(module.lines) for module in modules() if len(module.lines) > LONGEST}
    assert not long, f"each of these holds two things: {long}"


def test_modules_are_short():
    assert median(len(module.lines) for module in CODE) < MEDIAN


def test_the_interpreter_of_effects_only_interprets():
    long = {m.name: len(m.lines) for m in CODE if m.name == "nvrx_async.rounds.interpreter"}
    assert all(lines <= INTERPRETER for lines in long.values()), f"decisions belong to the machines: {long}"


def test_every_folder_with_modules_is_a_package():
    named = {module.path.parent for module in PACKAGES}
    assert {module.path.parent for module in CODE} <= named


def test_the_import_packages_are_typed():
    assert all((root / "py.typed").exists() for root in ROOTS)


@pytest.mark.parametrize("package", PACKAGES, ids=by_name)
def test_every_package_says_what_it_offers(package):
    assigned = [node for node in package.tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    targets = [target for node in assigned for target in getattr(node, "targets", None) or [node.target]]
    assert any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def test_every_module_says_what_it_is():
    assert not [module.name for module in modules() if not ast.get_docstring(module.tree)]


def test_exceptions_are_defined_in_errors_modules():
    found = [
        module.at(node)
        for module in modules()
        if module.path.name != "errors.py"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and any(is_exception(base) for base in node.bases)
        if not node.name.startswith("_")  # never leaves its module: a way out of nested calls, no error
    ]
    assert not found, f"exceptions belong into the package's errors.py: {found}"


def is_exception(base: ast.expr) -> bool:
    name = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
    return name.endswith(("Error", "Exception")) or name in {"SystemExit", "KeyboardInterrupt"}
