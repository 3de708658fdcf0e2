"""Output of commands: tables for people on stdout, or one JSON document."""

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from torch_dataloader_utils._core.paths import printable

if TYPE_CHECKING:
    from rich.console import Console

Result = TypeVar("Result")

# Tables are not folded in a pipe: programs and pagers want one line per row.
_PIPE_COLUMNS = 1 << 20
# Least width of a folded column on a terminal: rich would leave columns out. The terminal wraps tables that are still
# too wide.
_LEAST_COLUMNS = 8
_GAP_COLUMNS = 3  # between two columns of SIMPLE_HEAD


def emit_json(value: Any) -> None:
    """Print one JSON document; dates, NaN and other values that JSON lacks become text."""
    click.echo(json.dumps(_non_finite_as_text(value), indent=2, default=_plain, allow_nan=False))


def _non_finite_as_text(value: Any) -> Any:
    """Return the value with NaN and infinities as text: json writes words that other parsers refuse."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _non_finite_as_text(each) for key, each in value.items()}
    return [_non_finite_as_text(each) for each in value] if isinstance(value, (list, tuple)) else value


def _plain(value: Any) -> Any:
    # numpy scalars know their Python value; dates and the like are text.
    return value.item() if hasattr(value, "item") else str(value)


def console() -> "Console":
    """Return the console for tables: stdout."""
    from rich.console import Console

    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else _PIPE_COLUMNS, highlight=False)


def say(text: str = "") -> None:
    """Print one line; control characters in names and values are escaped."""
    click.echo(printable(text))


def paint(text: str, color: str) -> str:
    """Return the text in bold and in a colour, unless NO_COLOR is set; click removes colours that no terminal gets."""
    return text if os.environ.get("NO_COLOR") else click.style(text, fg=color, bold=True)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and values in two columns."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        click.echo(f"{paint(f'{name:<{width}}', 'cyan')}  {printable(value)}")


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[str] = ()) -> None:
    """Print a table; columns in `left` are flush left, the others flush right."""
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table

    headers = [printable(header) for header in headers]
    rows = [[printable(cell) for cell in row] for row in rows]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold cyan")
    for header in headers:
        table.add_column(_literal(header), justify="left" if header in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(_literal(cell) for cell in row))
    shown = console()
    widest = [max(map(cell_len, cells)) for cells in zip(headers, *rows, strict=True)]
    least = sum(min(width, _LEAST_COLUMNS) + _GAP_COLUMNS for width in widest)
    shown.size = (max(shown.width, least), shown.height)
    # rich would end the process with exit code 1 if the reader of the output has ended.
    with shown.capture() as text:
        shown.print(table)
    click.echo(text.get(), nl=False)


def map_groups(function: Callable[[int], Result], num_groups: int, label: str) -> Iterator[Result]:
    """Yield `function(group)` for each row group in order, computed by one thread per core.

    label: label of the progress bar on stderr, shown if stderr is a terminal.
    """
    from torch_dataloader_utils._observe.work_bar import work_bar
    from torch_dataloader_utils._runtime.parallel import map_in_order, threads_for, watched
    from torch_dataloader_utils._runtime.threads import available_cpus

    threads = available_cpus()
    with threads_for(threads, "tdu-groups") as pool:
        results = map_in_order(function, range(num_groups), pool, 4 * threads)
        with work_bar(label) as on_progress:
            yield from watched(results, num_groups, on_progress)


def _literal(cell: str) -> Any:
    from rich.text import Text

    # Text, not markup: a path or a value may contain "[a]".
    return Text(cell)


def format_rows(count: int | None) -> str:
    """Return a row count for people; "unknown" for None and negative counts."""
    return "unknown" if count is None or count < 0 else f"{count:,}"
