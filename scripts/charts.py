"""Draws the charts of docs/ from the tables of the same pages, so that a chart cannot say what its table does not.

Charts are narrow, so that a phone shows them with letters of the size of its text.
"""

import re
from collections.abc import Callable
from pathlib import Path

COLORS = ("#4c78a8", "#72b7b2", "#54a24b", "#e45756", "#f58518")


def table_of(page: str, head: str) -> list[list[str]]:
    """The cells of the table of a page of docs/ whose first line begins with `head`, without its head."""
    text = (Path(__file__).parents[1] / "docs" / page).read_text()
    lines = text[text.index(f"\n{head}") + 1 :].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def numbers(cell: str) -> list[float]:
    """The numbers of a cell such as "0.85 / 0.92"."""
    return [float(each) for each in re.findall(r"[\d.]+", cell)]


def plain(text: str) -> str:
    """A cell as text of an SVG, without Markdown and marks of notes."""
    return re.sub(r"[`*]|[¹²³ ]+$", "", text).replace("&", "&amp;").replace("<", "&lt;")


CHART_WIDTH = 420
CHART_STYLE = (
    "text{font:13px Inter,system-ui,sans-serif;fill:#1b2733}.n{fill:#5b6b7a;font-size:12px}.l{stroke:#5b6b7a;fill:none}"
    "@media(prefers-color-scheme:dark){text{fill:#dfe6ec}.n{fill:#a3b1be}.l{stroke:#a3b1be}}"
)


def chart(height: float, shapes: list[str]) -> str:
    """The document of a chart."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {CHART_WIDTH} {height:g}">'
    return "\n".join([head, f"<style>{CHART_STYLE}</style>", *shapes, "</svg>\n"])


def legend(names: list[str], colors: tuple[str, ...]) -> list[str]:
    """A line of names with their colours."""
    shapes, x = [], 0
    for name, color in zip(names, colors, strict=False):
        shapes.append(f'<rect x="{x}" y="6" width="12" height="12" rx="2" fill="{color}"/>')
        shapes.append(f'<text x="{x + 18}" y="16">{name}</text>')
        x += 40 + 7 * len(name)
    return shapes


def bars(
    rows: list[tuple[str, list[float]]],
    *,
    names: list[str] | None = None,
    limit: float | None = None,
    texts: list[str] | None = None,
) -> str:
    """Bars with their label above them.

    names: Names of the bars of each label, for a legend; without them, only this library has a colour of its own.
    limit: Value at which a dashed line stands.
    texts: Text beside each bar, in place of its value.
    """
    colors = (COLORS[2], COLORS[0]) if names is None else (COLORS[1], COLORS[0])
    shapes = [] if names is None else legend(names, colors)
    y = top = 0 if names is None else 26
    scale = (CHART_WIDTH - (52 if texts is None else 130)) / max(max(values) for _, values in rows)
    for place, (label, values) in enumerate(rows):
        shapes.append(f'<text x="0" y="{y + 15}">{plain(label)}</text>')
        y += 21
        for number, value in enumerate(values):
            is_other = names is None and not label.startswith("this library")
            color, length = colors[is_other if names is None else number], max(value * scale, 1)
            text = f"{value:g}" if texts is None else texts[place]
            shapes.append(f'<rect x="0" y="{y}" width="{length:.1f}" height="13" rx="2" fill="{color}"/>')
            shapes.append(f'<text x="{length + 6:.1f}" y="{y + 11}" class="n">{text}</text>')
            y += 15
        y += 4
    if limit is not None:
        x = limit * scale
        shapes.append(f'<path d="M{x:.1f} {top}V{y}" class="l" stroke-dasharray="3 3"/>')
    return chart(y, shapes)


def draw_speed() -> str:
    """Speeds of loaders with batches of 8,192 rows: the better of threads and processes."""
    speeds = {"pyarrow, a thread per core, without batches": 1.0}
    for name, *cells in table_of("performance.md", "| | in this process | 2 worker processes |"):
        if "stacked" not in name:
            speeds[name.split(", a file")[0].split(", a local")[0]] = max(
                numbers(cell.strip("¹² "))[-1] for cell in cells if cell
            )
    return bars([(name, [speed]) for name, speed in sorted(speeds.items(), key=lambda each: -each[1])])


def draw_tables() -> str:
    """Speeds of this library against polars."""
    rows = table_of("performance.md", "| | snappy | zstd | snappy, never null |")
    return bars(
        [(name, numbers(cell)) for name, cell, *_ in rows if "/" in cell], names=["1,024 rows", "8,192 rows"], limit=1
    )


def draw_stores() -> str:
    """Throughput of a store against pyarrow.dataset."""
    rows = table_of("performance.md", "| | s3fs | obstore |")
    return bars(
        [(name, [numbers(s3fs)[0], numbers(obstore)[0]]) for name, s3fs, obstore in rows],
        names=["s3fs", "obstore"],
        limit=1,
    )


def draw_lists() -> str:
    """Speeds of lists and packs against decoding alone."""
    rows = table_of("performance.md", "| | of the limit |")
    return bars([(name, [max(numbers(cell))]) for name, cell in rows], limit=1)


def draw_cores() -> str:
    """Rows a second of 1 to 16 threads."""
    rows = [
        (name, [float(cell) for cell in cells])
        for name, *cells in table_of("performance.md", "| threads |")
        if all(cells)
    ]
    left, top, height, step = 26, 8, 200, (CHART_WIDTH - 40) // 4
    scale = height / 30
    shapes = []
    for value in (0, 10, 20, 30):
        y = top + height - value * scale
        shapes.append(f'<path d="M{left} {y:.1f}H{left + 4 * step}" class="l" opacity=".3"/>')
        shapes.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" class="n">{value}</text>')
    for place, threads in enumerate((1, 2, 4, 8, 16)):
        shapes.append(
            f'<text x="{left + place * step}" y="{top + height + 18}" text-anchor="middle" class="n">{threads}</text>'
        )
    for number, (name, values) in enumerate(rows):
        color = ("#8795a1", COLORS[2], COLORS[0])[number]
        points = " ".join(
            f"{left + place * step},{top + height - value * scale:.1f}" for place, value in enumerate(values)
        )
        shapes.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2.5"/>')
        y = top + height + 42 + 20 * number
        shapes.append(f'<rect x="{left}" y="{y - 9}" width="12" height="12" rx="2" fill="{color}"/>')
        shapes.append(f'<text x="{left + 18}" y="{y + 2}">{plain(name)}</text>')
    return chart(top + height + 42 + 20 * len(rows), shapes)


def draw_mixing() -> str:
    """How far rows of a chunk are spread, and the memory for it."""
    rows = table_of("how-to/shuffle-quality.md", "| shuffle | rank correlation |")
    texts = [f"{distance}, {held} MB" for _, _, distance, _, held in rows]
    return bars([(name, [float(distance)]) for name, _, distance, *_ in rows], texts=texts)


CHARTS: dict[str, Callable[[], str]] = {
    "speed-chart.svg": draw_speed,
    "tables-chart.svg": draw_tables,
    "cores-chart.svg": draw_cores,
    "lists-chart.svg": draw_lists,
    "stores-chart.svg": draw_stores,
    "how-to/mixing-chart.svg": draw_mixing,
}
