"""Law 7: only the outermost task of a service catches everything, and says why beside it. So do exemptions."""

import ast
import re
from collections.abc import Iterator

from support.source import REPOSITORY, modules

BROAD = {"Exception", "BaseException"}
EXEMPTION = re.compile(
    r"#\s*(?:noqa(?P<codes>:\s*[A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*)?|type:\s*ignore(?:\[[\w,\s-]+\])?)"
)
NOQA = re.compile(r"#\s*noqa(?P<codes>:\s*[A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*)?")
WORDS = re.compile(r"[A-Za-z]{2,}")
FOLDERS = ("nvrx_async", "launcher", "telemetry", "tests", "examples", "benchmarks")


def reason(line: str) -> str:
    """What the comments of a line say, without the codes of linters."""
    _, _, comment = line.partition("#")
    return " ".join(WORDS.findall(EXEMPTION.sub("", f"#{comment}")))


def is_broad(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(node is None or getattr(node, "id", "") in BROAD for node in caught)


def cleans_up_only(handler: ast.ExceptHandler) -> bool:
    """Ends with a bare `raise`: nothing is caught, something is put in order on the way."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def test_a_broad_except_has_its_reason_beside_it():
    found = [
        module.at(node)
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler) and is_broad(node) and not cleans_up_only(node)
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


def unexplained(lines: list[str]) -> Iterator[int]:
    """Numbers of lines whose noqa lacks rule or reason. A line right above may give the reason for the same rule."""
    explained = None
    for number, line in enumerate(lines, 1):
        exemption = NOQA.search(line)
        codes = exemption["codes"] if exemption else None
        if exemption and not (codes and (reason(line[exemption.start() :]) or codes == explained)):
            yield number
        explained = codes


def test_a_noqa_names_its_rule_and_its_reason():
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}"
        for folder in FOLDERS
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        for number in unexplained(path.read_text(encoding="utf-8").splitlines())
    ]
    assert not found, f"noqa without rule or reason: {found}"


def test_the_law_of_noqa_itself():
    mark = "# no" + "qa"
    lines = [
        f"a = 1  {mark}",
        f"b = 1  {mark}: F401",
        f"c = 1  {mark}: F401 - shown to users",
        f"d = 1  {mark}: F401",
        f"e = 1  {mark}: E501",
    ]
    assert list(unexplained(lines)) == [1, 2, 5]
