"""A picture of where the milliseconds of a restart go: one bar a case, one colour a phase."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

PHASES = (
    "seen",
    "told",
    "stopped",
    "reaped",
    "joined",
    "sealed",
    "released",
    "user code",
    "process group",
    "first step",
)
COLOURS = (
    "#d1343f",
    "#e5793a",
    "#f0b429",
    "#8c959f",
    "#57606a",
    "#8250df",
    "#b083f0",
    "#2f81d6",
    "#1f9d6b",
    "#0b6e4f",
)
WIDTH, LEFT, BAR, ROW = 900, 130, 30, 50
FONT = "ui-sans-serif, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
LEGEND_COLUMNS = 5


def picture(cases: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """An SVG of the median moments of warm restarts; phases in seconds since the SIGKILL. Others are left out."""
    bars = {name: medians(runs) for name, runs in cases.items() if name.startswith("warm") and any(runs)}
    longest_s = max((moments[-1] for moments in bars.values()), default=1.0)
    per_s = (WIDTH - LEFT - 90) / longest_s
    height = 40 + ROW * len(bars) + 24 * (-(-len(PHASES) // LEGEND_COLUMNS)) + 20
    said = "; ".join(f"{name}: {moments[-1] * 1000:.0f} ms" for name, moments in bars.items())
    frame = f'width="{WIDTH - 1}" height="{height - 1}" rx="10" fill="#ffffff" stroke="#d0d7de"'
    shape = f'viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title desc"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {shape} font-family="{FONT}" font-size="13">',
        '<title id="title">Where the milliseconds of a restart go</title>',
        f'<desc id="desc">Time since the SIGKILL of a rank. {said}.</desc>',
        f'<rect x="0.5" y="0.5" {frame}/>',
    ]
    for row, (name, moments) in enumerate(bars.items()):
        parts += bar(name, moments, 30 + row * ROW, per_s)
    parts += legend(40 + ROW * len(bars))
    return "\n".join([*parts, "</svg>", ""])


def medians(runs: Sequence[Mapping[str, float]]) -> list[float]:
    """The median moment of each phase, never before the one of the phase before it."""
    moments: list[float] = []
    for phase in PHASES:
        seen = [run[phase] for run in runs if phase in run]
        before = moments[-1] if moments else 0.0
        moments.append(max(before, statistics.median(seen)) if seen else before)
    return moments


def bar(name: str, moments: Sequence[float], y: int, per_s: float) -> list[str]:
    """One case: its phases side by side, and the whole behind them."""
    parts = [f'<text x="20" y="{y + 20}" fill="#1f2328">{name}</text>']
    before = 0.0
    for moment, colour in zip(moments, COLOURS, strict=True):
        x, width = LEFT + before * per_s, (moment - before) * per_s
        parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>')
        before = moment
    end = LEFT + before * per_s + 8
    return [*parts, f'<text x="{end:.0f}" y="{y + 20}" fill="#1f2328">{before * 1000:.0f} ms</text>']


def legend(y: int) -> list[str]:
    """What each colour is."""
    parts = []
    for number, (phase, colour) in enumerate(zip(PHASES, COLOURS, strict=True)):
        x, top = 20 + number % LEGEND_COLUMNS * 170, y + number // LEGEND_COLUMNS * 24
        parts.append(f'<rect x="{x}" y="{top}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="{top + 11}" fill="#1f2328">{phase}</text>')
    return parts
