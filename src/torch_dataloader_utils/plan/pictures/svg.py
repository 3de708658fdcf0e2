"""Draw a timeline as SVG: a row for each worker, a bar for each row group, colours for files."""

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from torch_dataloader_utils._core.arguments import format_bytes
from torch_dataloader_utils.plan.pictures.timeline import Bar, Timeline, WorkerRow, make_timeline

if TYPE_CHECKING:
    from torch_dataloader_utils.plan.epoch_plan import EpochPlan

_LABEL_WIDTH = 140
_CHART_WIDTH = 420
_TEXT_WIDTH = 300
_WIDTH = _LABEL_WIDTH + _CHART_WIDTH + _TEXT_WIDTH
_TOP = 38
_RANK_GAP = 8
_SMALL_RANKS, _SMALL_BARS = 8, 1_000
# The golden angle: neighbouring files get hues far apart, for any number of files.
_GOLDEN_DEGREES = 137.508

STYLE = """
:root { color-scheme: light dark; --text: #1c2330; --quiet: #667085; --page: #ffffff; --card: #f5f7fa; --line: #e3e7ee;
  --hatch: rgba(255,255,255,.62); --mean: #c2410c; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ef; --quiet: #98a2b3; --page: #14171d; --card: #1d222b;
  --line: #2c3340; --hatch: rgba(10,12,16,.55); --mean: #fb923c; } }
svg text { font-size: 13px; fill: var(--text); }
svg .quiet { fill: var(--quiet); } .grid { stroke: var(--line); stroke-width: 1; }
.hatch { fill: var(--hatch); }
.mean { stroke: var(--mean); stroke-width: 1.2; stroke-dasharray: 5 4; } svg .mean-text { fill: var(--mean); }
""".strip()
"""Colours of the timeline and of a page around it, for light and dark backgrounds, as CSS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """Scale of the chart: bytes to pixels, and the height of a worker's row."""

    pixels_per_byte: float
    row_height: float

    def x(self, position: float) -> float:
        return _LABEL_WIDTH + position * self.pixels_per_byte


def file_hue(file: int) -> float:
    """Return the hue of a file in degrees."""
    return (215 + file * _GOLDEN_DEGREES) % 360


def hsl(hue: float) -> str:
    """Return a colour that stands out on white and on black."""
    return f"hsl({hue:.0f}, 55%, 57%)"


def draw_timeline(timeline: Timeline) -> str:
    """Return one <svg> element, to be coloured by `STYLE`."""
    count = len(timeline.workers)
    row_height = 18.0 if count <= 64 else 11.0
    scale = _Scale(pixels_per_byte=_CHART_WIDTH / max(1, timeline.longest_bytes), row_height=row_height)
    places = _places(timeline, row_height)
    bottom = (places[-1] + row_height if places else _TOP) + 6
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {bottom + 26:.0f}" role="img" aria-label="who reads what, when">',
        '<defs><pattern id="shared" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="2.4" height="6" class="hatch"/></pattern></defs>',
        *_axis(timeline, scale, bottom),
    ]
    for worker, top in zip(timeline.workers, places, strict=True):
        parts += _worker(worker, top, scale, timeline)
    parts += _mean_line(timeline, scale, bottom)
    return "\n".join([*parts, "</svg>"])


def plan_picture(timeline: Timeline) -> str:
    """Return the text of an SVG file."""
    opening, rest = draw_timeline(timeline).split("\n", 1)
    opening = opening.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    font = 'svg { font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif; background: var(--page); }'
    return f"{opening}\n<style>{STYLE}\n{font}</style>\n{rest}\n"


def small_picture(plan: "EpochPlan") -> str:
    """Return a picture of the first ranks for a notebook; "" if it would have more than 1,000 bars."""
    ranks = min(plan.topology.num_ranks, _SMALL_RANKS)
    if plan.inventory.num_groups * ranks > _SMALL_BARS * plan.topology.num_ranks:
        return ""
    timeline = make_timeline(plan, ranks)
    bars = sum(len(lane) for worker in timeline.workers for lane in worker.lanes)
    return plan_picture(timeline) if bars <= _SMALL_BARS else ""


def _places(timeline: Timeline, row_height: float) -> list[float]:
    places, top, rank = [], float(_TOP), 0
    for worker in timeline.workers:
        if worker.rank != rank:
            top, rank = top + _RANK_GAP, worker.rank
        places.append(top)
        top += row_height + 3
    return places


def _axis(timeline: Timeline, scale: _Scale, bottom: float) -> list[str]:
    parts = [f'<text x="{_LABEL_WIDTH}" y="13" class="quiet">bytes read, from the first batch to the last →</text>']
    for position in timeline.ticks:
        x, anchor = scale.x(position), "middle" if position else "start"
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{bottom:.1f}" class="grid"/>')
        place = f'x="{x:.1f}" y="{bottom + 16:.1f}" text-anchor="{anchor}"'
        parts.append(f'<text {place} class="quiet">{format_bytes(position)}</text>')
    return parts


def _worker(worker: WorkerRow, top: float, scale: _Scale, timeline: Timeline) -> list[str]:
    middle = top + scale.row_height / 2 + 4
    name = f"rank {worker.rank} · worker {worker.worker}"
    parts = [f'<text x="{_LABEL_WIDTH - 8}" y="{middle:.1f}" text-anchor="end">{name}</text>']
    lanes = [lane for lane in worker.lanes if lane] or [()]
    height = scale.row_height / len(lanes)
    by_file = len(timeline.files) > 1
    for number, lane in enumerate(lanes):
        for index, bar in enumerate(lane):
            hue = file_hue(bar.file if by_file else index % 2)
            parts.append(_bar(bar, top + number * height, height, scale, hue))
    batches = "?" if worker.num_batches is None else f"{worker.num_batches:,}"
    totals = f"{worker.num_rows:,} rows · {batches} batches · {format_bytes(worker.num_bytes)}"
    parts.append(f'<text x="{_LABEL_WIDTH + _CHART_WIDTH + 10}" y="{middle:.1f}" class="quiet">{totals}</text>')
    return parts


def _bar(bar: Bar, top: float, height: float, scale: _Scale, hue: float) -> str:
    # Leave a thin line of background between bars if they are wide enough.
    width = max(bar.length * scale.pixels_per_byte, 0.4)
    drawn = width - 0.8 if width > 2 else width
    place = f'x="{scale.x(bar.start):.2f}" y="{top:.2f}" width="{drawn:.2f}" height="{height:.2f}"'
    shape = f'<rect {place} fill="{hsl(hue)}"/>'
    shared = f'<rect {place} fill="url(#shared)"/>' if bar.is_shared else ""
    remark = ", shared with other workers" if bar.is_shared else ""
    return f"<g><title>{escape(bar.label)}{remark}</title>{shape}{shared}</g>"


def _mean_line(timeline: Timeline, scale: _Scale, bottom: float) -> list[str]:
    if timeline.imbalance < 1.005:
        return []
    x = scale.x(timeline.mean_bytes)
    return [
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{bottom:.1f}" class="mean"/>',
        f'<text x="{x:.1f}" y="{_TOP - 12}" text-anchor="middle" class="mean-text">mean of the workers</text>',
    ]
