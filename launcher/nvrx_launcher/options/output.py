"""Options of what is shown, written and sent: output, traces, metrics."""

from __future__ import annotations

from typing import Final

from nvrx_launcher import values
from nvrx_launcher.option import ours, torchrun
from nvrx_launcher.options.groups import OUTPUT, TELEMETRY
from nvrx_launcher.streams import NONE, streams

OUTPUT_ROWS: Final = (
    torchrun(
        "--log-dir",
        group=OUTPUT,
        metavar="DIR",
        default="nvrx-logs",
        common=True,
        doc="Every rank's output and the summary are written below DIR/<run id>.",
    ),
    torchrun(
        "--redirects",
        "-r",
        group=OUTPUT,
        metavar="STREAMS",
        parse=streams,
        default=NONE,
        doc="Streams that are not shown, only written to --log-dir as all are: 1 stdout, 2 stderr, 3 both, "
        "or by local rank such as 0:1,1:3.",
    ),
    torchrun(
        "--tee",
        "-t",
        group=OUTPUT,
        metavar="STREAMS",
        parse=streams,
        default=NONE,
        doc="Streams that are shown although --redirects names them.",
    ),
    ours(
        "--pty",
        group=OUTPUT,
        metavar="auto|on|off",
        parse=values.choice("auto", "on", "off"),
        default="auto",
        doc="Whether ranks write to a terminal, for colours and progress bars. auto: the only rank of a job that "
        "is started on one.",
    ),
    torchrun(
        "--local-ranks-filter",
        group=OUTPUT,
        metavar="RANKS",
        parse=values.local_ranks,
        default=None,
        default_text="all",
        doc="Local ranks whose output is shown, such as 0,1.",
    ),
    torchrun(
        "--duplicate-stdout-filters",
        group=OUTPUT,
        metavar="WORDS",
        parse=values.words,
        default=(),
        default_text="none",
        doc="Lines of stdout with one of these words go to filtered_stdout.log of the round too, with their rank.",
    ),
    torchrun(
        "--duplicate-stderr-filters",
        group=OUTPUT,
        metavar="WORDS",
        parse=values.words,
        default=(),
        default_text="none",
        doc="The same for stderr and filtered_stderr.log.",
    ),
)

TELEMETRY_ROWS: Final = (
    ours(
        "--otlp-endpoint",
        group=TELEMETRY,
        metavar="URL",
        default_text="$OTEL_EXPORTER_OTLP_ENDPOINT, else nothing is sent",
        doc="Where traces and metrics are sent: an OpenTelemetry collector or Jaeger, such as http://collector:4318.",
    ),
    ours(
        "--metrics-port",
        group=TELEMETRY,
        metavar="PORT",
        parse=values.whole_number(1, values.MAX_PORT),
        default_text="none",
        doc="Port of this node at which Prometheus finds the metrics (/metrics).",
    ),
)
