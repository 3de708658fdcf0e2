"""The timeline through matplotlib, for papers and reports; needs the extra `viz`."""

import colorsys
from pathlib import Path
from typing import Any

from torch_dataloader_utils._core.arguments import format_bytes
from torch_dataloader_utils.cli.pictures.svg import file_hue
from torch_dataloader_utils.cli.pictures.timeline import Timeline
from torch_dataloader_utils.errors import ConfigError, MissingDependencyError, counted

_LABELLED_WORKERS = 64
_LEGEND_FILES = 12


def save_png(summary: dict[str, Any], timeline: Timeline, path: Path) -> None:
    """Write the picture; the ending of `path` chooses the format (.png, .pdf, .svg).

    Raises:
        MissingDependencyError: matplotlib is not installed. ConfigError: an ending of no format that it writes.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "Drawing a PNG needs matplotlib. Run: pip install matplotlib, or use --html."
        ) from error
    count = len(timeline.workers)
    figure = Figure(figsize=(12, 1.8 + min(24.0, 0.27 * max(count, 3))), dpi=150, layout="constrained")
    if path.suffix.lstrip(".").lower() not in ("", *figure.canvas.get_supported_filetypes()):
        raise ConfigError(f"--png {path}: {path.suffix!r} is no format of pictures. Use .png, .pdf or .svg.")
    axes = figure.add_subplot()
    for place, worker in zip(_places(timeline), timeline.workers, strict=True):
        lanes = [lane for lane in worker.lanes if lane]
        for number, lane in enumerate(lanes):
            height = 0.8 / len(lanes)
            axes.broken_barh(
                [(bar.start, bar.length) for bar in lane],
                (place - 0.4 + number * height, height),
                facecolors=[_color(timeline, bar.file, index) for index, bar in enumerate(lane)],
                edgecolor="white",
                linewidth=0.3,
            )
            shared = [(bar.start, bar.length) for bar in lane if bar.is_shared]
            axes.broken_barh(
                shared,
                (place - 0.4 + number * height, height),
                facecolor="none",
                edgecolor="white",
                hatch="//////",
                lw=0,
            )
    _label(axes, timeline)
    _title(axes, summary, timeline)
    figure.savefig(path)


def _places(timeline: Timeline) -> list[float]:
    """Where each worker's row is; ranks stand a little apart."""
    return [place + 0.35 * worker.rank for place, worker in enumerate(timeline.workers)]


def _color(timeline: Timeline, file: int, index: int) -> tuple[float, float, float]:
    hue = file_hue(file if len(timeline.files) > 1 else index % 2)
    return colorsys.hls_to_rgb(hue / 360, 0.58, 0.58)


def _label(axes: Any, timeline: Timeline) -> None:
    workers = timeline.workers
    every = -(-len(workers) // _LABELLED_WORKERS)
    shown = range(0, len(workers), max(1, every))
    places = _places(timeline)
    axes.set_yticks(
        [places[i] for i in shown], [f"rank {workers[i].rank} · worker {workers[i].worker}" for i in shown], fontsize=8
    )
    axes.set_ylim((places[-1] if places else 0) + 0.6, -0.6)
    axes.set_xlim(0, max(1, timeline.longest_bytes))
    axes.set_xticks(timeline.ticks, [format_bytes(tick) for tick in timeline.ticks])
    remark = "; hatched: a row group that several workers read parts of" if timeline.shared_groups else ""
    axes.set_xlabel(f"bytes read, from the first batch to the last; a colour for each file{remark}", fontsize=9)
    axes.tick_params(axis="x", labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    if timeline.imbalance >= 1.005:
        axes.axvline(timeline.mean_bytes, color="#c2410c", linestyle="--", linewidth=1, label="mean of the workers")
        mean = axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), frameon=False, fontsize=8)
        axes.add_artist(mean)  # the legend of files would take its place
    _legend(axes, timeline)


def _legend(axes: Any, timeline: Timeline) -> None:
    """The colours of the first files, as on the web page."""
    from matplotlib.patches import Patch

    if len(timeline.files) < 2:
        return
    shown = timeline.files[:_LEGEND_FILES]
    patches = [Patch(color=_color(timeline, file, 0), label=name) for file, name in enumerate(shown)]
    if rest := len(timeline.files) - len(shown):
        patches.append(Patch(color="none", label=f"and {counted(rest, 'more file')}"))
    axes.legend(handles=patches, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=7)


def _title(axes: Any, summary: dict[str, Any], timeline: Timeline) -> None:
    steps = "inexact" if summary["steps"] is None else counted(summary["steps"][1], "step")
    if summary["steps"] is not None and summary["steps"][0] != summary["steps"][1]:
        steps = f"{summary['steps'][0]:,} to {summary['steps'][1]:,} steps"
    ranks = f"{counted(timeline.num_ranks, 'rank')} × {counted(summary['num_workers'], 'worker')}"
    if timeline.shown_ranks < timeline.num_ranks:
        ranks += f" (first {timeline.shown_ranks} shown)"
    facts = f"{ranks}, {steps}, {counted(summary['cuts'], 'cut')}, heaviest worker {timeline.imbalance:.2f} × the mean"
    axes.set_title(f"Epoch {summary['epoch']}: {facts}", fontsize=10, loc="right")
