"""The page on traces names all there is, and the example's dashboard and picture work on what is really sent."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from support.source import REPOSITORY

from nvrx_launcher.options import OPTIONS
from nvrx_telemetry import semconv
from nvrx_telemetry.metrics import COUNTERS, GAUGES, HISTOGRAMS
from nvrx_telemetry.prometheus import prometheus_name

PAGE = (REPOSITORY / "docs" / "traces.md").read_text(encoding="utf-8")
EXAMPLE = REPOSITORY / "examples" / "observability"
METRICS = {
    **{name: (unit, True) for name, (unit, _) in COUNTERS.items()},
    **{name: (unit, False) for name, (unit, _) in GAUGES.items()},
    **dict.fromkeys(HISTOGRAMS, ("s", False)),
}


@pytest.mark.parametrize("name", [n for n in semconv.GROUP_OF_SPAN if n.startswith("nv.nvrx.ftl.")])
def test_the_page_names_every_span(name: str) -> None:
    assert f"`{name.removeprefix('nv.nvrx.ftl.')}`" in PAGE


@pytest.mark.parametrize("name", METRICS)
def test_the_page_names_every_metric(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_the_page_names_options_that_exist() -> None:
    known = {spelling for option in OPTIONS for spelling in option.spellings}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) <= known


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    panels = json.loads((EXAMPLE / "grafana" / "nvrx.json").read_text())["panels"]
    asked = {
        name.removesuffix("_bucket")
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"\bnvrx_\w+", target["expr"])
    }
    labels = {name.replace(".", "_") for key, name in vars(semconv).items() if key.startswith("ATTR_")}
    known = {prometheus_name(name, unit, counter=counter) for name, (unit, counter) in METRICS.items()}
    assert asked - labels <= known
    assert known <= asked


def test_the_picture_is_drawn(tmp_path) -> None:
    spans = [
        {"name": semconv.ROUND_START, "span": "a", "parent": "", "start_ns": 10**9, "end_ns": 10**9},
        {"name": semconv.RENDEZVOUS, "span": "b", "parent": "a", "start_ns": 10**9, "end_ns": 2 * 10**9},
    ]
    about = {
        "trace": "t",
        "attributes": {semconv.RDZV_ROUND: 1},
        "resource": {semconv.NODE: "n"},
        "error": "",
    }
    recorded, picture = tmp_path / "spans.jsonl", tmp_path / "trace.svg"
    recorded.write_text("".join(json.dumps({**about, **span}) + "\n" for span in spans))
    command = [sys.executable, str(EXAMPLE / "picture.py"), "draw", str(recorded), str(picture)]
    subprocess.run(command, check=True)
    texts = [node.text for node in ET.parse(picture).iter() if node.text]
    assert "ftl.rendezvous" in texts
    assert "1,000 ms" in texts
