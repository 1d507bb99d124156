"""Takes a job's spans without Jaeger, and draws a trace of them.

    python picture.py record 4318 spans.jsonl      # a collector: OTLP over HTTP into a file, until Ctrl-C
    python picture.py draw spans.jsonl trace.svg --round 1

Needs `opentelemetry-proto`, which comes with nvrx-async.
"""

from __future__ import annotations

import argparse
import json
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

ROOT, PREFIX = "nv.nvrx.ftl.round_start", "nv.nvrx."
ROUND, NODE = "nv.nvrx.ftl.rdzv.round", "nv.nvrx.ftl.node"
COLOURS = ("#2f7ed8", "#e07b39", "#4a9a5b", "#9b59b6")
ROW, NAMES, WIDTH = 19, 300, 1120


def main() -> None:
    """Record or draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(required=True, dest="verb")
    verb = verbs.add_parser("record")
    verb.add_argument("port", type=int)
    verb.add_argument("file", type=Path)
    verb = verbs.add_parser("draw")
    verb.add_argument("file", type=Path)
    verb.add_argument("svg", type=Path)
    verb.add_argument("--round", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.verb == "record":
        record(arguments.port, arguments.file)
    else:
        spans = [json.loads(line) for line in arguments.file.read_text().splitlines()]
        arguments.svg.write_text(drawn(spans, arguments.round))


def record(port: int, file: Path) -> None:
    """Collect spans into a file until Ctrl-C."""
    with file.open("a", buffering=1) as lines:

        class Collector(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/traces":
                    lines.writelines(json.dumps(span) + "\n" for span in spans_in(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing is shown."""

        server = ThreadingHTTPServer(("127.0.0.1", port), Collector)
        print(f"collecting at http://127.0.0.1:{server.server_port}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            server.server_close()


def spans_in(body: bytes) -> list[dict[str, Any]]:
    """The spans of one request."""
    return [
        {
            "name": span.name,
            "trace": span.trace_id.hex(),
            "span": span.span_id.hex(),
            "parent": span.parent_span_id.hex(),
            "start_ns": span.start_time_unix_nano,
            "end_ns": span.end_time_unix_nano,
            "attributes": values(span.attributes),
            "resource": values(group.resource.attributes),
            "error": span.status.message,
        }
        for group in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def values(pairs: Any) -> dict[str, Any]:
    """Attributes as a dict."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def drawn(spans: list[dict[str, Any]], number: int) -> str:
    """The trace of a round, as a picture."""
    traces = {span["attributes"][ROUND]: span["trace"] for span in spans if span["name"] == ROOT}
    if number not in traces:
        raise SystemExit(f"no trace of round {number}; recorded are rounds {sorted(traces)} (--round)")
    trace = traces[number]
    held = [span for span in spans if span["trace"] == trace]
    rows = in_order(held)
    start, end = min(span["start_ns"] for span in held), max(last_shown(span) for span in held)
    scale = (WIDTH - NAMES - 90) / (end - start)
    nodes = sorted({str(span["resource"].get(NODE, "")) for span in held})
    size = f'width="{WIDTH}" height="{ROW * (len(rows) + 3)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="ui-monospace,monospace" font-size="11">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="8" y="14" font-weight="bold">trace {trace}</text>',
    ]
    for i, node in enumerate(nodes):
        colour = COLOURS[i % len(COLOURS)]
        parts.append(f'<text x="{NAMES + 90 + 90 * i}" y="14" fill="{colour}">■ {escape(node)}</text>')
    for line, (span, depth) in enumerate(rows):
        y = ROW * (line + 1) + 6
        colour = COLOURS[nodes.index(str(span["resource"].get(NODE, ""))) % len(COLOURS)]
        x = NAMES + (span["start_ns"] - start) * scale
        width = max((min(span["end_ns"], end) - span["start_ns"]) * scale, 2)
        name = span["name"].removeprefix(PREFIX)
        took = (span["end_ns"] - span["start_ns"]) / 1e6
        rank = span["resource"].get("nv.dl.rank")
        label = f"{name} (rank {rank})" if rank is not None else name
        told = f"{took:,.0f} ms" if took >= 1 else f"{took:.1f} ms" if took else "·"
        if line % 2:
            parts.append(f'<rect x="0" y="{y}" width="{WIDTH}" height="{ROW}" fill="#f5f6f8"/>')
        parts.append(f'<text x="{8 + 10 * depth}" y="{y + 13}">{escape(label)}</text>')
        parts.append(
            f'<rect x="{x:.1f}" y="{y + 4}" width="{width:.1f}" height="{ROW - 8}" rx="2" fill="{colour}"/>'
            f'<text x="{x + width + 4:.1f}" y="{y + 13}" fill="#555">{told}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def last_shown(span: dict[str, Any]) -> int:
    """Runs outlast their start by far: what is shown ends with the start."""
    long = ("cycle", "run", "round", "run_slice", "cycle_start", "fault", "teardown", "report", "decision")
    late = span["name"].removeprefix("nv.nvrx.ftl.") in long
    return int(span["start_ns"] if late else span["end_ns"])


def in_order(spans: list[dict[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """Children below their parents, by time."""
    below: dict[str, list[dict[str, Any]]] = {}
    for span in sorted(spans, key=lambda one: one["start_ns"]):
        below.setdefault(span["parent"], []).append(span)
    rows: list[tuple[dict[str, Any], int]] = []

    def walk(parent: str, depth: int) -> None:
        for span in below.get(parent, []):
            rows.append((span, depth))
            walk(span["span"], depth + 1)

    walk("", 0)
    return rows


if __name__ == "__main__":
    main()
