"""The output of commands: tables for people on stdout, or one JSON document."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from torch_dataloader_utils._core.paths import printable

if TYPE_CHECKING:
    from rich.console import Console

Result = TypeVar("Result")

# In a pipe tables are not folded: programs and pagers want one line per row.
_PIPE_COLUMNS = 1 << 20
# On a terminal columns are folded to this width, never below it: rich would leave columns out. A table that is wider
# even so is wrapped by the terminal.
_LEAST_COLUMNS = 8
_GAP_COLUMNS = 3  # between two columns of SIMPLE_HEAD


def emit_json(value: Any) -> None:
    """One JSON document; what JSON has no form for, such as dates and NaN, is text."""
    click.echo(json.dumps(_non_finite_as_text(value), indent=2, default=_plain, allow_nan=False))


def _non_finite_as_text(value: Any) -> Any:
    """The value with NaN and the infinities as text: json would write them bare, which no other parser reads."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _non_finite_as_text(each) for key, each in value.items()}
    return [_non_finite_as_text(each) for each in value] if isinstance(value, (list, tuple)) else value


def _plain(value: Any) -> Any:
    # numpy scalars know their Python value; dates and the like are text.
    return value.item() if hasattr(value, "item") else str(value)


def console() -> "Console":
    """The console that tables are printed on: stdout."""
    from rich.console import Console

    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else _PIPE_COLUMNS, highlight=False)


def say(text: str = "") -> None:
    """One line, whatever the names and values in it hold."""
    click.echo(printable(text))


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Lines of a name and a value, in two columns."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        say(f"{name:<{width}}  {value}")


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[str] = ()) -> None:
    """A table; columns named in `left` are flush left, the others flush right."""
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table

    headers = [printable(header) for header in headers]
    rows = [[printable(cell) for cell in row] for row in rows]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for header in headers:
        table.add_column(_literal(header), justify="left" if header in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(_literal(cell) for cell in row))
    shown = console()
    widest = [max(map(cell_len, cells)) for cells in zip(headers, *rows, strict=True)]
    least = sum(min(width, _LEAST_COLUMNS) + _GAP_COLUMNS for width in widest)
    shown.size = (max(shown.width, least), shown.height)
    # rich would end the process by itself, with exit code 1, where nobody reads the output any more.
    with shown.capture() as text:
        shown.print(table)
    click.echo(text.get(), nl=False)


def map_groups(function: Callable[[int], Result], num_groups: int, label: str) -> Iterator[Result]:
    """The result of `function` for each number of a row group, in order, by one thread a core.

    label: of the progress bar, which is on stderr where that is a terminal.
    """
    from torch_dataloader_utils._observe.work_bar import work_bar
    from torch_dataloader_utils._runtime.parallel import map_in_order, threads_for
    from torch_dataloader_utils._runtime.threads import available_cpus

    threads = available_cpus()
    with threads_for(threads, "tdu-groups") as pool:
        results = map_in_order(function, range(num_groups), pool, 4 * threads)
        with work_bar(label) as on_progress:
            for done, result in enumerate(results, start=1):
                yield result
                if on_progress is not None:
                    on_progress(done, num_groups)


def _literal(cell: str) -> Any:
    from rich.text import Text

    # Text, not markup: "[a]" in a path or a value is only that.
    return Text(cell)


def format_rows(count: int | None) -> str:
    """A row count for people; UNKNOWN (negative) and None in words."""
    return "unknown" if count is None or count < 0 else f"{count:,}"
