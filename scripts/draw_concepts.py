"""Draws the pictures of docs/ from real plans, and from what loaders really deliver.

    python -m scripts.draw_concepts [folder]        the folder is docs unless named

In the pictures of docs/concepts a square is a row, its number the row's, its colour the chunk that it lies in. A
line is a rank, a box a batch. In that of packing a square is a token, with the number of its document, and a line a
row group.
The plan is drawn as `tdu plan --draw` draws it. Charts are drawn by scripts/charts.py,
what commands print by scripts/terminal.py.
"""

import contextlib
import sys
import tempfile
import warnings
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from examples.demo.data import write_trips
from scripts.charts import CHARTS, COLORS
from scripts.terminal import COMMANDS, draw_terminal, write_data

from torch_dataloader_utils import Lanes, StructuredDataset, WeightSchedule, blend, pack_tokens, plan_epoch, scan_files
from torch_dataloader_utils.plan.pictures.svg import plan_picture
from torch_dataloader_utils.plan.pictures.timeline import make_timeline

# Two files; one number a row group, which is one chunk here.
FILES = {"a": (4, 4, 4), "b": (5, 2)}
CHUNK_OF_ROW = np.repeat(np.arange(5), sum(FILES.values(), ()))
COLOR_OF_ROW = [COLORS[chunk] for chunk in CHUNK_OF_ROW]
# Two row groups; one number a document, which is its length in tokens. Documents are numbered from 1, 0 is padding.
DOCUMENTS = ((5, 3, 7, 2, 4), (6, 2, 6, 3, 4))
COLOR_OF_DOCUMENT = ["#ccc", *COLORS, *COLORS]
# Of the moving picture: three uneven files, as FILES; the steps until a rank is killed; when it shows what, in seconds.
RUN_FILES = {"a": (6, 6, 6, 6), "b": (5, 5), "c": (7, 6)}
RUN_KILLED = 2
RUN_TIMES = {"planned": 2.2, "first step": 4.4, "killed": 6.8, "planned again": 9.2, "next step": 11.2, "end": 18.0}
SIDE, TOKEN_SIDE, GAP, LINE, LEFT = 22, 14, 12, 34, 76
STEP, SHARES = 16, 48

Batches = list[list[int]]


def write_files(folder: Path) -> Path:
    """The data set of FILES; its only column numbers the rows."""
    row = 0
    for name, groups in FILES.items():
        schema = pa.schema([("row", pa.int64())])
        with pq.ParquetWriter(folder / f"{name}.parquet", schema) as writer:
            for rows in groups:
                writer.write_table(pa.table({"row": np.arange(row, row + rows)}, schema=schema))
                row += rows
    return folder


def read(data: Path, num_ranks: int, state: dict[str, Any] | None = None, **options: Any) -> list[Batches]:
    """The rows of every batch of every rank."""
    ranks = []
    for rank in range(num_ranks):
        loader, _ = StructuredDataset.create_dataloader(
            data, split_bytes=1, num_workers=0, num_ranks=num_ranks, rank=rank, **options
        )
        if state is not None:
            loader.load_state_dict(state)
        ranks.append([batch["row"].tolist() for batch in loader])
    return ranks


class Picture:
    """An SVG that grows downwards."""

    def __init__(self, colors: list[str] = COLOR_OF_ROW, side: int = SIDE) -> None:
        self.colors, self.side = colors, side
        self.shapes: list[str] = []
        self.width = 0
        self.height = 4

    def title(self, text: str) -> None:
        """A line of text above what follows."""
        self.height += 18
        self.shapes.append(f'<text x="4" y="{self.height}" class="title">{text}</text>')
        self.height += 10
        self.width = max(self.width, 7 * len(text))

    def ranks(self, ranks: list[Batches], faded_steps: int = 0) -> None:
        """A line for each rank; batches of one step stand below each other. The first steps may be faded."""
        self.lines("rank", ranks, faded_steps)

    def lines(self, name: str, ranks: list[Batches], faded_steps: int = 0) -> None:
        """A numbered line for each of `ranks`, which may also be something else that holds boxes of squares."""
        num_steps = max(map(len, ranks))
        widths = [max((len(r[step]) for r in ranks if step < len(r)), default=0) for step in range(num_steps)]
        starts = LEFT + np.cumsum([0, *(width * self.side + GAP for width in widths)])
        for number, batches in enumerate(ranks):
            self.shapes.append(f'<text x="4" y="{self.height + 16}">{name} {number}</text>')
            for step, batch in enumerate(batches):
                self._batch(int(starts[step]), batch, opacity=0.3 if step < faded_steps else 1.0)
            self.height += LINE
        self.width = max(self.width, int(starts[-1]))
        self.height += 6

    def mixture(self, schedule: WeightSchedule, sources: list[int]) -> None:
        """Above the weights of every step, below it the source that gave the step's batch."""
        for step, source in enumerate(sources):
            x, y = LEFT + step * STEP, float(self.height)
            for color, share in zip(COLORS, schedule.shares_at(step).tolist(), strict=False):
                self._bar(x, y, share * SHARES, color)
                y += share * SHARES
            self._bar(x, self.height + SHARES + 6, STEP - 2, COLORS[source])
        for text, down in (("weights", SHARES / 2), ("source", SHARES + STEP)):
            self.shapes.append(f'<text x="4" y="{self.height + down:.0f}">{text}</text>')
        self.height += SHARES + LINE
        self.width = max(self.width, LEFT + len(sources) * STEP)

    def _bar(self, x: int, y: float, height: float, color: str) -> None:
        self.shapes.append(f'<rect x="{x}" y="{y:.1f}" width="{STEP - 2}" height="{height:.1f}" fill="{color}"/>')

    def _batch(self, left: int, rows: list[int], opacity: float) -> None:
        for place, row in enumerate(rows):
            x, y, color = left + place * self.side, self.height, self.colors[row]
            self.shapes.append(
                f'<g opacity="{opacity}"><rect x="{x}" y="{y}" width="{self.side}" height="{SIDE}" fill="{color}"/>'
                f'<text x="{x + self.side / 2}" y="{y + 15}" class="row">{row}</text></g>'
            )
        place = f'x="{left - 2}" y="{self.height - 2}" width="{len(rows) * self.side + 4}" height="{SIDE + 4}"'
        self.shapes.append(f'<rect {place} class="box"/>')

    def svg(self) -> str:
        """The whole document."""
        style = (
            "text{font:12px Inter,system-ui,sans-serif;fill:#1b2733}.title{font-weight:600}"
            ".row{fill:#fff;text-anchor:middle}.box{fill:none;stroke:#5b6b7a;stroke-width:1.5}"
            "@media(prefers-color-scheme:dark){text{fill:#dfe6ec}.row{fill:#fff}.box{stroke:#a3b1be}}"
        )
        shapes = "\n".join(self.shapes)
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{style}</style>\n{shapes}\n</svg>\n'


def draw_equal_steps(folder: Path) -> str:
    """Whole chunks, balanced rows, and drop_last, on three ranks."""
    data = write_files(folder)
    picture = Picture()
    for title, options in {
        'rank_sharding="chunks": every chunk stays on one rank, steps differ': {"rank_sharding": "chunks"},
        'rank_sharding="rows": the same chunks, balanced; every row once, equal steps': {},
        "drop_last=True: full batches only": {"drop_last": True},
    }.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that steps differ, which is what is drawn
            ranks = read(data, 3, batch_size=3, **options)
        picture.title(title)
        picture.ranks(ranks)
    return picture.svg()


def draw_state(folder: Path) -> str:
    """One step on three ranks, and the rest of the epoch on two."""
    data = write_files(folder)
    options = {"shuffle": True, "shuffle_rows": 6}
    loader, _ = StructuredDataset.create_dataloader(
        data, split_bytes=1, num_workers=0, num_ranks=3, rank=0, batch_size=3, **options
    )
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    picture = Picture()
    picture.title("three ranks, batches of 3: stopped after step 1 (pale: received)")
    picture.ranks(read(data, 3, batch_size=3, **options), faded_steps=1)
    picture.title("the same state on two ranks, batches of 4: what remains, every row once")
    picture.ranks(read(data, 2, state=state, batch_size=4, **options))
    return picture.svg()


def draw_lanes(folder: Path) -> str:
    """Global batches of four rows, on one rank and on two."""
    data = write_files(folder)
    picture = Picture()
    for num_ranks in (1, 2):
        picture.title(f"lanes=Lanes(4, rows=1), {num_ranks} x batches of {4 // num_ranks}")
        picture.ranks(read(data, num_ranks, batch_size=4 // num_ranks, shuffle=True, lanes=Lanes(4, rows=1)))
    return picture.svg()


def draw_packing(folder: Path) -> str:
    """Documents as they are stored, and the samples that are packed of them."""
    first = iter(range(1, 100))
    stored = [[[next(first)] * tokens for tokens in group] for group in DOCUMENTS]
    with pq.ParquetWriter(folder / "0.parquet", pa.schema([("tokens", pa.list_(pa.int64()))])) as writer:
        for group in stored:
            writer.write_table(pa.table({"tokens": group}))
    picture = Picture(COLOR_OF_DOCUMENT, TOKEN_SIDE)
    picture.title("stored, in two row groups: a box is a document, a square one of its tokens")
    picture.lines("group", stored)
    for title, epoch, options in (
        ('fill="greedy", samples of 8 tokens: a box is a sample, 0 is padding', 0, {}),
        ('fill="greedy", shuffle_documents=True, epoch 0', 0, {"shuffle_documents": True}),
        ("epoch 1", 1, {"shuffle_documents": True}),
        ('fill="best_fit": whole documents, longest first', 0, {"fill": "best_fit"}),
        ('fill="best_fit", shuffle_documents=True', 0, {"fill": "best_fit", "shuffle_documents": True}),
    ):
        packing = pack_tokens("tokens", 8, fields=("tokens",), **options)
        loader, _ = StructuredDataset.create_dataloader(folder / "0.parquet", pack=packing, batch_size=1, num_workers=0)
        loader.set_epoch(epoch)
        picture.title(title)
        picture.lines("packed", [[sample for batch in loader for sample in batch["tokens"].tolist()]])
    return picture.svg()


def draw_plan(folder: Path, **options: Any) -> str:
    """A plan of the trips of the demo: of docs/how-to/command-line.md, or of docs/concepts/gallery.md."""
    write_trips(folder / "trips", folder / "trips.orc")
    inventory = scan_files(str(folder / "trips"))
    options = {"num_ranks": 3, "num_workers": 2, "batch_size": 256, "split_rows": 2_000, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that steps differ, which is what is drawn
        return plan_picture(make_timeline(plan_epoch(inventory, **options), max_ranks=8))


GALLERY = {
    "stored": {},
    "chunks": {"rank_sharding": "chunks"},
    "shuffled": {"shuffle": True},
    "next-epoch": {"shuffle": True, "epoch": 1},
    "many-ranks": {"num_ranks": 8, "num_workers": 1},
    "lanes": {"lanes": Lanes(12), "num_ranks": 2, "num_workers": 3},
}


def draw_mixture(folder: Path) -> str:
    """Blends of three sources: weights that change at steps, or on a line, and a source that reaches its cap."""
    weights = {0: [8, 2, 0], 12: [5, 3, 2], 24: [1, 3, 6]}
    picture = Picture()
    for title, batches_of_last, schedule, caps in (
        ("weights that change at steps 12 and 24", 40, WeightSchedule(weights), {}),
        ("the same with linear=True", 40, WeightSchedule(weights, linear=True), {}),
        (
            'weights 2 1 1, and the last source has 5 batches: max_epochs=1, at_cap="renormalise"',
            5,
            WeightSchedule({0: [2, 1, 1]}),
            {"max_epochs": 1, "at_cap": "renormalise"},
        ),
    ):
        loaders = []
        for source, num_batches in enumerate((40, 40, batches_of_last)):
            path = folder / f"{source}.parquet"
            pq.write_table(pa.table({"row": np.arange(num_batches)}), path)
            loaders.append(StructuredDataset.create_dataloader(str(path), batch_size=1, num_workers=0)[0])
        batches = blend(loaders, schedule, stop=40, source_column="source", **caps)
        picture.title(title)
        picture.mixture(schedule, [int(batch["source"][0]) for batch in batches])
    return picture.svg()


def draw_logo(folder: Path) -> str:
    """Three ranks as bars: a length is a number of rows, a colour a chunk."""
    bars = ['<rect width="36" height="36" rx="7" fill="#fff"/>']
    for rank, batches in enumerate(read(write_files(folder), 3, batch_size=3)):
        chunks = CHUNK_OF_ROW[[row for batch in batches for row in batch]]
        starts = [0, *(np.flatnonzero(np.diff(chunks)) + 1).tolist(), len(chunks)]
        scale = 28 / len(chunks)  # the ranks end together
        for start, stop in pairwise(starts):
            place = (
                f'x="{4 + start * scale:.2f}" y="{5 + 9 * rank}" width="{(stop - start) * scale - 0.8:.2f}" height="7"'
            )
            bars.append(f'<rect {place} rx="1" fill="{COLORS[chunks[start]]}"/>')
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 36 36">\n{chr(10).join(bars)}\n</svg>\n'


class MovingPicture:
    """An SVG whose parts move by CSS. Where animations are off, it stays as it ends."""

    def __init__(self) -> None:
        self.styles: list[str] = []
        self.shapes: list[str] = []

    def add(self, shape: str, frames: dict[float, str]) -> None:
        """A shape, and its style at some seconds, from 0 to the end. Between two of them it changes evenly."""
        name = f"m{len(self.shapes)}"
        total = RUN_TIMES["end"]
        text = "".join(f"{100 * second / total:.4g}%{{{style}}}" for second, style in sorted(frames.items()))
        self.styles.append(f".{name}{{animation-name:{name}}}@keyframes {name}{{{text}}}")
        self.shapes.append(f'<g class="{name}" style="{frames[total]}">{shape}</g>')

    def show(self, shape: str, start: float, stop: float, faded: float = 0.0) -> None:
        """A shape that is seen between two seconds, and `faded` after them."""
        end, before = RUN_TIMES["end"], f"opacity:{int(start == 0)}"
        frames = {0: before, start: before, start + 0.3: "opacity:1", stop: "opacity:1"}
        after = f"opacity:{1 if stop == end else faded}"
        self.add(shape, {**frames, min(stop + 0.3, end): after, end: after})

    def svg(self, width: int, height: int, style: str) -> str:
        """The whole document."""
        rules = (
            "text{font:13px Inter,system-ui,sans-serif;fill:#1b2733}"
            "@media(prefers-color-scheme:dark){text{fill:#dfe6ec}}"
            f"g{{animation-duration:{RUN_TIMES['end']}s;animation-iteration-count:infinite}}"
            "@media(prefers-reduced-motion:reduce){g{animation:none}}"
        )
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
        return "\n".join([head, f"<style>{rules}{style}", *self.styles, "</style>", *self.shapes, "</svg>\n"])


def draw_run(folder: Path) -> str:
    """An epoch: the rows of three files on three ranks, which go on as two when one is killed.

    A square is a row, a colour a file. A square moves from its file to its batch in the plan of three ranks, and then,
    unless it was received before, to its batch in the plan of two. It is full when it is received.
    """
    row = 0
    for name, groups in RUN_FILES.items():
        with pq.ParquetWriter(folder / f"{name}.parquet", pa.schema([("row", pa.int64())])) as writer:
            for rows in groups:
                writer.write_table(pa.table({"row": np.arange(row, row + rows)}))
                row += rows
    options = {"shuffle": True, "batch_size": 3}
    loader, _ = StructuredDataset.create_dataloader(folder, split_bytes=1, num_workers=0, num_ranks=3, **options)
    batches = iter(loader)
    for _ in range(RUN_KILLED):
        next(batches)
    plans = [(0, read(folder, 3, **options)), (RUN_KILLED, read(folder, 2, loader.state_dict(), **options))]

    times, end = RUN_TIMES, RUN_TIMES["end"]
    picture = MovingPicture()
    file_of_row = np.repeat(np.arange(3), [sum(groups) for groups in RUN_FILES.values()])
    places = {
        row: [(84 + 15 * int(row - np.searchsorted(file_of_row, file)), 42 + 38 * int(file))]
        for row, file in enumerate(file_of_row)
    }
    received = {}
    for first, ranks in plans:
        for rank, step, batch in ((r, s, b) for r, batches in enumerate(ranks) for s, b in enumerate(batches, first)):
            after = ("first step", step) if first == 0 else ("next step", step - first)
            for column, row in enumerate(batch):
                received[row] = times[after[0]] + 0.9 * after[1]
                places[row].append((84 + 55 * step + 15 * column, 42 + 38 * rank))
    for row, (stored, planned, *again) in places.items():
        last = again[0] if again else planned
        moves = [f"transform:translate({x - last[0]}px,{y - last[1]}px);" for x, y in (stored, planned, last)]
        full = received[row]
        frames = {0: moves[0] + "opacity:.3", times["planned"]: moves[0], times["planned"] + 1.2: moves[1]}
        frames |= {times["planned again"]: moves[1], times["planned again"] + 1.2: moves[2]}
        frames |= {full: "opacity:.3", full + 0.2: "opacity:1", end: moves[2] + "opacity:1"}
        color = COLORS[(0, 2, 4)[file_of_row[row]]]
        shape = f'<rect x="{last[0]}" y="{last[1]}" width="14" height="24" rx="2" fill="{color}"/>'
        picture.add(shape, frames)

    num_steps = RUN_KILLED + len(plans[1][1][0])
    for line, name in enumerate(RUN_FILES):
        picture.show(f'<text x="4" y="{59 + 38 * line}">{name}.parquet</text>', 0, times["planned"])
        stop, faded = (times["killed"], 0.3) if line == 2 else (end, 0.0)
        picture.show(f'<text x="4" y="{59 + 38 * line}">rank {line}</text>', times["planned"] + 1, stop, faded)
    cross = '<path d="M4 126L48 142M4 142L48 126" stroke="#d3363b" stroke-width="2.5"/>'
    picture.show(cross, times["killed"], end)
    for step in range(num_steps):
        start = times["planned"] + 1 if step < len(plans[0][1][0]) else times["planned again"] + 1
        picture.show(f'<text x="{106 + 55 * step}" y="30" class="step">{step + 1}</text>', start, end)
    picture.show('<text x="4" y="30">step</text>', times["planned"] + 1, end)
    rows = [sum(groups) for groups in RUN_FILES.values()]
    for text, start, stop in (
        (f"Three files of {rows[0]}, {rows[1]} and {rows[2]} rows.", 0, times["planned"]),
        ("The plan of three ranks: every row once, equal steps.", times["planned"] + 0.4, times["killed"]),
        (f"Rank 2 is killed after step {RUN_KILLED}.", times["killed"] + 0.4, times["planned again"]),
        ("The saved state, on two ranks: the rest is planned again.", times["planned again"] + 0.4, 15.4),
        (f"Both end together. {sum(rows)} rows were delivered, each once.", 15.8, end),
    ):
        picture.show(f'<text x="4" y="176" class="say">{text}</text>', start, stop)
    return picture.svg(84 + 55 * num_steps, 190, ".step{text-anchor:middle}.say{font-weight:600}")


PICTURES = {
    "run.svg": draw_run,
    "logo.svg": draw_logo,
    "concepts/equal-steps.svg": draw_equal_steps,
    "concepts/state.svg": draw_state,
    "concepts/lanes.svg": draw_lanes,
    "how-to/packed-documents.svg": draw_packing,
    "how-to/plan-of-trips.svg": partial(draw_plan, shuffle=True),
    **{f"concepts/gallery-{name}.svg": partial(draw_plan, **options) for name, options in GALLERY.items()},
    "how-to/weights-that-move.svg": draw_mixture,
}


def main(folder: Path) -> None:
    """Write all pictures."""
    for name, draw_chart in CHARTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(draw_chart())
    with tempfile.TemporaryDirectory() as home:
        write_data(Path(home))
        for name, command in COMMANDS.items():
            with contextlib.chdir(home):
                picture = draw_terminal(command)
            (folder / "how-to" / f"terminal-{name}.svg").write_text(picture)
    for name, draw in PICTURES.items():
        with tempfile.TemporaryDirectory() as home:
            picture = draw(Path(home))
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs")
