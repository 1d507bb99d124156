"""Law 7: only the outermost task of a service catches everything, and says why beside it. So do exemptions."""

import ast
import re

from support.source import REPOSITORY, modules

BROAD = {"Exception", "BaseException"}
EXEMPTION = re.compile(
    r"#\s*(?:noqa(?P<codes>:\s*[A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*)?|type:\s*ignore(?:\[[\w,\s-]+\])?)"
)
WORDS = re.compile(r"[A-Za-z]{2,}")
FOLDERS = ("nvrx_async", "launcher", "telemetry", "tests", "examples", "benchmarks")


def reason(line: str) -> str:
    """What the comments of a line say, without the codes of linters."""
    _, _, comment = line.partition("#")
    return " ".join(WORDS.findall(EXEMPTION.sub("", f"#{comment}")))


def is_broad(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(node is None or getattr(node, "id", "") in BROAD for node in caught)


def test_a_broad_except_has_its_reason_beside_it():
    found = [
        module.at(node)
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler) and is_broad(node)
        if len(reason(module.lines[node.lineno - 1]).split()) < 3
    ]
    assert not found, f"catch what can happen, or say why everything: {found}"


def test_errors_are_never_swallowed():
    """`suppress(Exception)` is a bare except that passes."""
    found = [
        module.at(call)
        for module in modules()
        for name, call in module.calls()
        if name in {"contextlib.suppress", "suppress"}
        and any(getattr(argument, "id", "") in BROAD for argument in call.args)
    ]
    assert not found, found


def test_a_noqa_names_its_rule_and_its_reason():
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}"
        for folder in FOLDERS
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (exemption := re.search(r"#\s*noqa(?P<codes>:\s*[A-Z]+\d+)?", line))
        if not exemption["codes"] or not reason(line[exemption.start() :])
    ]
    assert not found, f"noqa without rule or reason: {found}"
