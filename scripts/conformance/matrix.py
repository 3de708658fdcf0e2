"""Cases, readers, and the verdict of each reader about each case."""

import contextlib
import datetime
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa

Rows = list[dict[str, Any]]
Reader = Callable[[Any], Rows]

OURS = "this library"
BY_HAND = "by hand"
CORPORA = Path(__file__).parents[3] / "shared" / "corpora"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

EXACT, DIFFERENT = "exact", "**other rows**"


@dataclass(frozen=True)
class Written:
    """What a case wrote: where it is, and its rows.

    rows: None if another engine wrote it and only readers can say; then readers are compared with this library.
    options: options of this library's loader. folder: working directory of all readers, for paths that are relative.
    """

    place: Any
    rows: Rows | None
    options: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = Path()


@dataclass(frozen=True)
class Case:
    """A feature of a format and a program that writes it, into an empty folder."""

    feature: str
    writer: str
    write: Callable[[Path], Written]


@dataclass(frozen=True)
class Format:
    """Cases of one format and the readers of all of them, besides this library."""

    name: str
    cases: Sequence[Case]
    read: Callable[..., Rows]
    readers: Mapping[str, Reader]


@dataclass(frozen=True)
class Verdict:
    """What every reader said of one case. num_rows: rows that are there; None if no reader could say."""

    case: Case
    num_rows: int | None
    cells: Mapping[str, str]


def judge(case: Case, of: Format, folder: Path) -> Verdict:
    """Write one case, let every reader read it, and compare."""
    folder.mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        written = case.write(folder)
        readers = {OURS: lambda place: of.read(place, **written.options), **of.readers}
        with contextlib.chdir(written.folder):
            found = {name: _rows_or_refusal(reader, written.place) for name, reader in readers.items()}
    truth = found[OURS] if written.rows is None else in_order(written.rows)
    cells = {name: _cell(rows, truth) for name, rows in found.items()}
    if written.rows is None and list(cells.values()).count(EXACT) == 1:
        cells[OURS] = f"{len(truth):,} rows"  # no other reader says the same
    return Verdict(case, None if isinstance(truth, str) else len(truth), cells)


def _cell(rows: list[str] | str, truth: list[str] | str) -> str:
    if isinstance(rows, str):
        return rows
    if isinstance(truth, str):  # nobody knows the rows
        return f"{len(rows):,} rows"
    return EXACT if rows == truth else DIFFERENT


def _rows_or_refusal(reader: Reader, place: Any) -> list[str] | str:
    try:
        return in_order(reader(place))
    except Exception as error:  # noqa: BLE001 - readers raise what they like
        return f"refused: {first_words(error)}"
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of libraries in Rust
            raise
        return f"refused: panic, {first_words(error)}"


def first_words(error: BaseException, most: int = 70) -> str:
    """Return the class of an error and the beginning of its text, without paths."""
    words = " ".join(word for word in str(error).split() if "/" not in word)
    text = words if len(words) <= most else words[:most].rsplit(" ", 1)[0] + " ..."
    return f"{type(error).__name__}: {text}".replace("|", "/").replace("`", "'").replace("<", "‹").replace("*", "")


def in_order(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return rows as text that compares: in any order of rows and columns, with NaN and null."""
    return sorted(repr(sorted((name, _plain(value)) for name, value in row.items())) for row in rows)


def _plain(value: Any) -> Any:
    """Return a value as all readers give it, whatever Python class they choose for it."""
    match value:
        case datetime.datetime() if value.tzinfo is not None:
            return value.astimezone(datetime.UTC).replace(tzinfo=None)
        case UUID():
            return value.bytes
        case str() if _UUID.fullmatch(value):
            return UUID(value).bytes
        case memoryview() | bytearray():
            return bytes(value)
        case dict():
            return sorted((name, _plain(each)) for name, each in value.items())
        case list() | tuple():
            return [tuple(map(_plain, each)) if isinstance(each, tuple) else _plain(each) for each in value]
        case _ if hasattr(value, "to_pydatetime"):
            return _plain(value.to_pydatetime())
        case _:
            return value


def section(of: Format, verdicts: list[Verdict]) -> str:
    """Return the part of the page about one format."""
    readers = [OURS, *of.readers]
    ours = [each.cells[OURS] for each in verdicts]
    exact, refused = ours.count(EXACT), sum(cell.startswith("refused") for cell in ours)
    alone = len(ours) - exact - refused - ours.count(DIFFERENT)
    summary = f"{len(ours)} cases. This library reads {exact} exactly, refuses {refused}"
    summary += f", and reads {alone} that no other reader confirms." if alone else "."
    lines = [
        f"## {of.name}\n",
        f"{summary}\n",
        f"| feature | written by | rows | {' | '.join(readers)} |",
        f"|---|---|---:|{'---|' * len(readers)}",
    ]
    for each in verdicts:
        rows = "" if each.num_rows is None else f"{each.num_rows:,}"
        cells = [each.case.feature, each.case.writer, rows, *(each.cells[name] for name in readers)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def loader_rows(door: Any, place: Any, **options: Any) -> Rows:
    """Return all rows that both ranks of a job deliver; of one rank, if the second would repeat a row for its step."""
    ranks = [_loader(door, place, num_ranks=2, rank=rank, **options) for rank in range(2)]
    if ranks[0].plan.repeated_rows:
        ranks = [_loader(door, place, **options)]
    return [row for loader in ranks for batch in loader for row in batch.to_pylist()]


def _loader(door: Any, place: Any, **options: Any) -> Any:
    fixed = {"output_format": "arrow", "batch_size": 64, "num_workers": 0, "check_ranks": False}
    return door.create_dataloader(place, **fixed, **options)[0]


def arrow_rows(table: Any) -> Rows:
    """Return the rows of a table of pyarrow, or of an object that pyarrow makes a table of."""
    return pa.table(table).to_pylist()


def rows_of(start: int, stop: int) -> pa.Table:
    """Return rows that have their number."""
    numbers = range(start, stop)
    return pa.table(
        {
            "row": pa.array(numbers, pa.int64()),
            "kind": pa.array([None if each % 7 == 0 else f"kind {each % 3}" for each in numbers]),
            "value": pa.array([each / 3 for each in numbers]),
        }
    )


TWO = rows_of(0, 100), rows_of(100, 150)
