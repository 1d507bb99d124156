"""A collector for tests: takes OTLP over HTTP and gRPC, and decodes it with `opentelemetry-proto`.

A mode can be changed at any time: `answers` (200), `refuses` (503), `slow` (answers after 10 s).
"""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc

SLOW_S = 10.0


@dataclass(frozen=True)
class Got:
    """A span as it came. `parent` is "" for a root; `links` are trace and span ids with attributes."""

    name: str
    trace: str
    span: str
    parent: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    links: tuple[tuple[str, str, dict[str, Any]], ...]
    error: str | None

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


@dataclass
class Receiver:
    """What was received so far. `endpoint` is the base URL."""

    endpoint: str = ""
    mode: str = "answers"
    spans: list[Got] = field(default_factory=list)
    metrics: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    requests: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)
    closing: threading.Event = field(default_factory=threading.Event)

    def take_traces(self, request: Any) -> None:
        with self.changed:
            for of_resource in request.resource_spans:
                resource = _attributes(of_resource.resource.attributes)
                for scope in of_resource.scope_spans:
                    self.spans.extend(_span(span, resource) for span in scope.spans)
            self.changed.notify_all()

    def take_metrics(self, request: Any) -> None:
        with self.changed:
            for of_resource in request.resource_metrics:
                for scope in of_resource.scope_metrics:
                    self.metrics.extend(scope.metrics)
            self.changed.notify_all()

    def until(self, reached: Callable[[], Any], what: str, bound_s: float = 30.0) -> Any:
        with self.changed:
            if not self.changed.wait_for(reached, bound_s):
                names = sorted({span.name for span in self.spans})
                raise AssertionError(f"not within {bound_s:g} s: {what}; received: {names}")
            return reached()

    def named(self, name: str) -> list[Got]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str, **attributes: Any) -> Got:
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}
        found = [
            span
            for span in self.named(name)
            if wanted.items() <= {**span.resource, **span.attributes}.items()
        ]
        assert len(found) == 1, (name, wanted, found)
        return found[0]

    def hold(self) -> bool:
        """What the mode asks for; False for a refusal."""
        self.requests += 1
        if self.mode == "slow":
            self.closing.wait(SLOW_S)
        return self.mode != "refuses"


@contextmanager
def http_receiver(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.headers.append(dict(self.headers.items()))
            if not receiver.hold():
                self._say(503)
                return
            if self.path.endswith("/v1/traces"):
                receiver.take_traces(trace_pb.ExportTraceServiceRequest.FromString(body))
            elif self.path.endswith("/v1/metrics"):
                receiver.take_metrics(metrics_pb.ExportMetricsServiceRequest.FromString(body))
            self._say(200)

        def _say(self, status: int) -> None:
            try:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()
            except OSError:  # the exporter gave up
                return

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    receiver.endpoint = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    try:
        yield receiver
    finally:
        receiver.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def grpc_receiver(tls: grpc.ServerCredentials | None = None) -> Iterator[Receiver]:
    receiver = Receiver()

    class Traces(trace_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - named by the protocol
            if not receiver.hold():
                context.abort(grpc.StatusCode.UNAVAILABLE, "refused")
            receiver.headers.append(dict(context.invocation_metadata()))
            receiver.take_traces(request)
            return trace_pb.ExportTraceServiceResponse()

    class Metrics(metrics_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - named by the protocol
            if not receiver.hold():
                context.abort(grpc.StatusCode.UNAVAILABLE, "refused")
            receiver.take_metrics(request)
            return metrics_pb.ExportMetricsServiceResponse()

    pool = ThreadPoolExecutor(4)
    server = grpc.server(pool)
    trace_grpc.add_TraceServiceServicer_to_server(Traces(), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)
    if tls is None:
        receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    else:
        receiver.endpoint = f"https://127.0.0.1:{server.add_secure_port('127.0.0.1:0', tls)}"
    server.start()
    try:
        yield receiver
    finally:
        receiver.closing.set()
        server.stop(1).wait()
        pool.shutdown()


def _span(span: Any, resource: dict[str, Any]) -> Got:
    return Got(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
        resource,
        tuple((link.trace_id.hex(), link.span_id.hex(), _attributes(link.attributes)) for link in span.links),
        span.status.message if span.status.code == span.status.STATUS_CODE_ERROR else None,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
