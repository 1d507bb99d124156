"""Variables of OpenTelemetry that cannot be used as they are: said once, without secrets, and the rest goes on."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from opentelemetry.environment_variables import __dict__ as api_variables
from opentelemetry.sdk.environment_variables import __dict__ as sdk_variables
from opentelemetry.util.re import parse_env_headers
from support.certificates import Authority
from support.otlp_receiver import Receiver, grpc_receiver, http_receiver
from support.source import REPOSITORY

from nvrx_telemetry.limits import Limits, limits
from nvrx_telemetry.model import FinishedSpan
from nvrx_telemetry.sender import SdkSender
from nvrx_telemetry.setup import Protocol, span_exporter, telemetry_config
from nvrx_telemetry.variables import Variables

OTLP = "OTEL_EXPORTER_OTLP_"
ON = f"{OTLP}ENDPOINT"
AT = {ON: "http://c:4318"}
TABLE = (
    (REPOSITORY / "docs" / "traces.md")
    .read_text(encoding="utf-8")
    .partition("## OpenTelemetry's variables\n")[2]
    .partition("\n## ")[0]
)


def told(environment: dict[str, str], endpoint: str | None = None, port: int | None = None) -> list[str]:
    return telemetry_config(environment, endpoint, port)[1]


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"OTEL_TRACES_EXPORTER": "console"}, ["no traces are sent", "nvrx trace JOB"]),
        ({"OTEL_TRACES_EXPORTER": "Logging"}, ["no traces are sent", "logging is not known here"]),
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, ["no metrics are sent", "--metrics-port"]),
        ({**AT, "OTEL_TRACES_EXPORTER": "otlp,zipkin"}, ["only otlp is used", "zipkin is not known"]),
        ({**AT, f"{OTLP}PROTOCOL": "http/json"}, ["http/json is not known here", "http/protobuf is used"]),
        ({ON: "c:4318"}, ["no traces are sent", "OTEL_EXPORTER_OTLP_ENDPOINT=c:4318 is no URL"]),
        ({**AT, f"{OTLP}COMPRESSION": "zip"}, ["COMPRESSION=zip is not known", "nothing is compressed"]),
        ({**AT, f"{OTLP}TIMEOUT": "soon"}, ["TIMEOUT=soon is no positive number, 10 is used"]),
        ({**AT, f"{OTLP}TIMEOUT": "10000"}, ["TIMEOUT=10000 means 10000 seconds"]),
        ({**AT, f"{OTLP}CERTIFICATE": "/no/such.pem"}, ["CERTIFICATE=/no/such.pem: no such file"]),
        ({**AT, f"{OTLP}CLIENT_KEY": __file__}, ["CLIENT_KEY is not used without"]),
        ({**AT, f"{OTLP}HEADERS": "a=b,c"}, ["entry 2 of 2 is not sent", "no ="]),
        ({**AT, "OTEL_TRACES_SAMPLER": "jaeger_remote"}, ["jaeger_remote is not known", "all traces"]),
        (
            {**AT, "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "10%"},
            ["OTEL_TRACES_SAMPLER_ARG=10% is no number from 0 to 1"],
        ),
        ({**AT, "OTEL_BSP_SCHEDULE_DELAY": "-1"}, ["=-1 is no positive number, 5000 is used"]),
        ({**AT, "OTEL_METRIC_EXPORT_INTERVAL": "1m"}, ["=1m is no positive number, 60000 is used"]),
        ({**AT, "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "few"}, ["=few is no whole number"]),
        ({**AT, "OTEL_SDK_DISABLED": "1"}, ["counts as false"]),
        ({**AT, "OTEL_RESOURCE_ATTRIBUTES": "team=ml,lab"}, ["entry 2 of 2 is left out"]),
        ({"OTEL_CONFIG_FILE": "/etc/otel.yaml"}, ["OTEL_CONFIG_FILE is not read"]),
        ({**AT, f"{OTLP}METRICS_TEMPORALITY_PREFERENCE": "sum"}, ["=sum is not known here"]),
    ],
)
def test_what_cannot_be_used_is_told_once(environment: dict[str, str], words: list[str]) -> None:
    lines = told(environment)
    assert all(len({*lines}) == len(lines) for _ in lines)
    (line,) = {re.sub(r"no (traces|metrics) are", "no … are", line) for line in lines}
    assert all(re.sub(r"no (traces|metrics) are", "no … are", word) in line for word in words), line


@pytest.mark.parametrize(
    "environment",
    [
        {"OTEL_TRACES_EXPORTER": "none"},
        {**AT, "OTEL_TRACES_EXPORTER": "OTLP", "OTEL_METRICS_EXPORTER": " otlp "},
        {**AT, f"{OTLP}HEADERS": " Authorization=Basic dXNlcjpwdw==, x-key = a%2Cb ,"},
        {**AT, f"{OTLP}COMPRESSION": "GZIP", f"{OTLP}TIMEOUT": "0", f"{OTLP}CERTIFICATE": __file__},
        {**AT, "OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"},
        {**AT, "OTEL_RESOURCE_ATTRIBUTES": "team=ml,,lab=a=b", "OTEL_SDK_DISABLED": "False"},
        {**AT, "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": "0", "OTEL_PROPAGATORS": "b3"},
        dict.fromkeys((ON, "OTEL_TRACES_EXPORTER", "OTEL_BSP_SCHEDULE_DELAY", f"{OTLP}TIMEOUT"), ""),
    ],
)
def test_nothing_is_told_of_what_is_usual(environment: dict[str, str]) -> None:
    assert told(environment) == []


@pytest.mark.parametrize(
    "text",
    [
        "authorization: Bearer hunter2=",
        "authorization=Bearer abc,hunter2",
        'x-key="hunter2"',
        "x-key=hunter2;secure",
        "hunter2",
        "x-key=hünter2",
    ],
)
def test_headers_that_are_not_sent_are_told_without_their_content(text: str) -> None:
    lines = told({**AT, f"{OTLP}HEADERS": text})
    assert len(lines) == 1
    assert "is not sent" in lines[0]
    assert "unter2" not in lines[0]
    assert "authorization" not in lines[0]


@pytest.mark.parametrize("character", [chr(code) for code in range(0x20, 0x7F)])
def test_what_a_header_may_hold_is_as_the_sdk_reads_it(character: str) -> None:
    """Also what is sent and not told."""
    for text in (f"a{character}b=c", f"a=b{character}c"):
        sent = parse_env_headers(text, liberal=True)
        there = len([part for part in text.split(",") if part.strip()])
        assert len(told({**AT, f"{OTLP}HEADERS": text})) == there - len(sent), text


def test_a_variable_of_one_signal_goes_before_the_one_of_all() -> None:
    good = {**AT, f"{OTLP}HEADERS": "broken", f"{OTLP}TRACES_HEADERS": "a=b", "OTEL_METRICS_EXPORTER": "none"}
    assert told(good) == []
    (line,) = told({**AT, f"{OTLP}HEADERS": "a=b", f"{OTLP}METRICS_HEADERS": "broken"})
    assert line.startswith(f"{OTLP}METRICS_HEADERS: ")


def test_options_that_a_variable_turns_off_are_told_of() -> None:
    assert told({"OTEL_SDK_DISABLED": "true"}) == []
    assert "whatever options say" in told({"OTEL_SDK_DISABLED": "true"}, "http://c:4318")[0]
    assert "whatever options say" in told({"OTEL_SDK_DISABLED": "true"}, None, 9464)[0]


def test_prometheus_that_has_its_port_is_not_told_of() -> None:
    config, notices = telemetry_config({"OTEL_METRICS_EXPORTER": "prometheus"}, None, 9464)
    assert config is not None
    assert (config.metrics, config.metrics_port, notices) == (None, 9464, [])


@pytest.mark.parametrize("name", ["otlp_proto_grpc", "otlp_proto_http"])
def test_exporters_of_the_python_sdk_name_their_protocol(name: str) -> None:
    config, notices = telemetry_config({**AT, "OTEL_TRACES_EXPORTER": name}, None, None)
    assert config is not None
    assert (config.traces, notices) == (Protocol.GRPC if name.endswith("grpc") else Protocol.HTTP, [])


def test_an_endpoint_with_its_path_is_told_of() -> None:
    assert "/v1/traces" in told({ON: "http://c:4318/v1/traces", "OTEL_METRICS_EXPORTER": "none"})[0]
    assert "/v1/metrics" in told({}, "http://c:4318/v1/metrics/")[0]
    assert told({f"{OTLP}TRACES_ENDPOINT": "http://c:4318/v1/traces"}) == []


def test_no_password_of_an_endpoint_is_told() -> None:
    for line in told({ON: "junk://me:hunter2@c:4318"}):
        assert "hunter2" not in line


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({ON: "me:hunter2@c:4318"}, "=c:4318 is no URL"),
        ({ON: "junk://c/hunter2/x"}, "=junk://c/… is no URL"),
        ({ON: "me:hunter2@c:4317", f"{OTLP}PROTOCOL": "grpc"}, "has a user, which gRPC"),
        ({ON: "http://me:hunter2@c:4317", f"{OTLP}PROTOCOL": "grpc"}, "has a user, which gRPC"),
        ({**AT, f"{OTLP}CLIENT_KEY": "-----BEGIN PRIVATE KEY-----\nhunter2\n"}, "holds a PEM itself"),
        ({**AT, "OTEL_TRACES_SAMPLER": "\x1b]0;x\x07y\udcff\n"}, "SAMPLER=\ufffd]0;x\ufffdy\ufffd is not"),
    ],
)
def test_no_secret_and_no_sign_that_steers_a_terminal_is_repeated(
    environment: dict[str, str], says: str
) -> None:
    lines = told(environment)
    assert any(says in line for line in lines), lines
    assert all("hunter2" not in line and line.isprintable() for line in lines)


def test_a_number_of_any_length_is_one() -> None:
    for text in ("9" * 5000, "0" * 5000 + "9" * 11):
        assert limits(Variables({"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": text})).count == 2**31 - 1
    assert limits(Variables({"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "0" * 5000 + "7"})).count == 7


@pytest.mark.parametrize("text", ["none", "gzip", "deflate", "zip", ""])
def test_compression_of_any_name_is_no_reason_not_to_send_over_grpc(
    monkeypatch: pytest.MonkeyPatch, grpc_collector: Receiver, text: str
) -> None:
    """The exporter for gRPC raises at `none`, where it is left to read it."""
    monkeypatch.setenv(f"{OTLP}COMPRESSION", text)
    monkeypatch.setenv(f"{OTLP}TIMEOUT", text)
    config, _ = telemetry_config({f"{OTLP}PROTOCOL": "grpc"}, grpc_collector.endpoint, None)
    assert config is not None
    sender = SdkSender(span_exporter(config), {"service.name": "test"}, "1")
    assert sender.send([FinishedSpan("a", 1, 2, None, 1, 2, {})])
    sender.abort()


def test_what_grpcs_exporter_does_not_start_with_is_told() -> None:
    name = f"{OTLP}TRACES_TIMEOUT"
    config, notices = telemetry_config({**AT, f"{OTLP}PROTOCOL": "grpc", name: "soon"}, None, None)
    assert config is not None
    assert (config.traces, config.metrics) == (None, Protocol.GRPC)
    assert f"no traces are sent: {name}=soon" in notices[-1]


@pytest.mark.parametrize(("timeout", "works"), [("0", True), ("1e9", True), ("-3", True), ("0.001", False)])
def test_a_timeout_of_any_size_is_one_that_sockets_take(
    monkeypatch: pytest.MonkeyPatch,
    collector: Receiver,
    timeout: str,
    works: bool,  # noqa: FBT001 - of parametrize
) -> None:
    monkeypatch.setenv(f"{OTLP}TIMEOUT", timeout)
    config, _ = telemetry_config({}, collector.endpoint, None)
    assert config is not None
    if not works:
        collector.mode = "refuses"
    sender = SdkSender(span_exporter(config), {"service.name": "test"}, "1")
    assert sender.send([FinishedSpan("a", 1, 2, None, 1, 2, {})]) is works
    sender.abort()


@pytest.mark.parametrize("form", ["", "TRACES_"])
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_both_sides_show_certificates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, protocol: str, form: str
) -> None:
    authority = Authority(tmp_path, "authority")
    server, client = authority.sign("server", "127.0.0.1"), authority.sign("client")
    if protocol == "grpc":
        pair = (server.key.read_bytes(), server.cert.read_bytes())
        receiving = grpc_receiver(
            grpc.ssl_server_credentials([pair], authority.ca_file.read_bytes(), require_client_auth=True)
        )
    else:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.ca_file))
        context.load_cert_chain(server.cert, server.key)
        context.verify_mode = ssl.CERT_REQUIRED
        receiving = http_receiver(context)
    files = {"CERTIFICATE": authority.ca_file, "CLIENT_KEY": client.key, "CLIENT_CERTIFICATE": client.cert}
    variables = {f"{OTLP}{form}{kind}": str(path) for kind, path in files.items()}
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(Authority(tmp_path, "another").ca_file))
    variables |= {f"{OTLP}PROTOCOL": protocol, f"{OTLP}HEADERS": "x-key=a%20b"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with receiving as receiver:
        config, notices = telemetry_config(variables, receiver.endpoint, None)
        assert (config is not None, notices) == (True, [])
        sender = SdkSender(span_exporter(config), {"service.name": "test"}, "1")
        assert sender.send([FinishedSpan("a", 1, 2, None, 1, 2, {})])
        sender.abort()
        assert {name.lower(): value for name, value in receiver.headers[-1].items()}["x-key"] == "a b"


def test_limits_of_attributes_are_kept(monkeypatch: pytest.MonkeyPatch, collector: Receiver) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "4")
    monkeypatch.setenv("OTEL_ATTRIBUTE_COUNT_LIMIT", "2")
    config, _ = telemetry_config({}, collector.endpoint, None)
    assert config is not None
    sender = SdkSender(span_exporter(config), {"service.name": "test"}, "1")
    assert sender.send([FinishedSpan("a", 1, 2, None, 1, 2, {"x": "longer", "n": 12345, "z": "last"})])
    sender.abort()
    assert collector.spans[-1].attributes == {"x": "long", "n": 12345}


def test_limits_for_spans_go_before_those_for_all() -> None:
    both = {"OTEL_ATTRIBUTE_COUNT_LIMIT": "9", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "0"}
    assert limits(Variables(both)) == Limits(count=0)
    assert limits(Variables({})) == Limits(count=128, length=None)
    assert limits(Variables({"OTEL_ATTRIBUTE_COUNT_LIMIT": "-5"})) == Limits()


KNOWN = sorted(
    {
        value
        for source in (api_variables, sdk_variables)
        for key, value in source.items()
        if "OTEL_" in key and isinstance(value, str) and value.startswith("OTEL_")
    }
)
KINDS = re.compile(
    "_(TRACES|METRICS|LOGS)_(?=ENDPOINT|HEADERS|PROTOCOL|TIMEOUT|COMPRESSION|CERT|CLIENT|INSECURE)"
)
"""Forms for one signal, of which the page says in one sentence that they go before the form for all."""


@pytest.mark.parametrize("name", KNOWN)
def test_the_page_says_what_becomes_of_each_variable(name: str) -> None:
    if name.startswith("OTEL_PYTHON_"):
        assert "`OTEL_PYTHON_…`" in TABLE
        return
    patterns = [re.escape(one).replace("…", "[A-Z_]*") for one in re.findall(r"`(OTEL_[A-Z_…]+)`", TABLE)]
    assert any(re.fullmatch(pattern, KINDS.sub("_", name)) for pattern in patterns)


@pytest.mark.e2e
def test_the_agent_tells_and_starts(tmp_path: Path) -> None:
    script = tmp_path / "done.py"
    script.write_text("")
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": ":".join(sys.path),
        "OTEL_TRACES_EXPORTER": "console",
        f"{OTLP}HEADERS": "authorization: Bearer hunter2",
    }
    command = [sys.executable, "-m", "nvrx_launcher", "--standalone", "--nproc-per-node", "1", str(script)]
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path
    )
    assert ended.stderr.count("OTEL_TRACES_EXPORTER=console: no traces are sent") == 1
    assert "hunter2" not in ended.stderr + ended.stdout
