"""Draws what commands of `tdu` print on a terminal, for docs/how-to/command-line.md."""

import re
from html import escape
from pathlib import Path

from click.testing import CliRunner
from examples.demo.data import write_trips

from torch_dataloader_utils.cli.app import app

# Name of the picture, without "terminal-": the command.
COMMANDS = {
    "scan": "scan .demo/trips --partitioning hive",
    "doctor": "doctor .demo/trips",
    "plan": "plan .demo/trips --ranks 3 --workers 2 --batch-size 256 --shuffle --split-rows 2000",
    "verify": "verify .demo/trips",
    "vocabulary": "vocabulary .demo/trips --partitioning hive --columns year",
    "head": "head .demo/trips --batch-size 4 --batches 1",
}
_LETTER, _LINE, _MARGIN = 7.25, 18, 14
_CLASSES = {"36": "cyan", "33": "yellow", "31": "red"}
_STYLE = (
    "text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
    "text{fill:#dfe6ec}"
    ".cyan{fill:#7fd0c9;font-weight:600}.yellow{fill:#f0c36a;font-weight:600}.red{fill:#ff8a80}.call{fill:#9fb4c7}"
)


def draw_terminal(command: str) -> str:
    """The command and what it prints, run in the current directory, as an SVG."""
    printed = CliRunner().invoke(app, command.split(), color=True, catch_exceptions=False).output
    # The fingerprint depends on where the data lies.
    lines = [line for line in printed.expandtabs().rstrip().splitlines() if "fingerprint" not in line]
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
    """Write the data of the commands as `make demo` leaves it."""
    write_trips(folder / ".demo" / "trips", folder / ".demo" / "trips.orc")
