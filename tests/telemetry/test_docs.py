"""The page on traces names all there is, and the example's dashboard and picture work on what is really sent."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
import yaml
from support.source import REPOSITORY, ROOTS

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


ATTRIBUTES = {
    value
    for key, value in vars(semconv).items()
    if isinstance(value, str) and key.isupper() and not key.startswith(("SPAN_GROUP", "METRIC_"))
} - set(semconv.GROUP_OF_SPAN)


@pytest.mark.parametrize("name", sorted(ATTRIBUTES))
def test_the_page_names_every_attribute(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_the_page_names_nothing_that_does_not_exist() -> None:
    known = {value for value in vars(semconv).values() if isinstance(value, str)}
    named = set(re.findall(r"`((?:nv|nvrx)\.[a-z_.]*[a-z])`", PAGE))
    assert len(named) > len(ATTRIBUTES)
    assert named - known == set()
    table = PAGE.partition("## Spans\n")[2].partition("\n## ")[0]
    first = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    spans = {f"nv.nvrx.ftl.{name}" for cell in first for name in re.findall(r"`([a-z_.]+)`", cell)}
    assert spans == {name for name in semconv.GROUP_OF_SPAN if name.startswith("nv.nvrx.ftl.")}


NO_ROOM_YET = ("CKPT_", "SPAN_GROUP_", "ATTRIBUTION", "DL_ROLE", "PRESETS")
"""Constants for rooms that are not built, and those that only other constants use."""


def test_every_name_is_used_by_the_product() -> None:
    sources = [path for root in ROOTS for path in root.rglob("*.py") if path.name != "semconv.py"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    used = set(re.findall(r"\bsemconv\.([A-Z_]+)\b", text))
    names = {name for name in vars(semconv) if name.isupper()}
    assert {name for name in names - used if not name.startswith(NO_ROOM_YET)} == set()
    assert used <= names


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


PANELS = json.loads((EXAMPLE / "grafana" / "nvrx.json").read_text())["panels"]


def test_the_dashboard_asks_for_labels_that_exist() -> None:
    """Of each metric those that it is measured with; a legend has those that are left by its query."""
    known = {name.replace(".", "_") for key, name in vars(semconv).items() if key.startswith("ATTR_")}
    for target in (target for panel in PANELS for target in panel["targets"]):
        left = {name for names in re.findall(r"by \(([^)]*)\)", target["expr"]) for name in names.split(", ")}
        assert left <= {*known, "le"}, target
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) == left - {"le"}, target
        matched = {
            name
            for names in re.findall(r"\w\{([^}]*)\}", target["expr"])
            for name in re.findall(r"(\w+)[=!]", names)
        }
        assert matched <= known, target


def test_prometheus_understands_what_the_dashboard_asks(tmp_path) -> None:
    linter = shutil.which("promtool")
    if linter is None:
        pytest.skip("needs promtool, of Debian's package prometheus")
    asked = [target["expr"] for panel in PANELS for target in panel["targets"]]
    rules = [{"record": f"asked:{place}", "expr": text} for place, text in enumerate(asked)]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    for what, file in (("rules", path), ("config", EXAMPLE / "prometheus.yaml")):
        done = subprocess.run(
            [linter, "check", what, str(file)], capture_output=True, text=True, check=False, timeout=30
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_lies_on_grafanas_grid_without_overlaps() -> None:
    taken: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        at = panel["gridPos"]
        places = {
            (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
        }
        assert not places & taken
        assert max(x for x, _ in places) < 24
        taken |= places


def test_what_the_example_mounts_and_names_is_there() -> None:
    services = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())["services"]
    mounts = dict(
        mount.removesuffix(":ro").split(":") for one in services.values() for mount in one.get("volumes", ())
    )
    assert all((EXAMPLE / source).is_file() for source in mounts)
    inside = set(mounts.values())
    (provider,) = yaml.safe_load((EXAMPLE / "grafana" / "dashboards.yaml").read_text())["providers"]
    assert any(path.startswith(provider["options"]["path"]) for path in inside)
    assert services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in inside
    sources = yaml.safe_load((EXAMPLE / "grafana" / "datasource.yaml").read_text())["datasources"]
    assert {panel["datasource"]["uid"] for panel in PANELS} <= {source["uid"] for source in sources}
    for source in sources:
        host, port = source["url"].removeprefix("http://").split(":")
        assert port in {ports.split(":")[1] for ports in services[host]["ports"]}
    assert all(re.search(r":v?[0-9]+\.[0-9]+\.[0-9]+$", one["image"]) for one in services.values())
    published = {ports.split(":")[0] for one in services.values() for ports in one["ports"]}
    readme = (EXAMPLE / "README.md").read_text()
    assert set(re.findall(r"localhost:(\d+)", readme)) <= published
    assert re.search(r"--metrics-port (\d+)", readme)[1] in (EXAMPLE / "prometheus.yaml").read_text()


def test_the_dashboard_shows_rare_things_from_the_first_one_on() -> None:
    """A series that begins with its first value has no rate: one restart would be none."""
    panels = json.loads((EXAMPLE / "grafana" / "nvrx.json").read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    rare = [text for text in asked if re.search(r"nvrx_(restart|fault_\w+)_duration|nvrx_restarts", text)]
    assert len(rare) >= 4
    assert not [text for text in rare if re.search(r"\b(rate|increase|irate)\(", text)]


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


def test_a_round_that_was_not_recorded_is_told_in_a_line(tmp_path) -> None:
    recorded = tmp_path / "spans.jsonl"
    root = {"name": semconv.ROUND_START, "trace": "t", "attributes": {semconv.RDZV_ROUND: 0}}
    recorded.write_text(json.dumps(root) + "\n")
    command = [
        sys.executable,
        str(EXAMPLE / "picture.py"),
        "draw",
        str(recorded),
        str(tmp_path / "trace.svg"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "no trace of round 1; recorded are rounds [0] (--round)\n",
    )
