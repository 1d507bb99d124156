"""What ranks are given of the telemetry: their trace, their resource, and where they leave spans."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote

from nvrx_async.job.records import Assignment
from nvrx_launcher.config import LaunchConfig
from nvrx_telemetry import semconv, spool_line
from nvrx_telemetry.model import Value
from nvrx_telemetry.traceparent import SpanName, spelled

RANK = "nvrx.rank"
"""`service.name` of ranks, unless OTEL_SERVICE_NAME says otherwise."""
RESOURCE = "OTEL_RESOURCE_ATTRIBUTES"


def names_service(environment: Mapping[str, str]) -> bool:
    """Whether the person named the service."""
    keys = (pair.partition("=")[0].strip() for pair in environment.get(RESOURCE, "").split(","))
    return bool(environment.get("OTEL_SERVICE_NAME")) or "service.name" in keys


def rank_resource(
    launch: LaunchConfig,
    environment: Mapping[str, str],
    node_id: str,
    assignment: Assignment,
    local_rank: int,
) -> dict[str, Value]:
    """Attributes of one rank in one round. `environment` is what the person had set."""
    job, rank = launch.job, assignment.seat.first_rank + local_rank
    resource: dict[str, Value] = {
        semconv.CYCLE_INDEX: assignment.round,
        semconv.MEMBERSHIP: "active",
        semconv.NODE: node_id,
        semconv.NNODES_ACTIVE: job.min_nodes,
        semconv.NNODES_SPARE: job.max_nodes - job.min_nodes,
        semconv.DL_RANK: rank,
        "service.instance.id": f"nvrx-rank-{node_id}-{rank}-round-{assignment.round}",
    }
    if launch.node.order is not None:
        resource[semconv.INFRA_RANK] = launch.node.order
    if not names_service(environment):
        resource["service.name"] = RANK
    return resource


def rank_variables(
    above: SpanName | None,
    *,
    sampled: bool,
    epoch_ns: int,
    resource: Mapping[str, Value],
    environment: Mapping[str, str],
) -> dict[str, str]:
    """What a rank finds in its environment. `above`: the span that its own are below, None where no traces are sent."""
    described = {RESOURCE: _as_variable(environment, resource)}
    if above is None:  # a trace that the person began goes on
        return described
    # The state of the person's own trace says nothing of this one (W3C Trace Context, 3.4).
    foreign = {"TRACESTATE": ""} if "TRACESTATE" in environment else {}
    return {
        **foreign,
        "TRACEPARENT": spelled(above, sampled=sampled),
        spool_line.CLOCK_VARIABLE: str(epoch_ns),
        **described,
    }


def _as_variable(environment: Mapping[str, str], resource: Mapping[str, Value]) -> str:
    """What the person had set, and ours over it; made anew each time, so it does not grow with restarts."""
    pairs: dict[str, str] = {}
    for pair in environment.get(RESOURCE, "").split(","):
        key, there, value = pair.partition("=")
        if there and key.strip():
            pairs[key.strip()] = unquote(value.strip())
    ours = {key: str(value) for key, value in resource.items() if not key.startswith("service.")}
    return ",".join(
        f"{key}={quote(value, safe='', errors='replace')}" for key, value in {**pairs, **ours}.items()
    )
