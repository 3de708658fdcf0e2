"""Draws what commands of `tdu` print on a terminal, for pages of docs/how-to."""

import json
import re
from html import escape
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner
from examples.demo.data import write_trips

from torch_dataloader_utils import open_loader
from torch_dataloader_utils.cli.app import app

# Name of the picture, without "terminal-": the command.
COMMANDS = {
    "scan": "scan .demo/trips --partitioning hive",
    "doctor": "doctor .demo/trips",
    "plan": "plan .demo/trips --ranks 3 --workers 2 --batch-size 256 --shuffle --split-rows 2000",
    "verify": "verify .demo/trips",
    "vocabulary": "vocabulary .demo/trips --partitioning hive --columns year",
    "head": "head .demo/trips --batch-size 4 --batches 1",
    "state": "state checkpoint.json .demo/trips",
    "shuffle": "shuffle .demo/trips trips-shuffled --partitioning hive",
    "tokens": "tokens build .demo/web web_corpus --column tokens --eod 0 --vocabulary 1000",
}
_LETTER, _LINE, _MARGIN = 6.9, 18, 14
_CLASSES = {"36": "cyan", "33": "yellow", "31": "red"}
_STYLE = (
    "text{font:11.5px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
    "text{fill:#dfe6ec}"
    ".cyan{fill:#7fd0c9;font-weight:600}.yellow{fill:#f0c36a;font-weight:600}.red{fill:#ff8a80}.call{fill:#9fb4c7}"
)


def draw_terminal(command: str) -> str:
    """The command and what it prints, run in the current directory, as an SVG."""
    printed = CliRunner().invoke(app, command.split(), color=True, catch_exceptions=False).output
    # The fingerprint depends on where the data lies.
    lines = [line for line in printed.expandtabs().rstrip().splitlines() if not re.search(r" [0-9a-f]{32}$", line)]
    lines = [line.replace(f"{Path.cwd()}/", "") for line in lines]
    columns = max(len(re.sub(r"\x1b\[\d*m", "", line)) for line in [f"$ tdu {command}", *lines])
    width, height = _MARGIN * 2 + _LETTER * columns, _MARGIN * 2 + _LINE * (len(lines) + 1)
    shapes = [_text(0, [("call", f"$ tdu {command}")])]
    shapes += [_text(number, _spans(line)) for number, line in enumerate(lines, start=1)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}">'
    back = '<rect width="100%" height="100%" rx="6" fill="#161e26"/>'
    return "\n".join([head, f"<style>{_STYLE}</style>", back, *filter(None, shapes), "</svg>\n"])


def _spans(line: str) -> list[tuple[str, str]]:
    """The parts of a line with their colours."""
    spans, color = [], ""
    for part in re.split(r"(\x1b\[\d*m)", line):
        if part.startswith("\x1b["):
            code = part[2:-1]
            color = _CLASSES.get(code, "" if code in ("", "0") else color)
        elif part:
            spans.append((color, part))
    return spans


def _text(number: int, spans: list[tuple[str, str]]) -> str:
    """A line; its length is told, so that columns stand below each other in any font."""
    length = _LETTER * sum(len(text) for _, text in spans)
    parts = "".join(f'<tspan class="{color}">{escape(text, quote=False)}</tspan>' for color, text in spans)
    y = _MARGIN + _LINE * number + 12
    return f'<text x="{_MARGIN}" y="{y}" textLength="{length:g}" xml:space="preserve">{parts}</text>' if spans else ""


def write_data(folder: Path) -> None:
    """Write what the commands look at: data as `make demo` leaves it, documents, and a checkpoint."""
    write_trips(folder / ".demo" / "trips", folder / ".demo" / "trips.orc")
    (folder / ".demo" / "web").mkdir()
    documents = [[(7 * row + place) % 900 + 1 for place in range(20 + row % 50)] for row in range(2_000)]
    pq.write_table(pa.table({"tokens": documents}), folder / ".demo" / "web" / "0.parquet", row_group_size=500)
    loader = open_loader(str(folder / ".demo" / "trips"), batch_size=256, shuffle=True, num_workers=0)
    for _ in zip(range(10), loader, strict=False):
        pass
    (folder / "checkpoint.json").write_text(json.dumps({"step": 10, "loader": loader.state_dict()}))
