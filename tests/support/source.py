"""The product's source as laws read it: modules are discovered, so that a law holds for rooms to come."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ROOTS = (
    REPOSITORY / "nvrx_async",
    REPOSITORY / "launcher" / "nvrx_launcher",
    REPOSITORY / "telemetry" / "nvrx_telemetry",
)


@dataclass(frozen=True)
class Module:
    """One file of the product. `name` is dotted; a package bears the name of its folder."""

    name: str
    path: Path

    @cached_property
    def lines(self) -> list[str]:
        return self.path.read_text(encoding="utf-8").splitlines()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"), filename=str(self.path))

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def package(self) -> str:
        return self.name if self.is_package else self.name.rpartition(".")[0]

    @property
    def room(self) -> str:
        """First two parts of the name: `nvrx_async.rounds` for all that lies in it."""
        return ".".join(self.name.split(".")[:2])

    def at(self, node: ast.AST) -> str:
        """Where a finding is, as editors open it."""
        return f"{self.path.relative_to(REPOSITORY)}:{getattr(node, 'lineno', 1)}"

    def imports(self) -> Iterator[tuple[str, ast.AST]]:
        """Absolute names of all that is imported, in functions too, but not for type checkers only."""
        return iter(self._imports)

    @cached_property
    def _imports(self) -> tuple[tuple[str, ast.AST], ...]:
        return tuple(self._found_imports())

    def _found_imports(self) -> Iterator[tuple[str, ast.AST]]:
        skipped = {
            node for guard in ast.walk(self.tree) if _for_types_only(guard) for node in ast.walk(guard)
        }
        for node in ast.walk(self.tree):
            if node in skipped:
                continue
            if isinstance(node, ast.Import):
                yield from ((alias.name, node) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                yield base, node
                yield from ((f"{base}.{alias.name}", node) for alias in node.names)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.package.split(".")
        parts = parts[: len(parts) - node.level + 1]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """All calls by the dotted name of what is called, aliases of imports resolved."""
        names = dict(self._names())
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and (called := _dotted(node.func)):
                head, dot, rest = called.partition(".")
                yield names.get(head, head) + dot + rest, node

    def _names(self) -> Iterator[tuple[str, str]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.asname, alias.name) for alias in node.names if alias.asname)
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(node)
                yield from ((alias.asname or alias.name, f"{base}.{alias.name}") for alias in node.names)


def _for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and (_dotted(node.test) or "").endswith("TYPE_CHECKING")


def _dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := _dotted(node.value)):
        return f"{owner}.{node.attr}"
    return None


@lru_cache(maxsize=1)
def modules() -> tuple[Module, ...]:
    """All modules of the three import packages."""
    return tuple(
        Module(_name(root, path), path)
        for root in ROOTS
        for path in sorted(root.rglob("*.py"))
        if "__pycache__" not in path.parts
    )


def _name(root: Path, path: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def reached_from(*entries: str) -> dict[str, list[str]]:
    """Every module that importing `entries` can load, with the chain of imports that leads to it.

    Packages around a module are loaded with it; modules that are not the product's end a chain.
    """
    known = {module.name: module for module in modules()}
    chains = {entry: [entry] for entry in entries}
    waiting = list(entries)
    while waiting:
        name = waiting.pop()
        module = known.get(name)
        imported = [found for found, _ in module.imports()] if module else []
        for found in [*_around(name), *(part for item in imported for part in (*_around(item), item))]:
            is_ours = found.split(".")[0] in {root.name for root in ROOTS}
            if found and found not in chains and (found in known or not is_ours):
                chains[found] = [*chains[name], found]
                waiting.append(found)
    return chains


def _around(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]
