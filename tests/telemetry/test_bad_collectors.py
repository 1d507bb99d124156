"""A collector that is dead, slow or refuses changes nothing for a job; neither does one that is there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import closing
from socket import AF_INET, SOCK_STREAM, socket

import pytest
from support.otlp_receiver import Receiver
from support.stage import Stage

pytestmark = pytest.mark.e2e
FAST_END = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
ON = {"OTEL_BSP_SCHEDULE_DELAY": "200"}
OPTIONS = ("--nproc-per-node", "2", "--max-restarts", "1", "--warm-workers", "off")
TROUBLE = "telemetry cannot be delivered"
END_S = 2.0
LOADED_S = 4.0
"""What a machine with other work may add."""


def free_port() -> int:
    with closing(socket(AF_INET, SOCK_STREAM)) as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@pytest.mark.parametrize("bad", ["dead", "slow", "refuses"])
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_bad_collector_changes_nothing(
    job: Stage, request: pytest.FixtureRequest, bad: str, protocol: str
) -> None:
    if bad == "dead":
        endpoint = f"http://127.0.0.1:{free_port()}"
    else:
        kind = "grpc_collector" if protocol == "grpc" else "collector"
        receiver: Receiver = request.getfixturevalue(kind)
        receiver.mode, endpoint = bad, receiver.endpoint
    agent = job.launch(
        *job.ranks("--fail-rank", "1", "--fail", "exit"),
        node="a",
        options=(*OPTIONS, "--otlp-endpoint", endpoint),
        environment={**ON, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol},
    )
    job.finish(job.up(1, 2))
    agent.says("finished after 1 restart")
    told_s = time.monotonic()
    assert agent.ends() == 0
    assert time.monotonic() - told_s < END_S + LOADED_S
    assert agent.text.count(TROUBLE) <= 1
    assert "opentelemetry" not in agent.text.lower()
    assert "Traceback" not in agent.text


def test_metrics_alone_do_not_flood_the_screen_either(job: Stage) -> None:
    agent = job.launch(
        node="a",
        options=("--otlp-endpoint", f"http://127.0.0.1:{free_port()}"),
        environment={
            **ON,
            **FAST_END,
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_METRIC_EXPORT_INTERVAL": "100",
        },
    )
    ranks = job.up(0, 1)
    agent.says(TROUBLE)
    job.finish(ranks)
    assert agent.ends() == 0
    assert agent.text.count(TROUBLE) == 1
    assert "Traceback" not in agent.text
    assert "Failed to export" not in agent.text.replace(TROUBLE, "").partition(": Failed")[0]


def test_a_collector_that_is_back_gets_what_was_kept(job: Stage, collector: Receiver) -> None:
    collector.mode = "refuses"
    agent = job.launch(
        node="a", options=("--otlp-endpoint", collector.endpoint), environment={**ON, **FAST_END}
    )
    ranks = job.up(0, 1)
    agent.says(TROUBLE)
    collector.mode = "answers"
    job.finish(ranks)
    assert agent.ends() == 0
    names = {span.name for span in collector.spans}
    assert {"nv.nvrx.ftl.python.imports", "nv.nvrx.ftl.round_start", "nv.nvrx.ftl.cycle"} <= names


def test_prometheus_scrapes_an_agent(job: Stage) -> None:
    port = free_port()
    agent = job.launch(node="a", options=("--metrics-port", str(port)))
    ranks = job.up(0, 1)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert 'nvrx_ranks{nvrx_rank_state="starting"} 1' in text.splitlines()
    assert "nvrx_etcd_request_duration_seconds_count" in text
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/elsewhere", timeout=30)
    job.finish(ranks)
    assert agent.ends() == 0


def test_a_port_that_is_taken_is_told_and_changes_nothing(job: Stage) -> None:
    with closing(socket(AF_INET, SOCK_STREAM)) as held:
        held.bind(("", 0))
        held.listen()
        agent = job.launch(
            *job.ranks("--finish-from", "0"),
            node="a",
            options=("--metrics-port", str(held.getsockname()[1])),
        )
        assert agent.ends() == 0
    assert "no metrics for Prometheus" in agent.text


def test_off_loads_no_sdk(job: Stage) -> None:
    program = (
        "import sys; from nvrx_launcher.launch_cli import main; code = main(sys.argv[1:]); "
        "print('LOADED', [name for name in sys.modules if name.startswith('opentelemetry')]); sys.exit(code)"
    )
    script = job.folder / "rank.py"
    script.write_text(
        "import os; print('SET', [n for n in os.environ if 'SPANS' in n or 'TRACEPARENT' in n])"
    )
    told = subprocess.run(
        [
            *(sys.executable, "-c", program, "--rdzv-endpoint", str(job.endpoint), "--rdzv-id", job.run_id),
            *("--log-dir", str(job.folder / "logs"), str(script)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={name: value for name, value in os.environ.items() if not name.startswith("OTEL_")},
    )
    assert told.returncode == 0, told.stderr
    assert "LOADED []" in told.stdout
    assert "SET []" in told.stdout + told.stderr


@pytest.mark.parametrize(
    ("port", "protocol", "hint"),
    [
        ("grpc_collector", "http/protobuf", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"),
        ("collector", "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"),
    ],
)
def test_the_port_of_the_other_protocol_is_told_as_that(
    job: Stage, request: pytest.FixtureRequest, port: str, protocol: str, hint: str
) -> None:
    endpoint = request.getfixturevalue(port).endpoint
    agent = job.launch(
        node="a",
        options=(*OPTIONS, "--otlp-endpoint", endpoint),
        # The exporter tells a reason only where its first pause, of about a second, ends before its time-out.
        environment={**ON, "OTEL_EXPORTER_OTLP_TIMEOUT": "4", "OTEL_EXPORTER_OTLP_PROTOCOL": protocol},
    )
    ranks = job.up(0, 2)
    agent.says(f"telemetry cannot be delivered.*{hint}")
    job.finish(ranks)
    assert agent.ends() == 0
