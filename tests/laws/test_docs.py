"""Docs are true where a machine can tell: links lead somewhere, every key and every word of a record is explained."""

import re

import pytest
from support.source import REPOSITORY

from nvrx_async.job.keys import AttemptKeys
from nvrx_async.job.records import FaultKind, Level, Phase

PAGES = sorted(
    [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *(REPOSITORY / "examples").glob("*.md")]
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+\s+(.*)$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def anchors(page) -> set[str]:
    """Anchors of a page's headings as GitHub makes them."""
    headings = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page):
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_every_page_is_linked_from_the_readme_or_another_page():
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in LINK.findall(page.read_text(encoding="utf-8"))
    }
    lonely = [
        page.name for page in PAGES if page not in linked and page.name not in {"README.md", "CHANGELOG.md"}
    ]
    assert not lonely


def test_the_design_explains_every_key():
    keys = AttemptKeys("run", 1)
    spelled = [
        keys.job,
        keys.outcome,
        keys.round,
        keys.node("<node_id>"),
        keys.elections.key,
        keys.join("<n>", "<node_id>"),
        keys.world("<n>", "<token>", "<shard>"),
        keys.assignment("<n>", "<token>", "<node_id>"),
        keys.interrupt("<n>"),
        keys.fault("<n>", "<node_id>"),
        keys.done("<n>", "<node_id>"),
        keys.end("<n>"),
    ]
    design = (REPOSITORY / "docs" / "design.md").read_text(encoding="utf-8")
    missing = [key for key in spelled if f"`{key.removeprefix(keys.base)}" not in design]
    assert not missing


@pytest.mark.parametrize("word", [*Phase, *Level, *FaultKind], ids=lambda word: word.value)
def test_the_design_explains_every_word(word):
    assert f"`{word.value}`" in (REPOSITORY / "docs" / "design.md").read_text(encoding="utf-8")
