"""Small data sets of every kind of reader, written from the same description: row counts of row groups of files.

    SOURCES["orc"](folder, [[13, 40, 7], [22]])      two files, of three stripes and of one

Each row knows its number, `row`, and has a `payload` that only this row has.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq

from tests.samples.corpora import number_tokens, pack_corpus, samples_of, write_corpus
from tests.stream.tables import payload
from tests.tables.delta.tables import HandTable, add, column
from torch_dataloader_utils import (
    DeltaDataset,
    Holdout,
    IcebergDataset,
    Sequences,
    StructuredDataset,
    TokenBatches,
    pack_tokens,
)
from torch_dataloader_utils.stream.dataset import TableDataset

Files = list[list[int]]


@dataclass(frozen=True)
class Source:
    """A data set on disk, and the rows that one epoch of it has.

    open: makes the data set of one rank from the options of its front door.
    rows: what every epoch delivers, each once.
    rows_of: the rows of one batch.
    options: what its front door needs for it.
    is_counted: whether its plans know row counts.
    """

    open: Callable[..., TableDataset[Any]]
    rows: Counter[Any]
    rows_of: Callable[[Any], list[Any]]
    options: dict[str, Any] = field(default_factory=dict)
    is_counted: bool = True


def rows_of(batch: Any) -> list[int]:
    """The row numbers of a batch in any output format; their payloads belong to them."""
    rows, values = (np.asarray(batch[name]).tolist() for name in ("row", "payload"))
    assert values == payload(rows).tolist()
    return rows


def _numbered(start: int, rows: int) -> pa.Table:
    numbers = np.arange(start, start + rows)
    return pa.table({"row": numbers, "payload": payload(numbers)})


def _file_tables(files: Files) -> Iterable[list[pa.Table]]:
    start = 0
    for groups in files:
        tables = []
        for rows in groups:
            tables.append(_numbered(start, rows))
            start += rows
        yield tables


def _total(files: Files) -> int:
    return sum(map(sum, files))


def _of_rows(folder: Path, rows: Iterable[int], **more: Any) -> Source:
    return Source(lambda **options: StructuredDataset(str(folder), **options), Counter(rows), rows_of, **more)


def parquet(folder: Path, files: Files) -> Source:
    """Parquet files, some of whose row groups may be empty."""
    for number, tables in enumerate(_file_tables(files)):
        with pq.ParquetWriter(folder / f"{number:02}.parquet", _numbered(0, 0).schema) as writer:
            for table in tables:
                writer.write_table(table, row_group_size=max(len(table), 1))
    return _of_rows(folder, range(_total(files)))


def orc(folder: Path, files: Files) -> Source:
    """ORC files; stripes are as the writer makes them."""
    for number, tables in enumerate(_file_tables(files)):
        with pa.orc.ORCWriter(folder / f"{number:02}.orc", stripe_size=1) as writer:
            for table in tables or [_numbered(0, 0)]:
                writer.write(table)
    return _of_rows(folder, range(_total(files)), options={"format": "orc"})


def arrow(folder: Path, files: Files) -> Source:
    """Arrow files of one record batch a row group."""
    for number, tables in enumerate(_file_tables(files)):
        with pa.ipc.new_file(folder / f"{number:02}.arrow", _numbered(0, 0).schema) as writer:
            for table in tables:
                writer.write_table(table)
    return _of_rows(folder, range(_total(files)), options={"format": "arrow"})


def json_lines(folder: Path, files: Files) -> Source:
    """Files of JSON lines."""
    for number, tables in enumerate(_file_tables(files)):
        lines = [f'{{"row": {row}, "payload": {value}}}\n' for table in tables for row, value in _pairs(table)]
        (folder / f"{number:02}.jsonl").write_text("".join(lines))
    return _of_rows(folder, range(_total(files)), options={"format": "jsonl"})


def csv(folder: Path, files: Files) -> Source:
    """CSV files; the first one says which types there are."""
    for number, tables in enumerate(_file_tables([groups for groups in files if sum(groups)])):
        pa.csv.write_csv(pa.concat_tables([_numbered(0, 0), *tables]), folder / f"{number:02}.csv")
    return _of_rows(folder, range(_total(files)), options={"format": "csv"})


def _pairs(table: pa.Table) -> Iterable[tuple[int, int]]:
    return zip(table["row"].to_pylist(), table["payload"].to_pylist(), strict=True)


def filtered(folder: Path, files: Files) -> Source:
    """Parquet files of which a filter keeps two rows of three; they are counted."""
    parquet(folder, files)
    keep = pc.field("row") != pc.multiply(pc.divide(pc.field("row"), 3), 3)
    return _of_rows(folder, (row for row in range(_total(files)) if row % 3), options={"filters": keep})


def uncounted(folder: Path, files: Files) -> Source:
    """Parquet files of which a filter keeps nobody knows how many rows."""
    files = [[8], *files]  # statistics would count a group of one row
    parquet(folder, files)
    options = {"filters": pc.bit_wise_and(pc.field("row"), 3) > 0, "count_rows": False}
    return _of_rows(folder, (row for row in range(_total(files)) if row & 3), options=options, is_counted=False)


def iceberg(folder: Path, files: Files) -> Source:
    """An Iceberg table: every fifth row deleted by position, row 7 by equality."""
    # Here, so that the other sources do not need pyiceberg.
    from tests.tables.iceberg.tables import TableWriter, field_of

    writer = TableWriter(folder)
    writer.evolve(field_of(1, "row", "long"), field_of(2, "payload", "long"))
    live = set(range(_total(files)))
    for tables in _file_tables(files):
        table = pa.concat_tables([_numbered(0, 0), *tables])
        if not len(table):
            continue
        path = writer.append(table.to_pylist(), rows_per_group=10)
        gone = range(0, len(table), 5)
        writer.delete_positions([(path, place) for place in gone])
        live -= {table["row"][place].as_py() for place in gone}
    writer.delete_equal([1], [{"row": 7}])
    return Source(lambda **options: IcebergDataset(writer.metadata, **options), Counter(live - {7}), rows_of)


def delta(folder: Path, files: Files) -> Source:
    """A Delta table: every fourth row deleted by a vector."""
    table, live, actions = HandTable(folder), set(range(_total(files))), []
    for tables in _file_tables(files):
        rows = pa.concat_tables([_numbered(0, 0), *tables])
        if not len(rows):
            continue
        path = table.file(rows, row_group_size=10)
        gone = list(range(0, len(rows), 4))
        live -= {rows["row"][place].as_py() for place in gone}
        size = (folder / path).stat().st_size
        actions.append(add(path, size=size, deletionVector=table.vector(gone)))
    table.create([column("row"), column("payload")], *actions, features=["deletionVectors"])
    return Source(lambda **options: DeltaDataset(str(folder), **options), Counter(live), rows_of)


def _packed(folder: Path, files: Files, fill: str) -> Source:
    documents = [[[row * 7 % 23 for row in range(min(rows, 12))] for rows in groups] for groups in files]
    tokens = number_tokens(documents)
    packing = pack_tokens("tokens", 9, fill=fill, window_tokens=30)
    write_corpus(folder, tokens)
    samples = pack_corpus(tokens, packing)
    return Source(
        lambda **options: StructuredDataset(str(folder), pack=packing, **options), Counter(samples), samples_of
    )


def packed(folder: Path, files: Files) -> Source:
    """Documents cut into samples of nine tokens."""
    return _packed(folder, files, "greedy")


def packed_best_fit(folder: Path, files: Files) -> Source:
    """Documents put into samples where they fit best."""
    return _packed(folder, files, "best_fit")


def sequences(folder: Path, files: Files) -> Source:
    """Runs of 1 to 40 rows, in row groups of seven rows; sequences of up to five rows before each second row."""
    tables, runs, start = [], [], 0
    for groups in files:
        for rows in filter(None, groups):
            numbers = list(range(start, start + rows))
            runs.append(numbers)
            tables.append(pa.table({"run": [len(runs)] * rows, "row": numbers, "even": [n % 2 == 0 for n in numbers]}))
            start += rows
    whole = pa.concat_tables(tables)
    for number, first in enumerate(range(0, len(whole), 30)):
        pq.write_table(whole.slice(first, 30), folder / f"{number:02}.parquet", row_group_size=7)
    options = Sequences(5, at="even", by="run", order="row", gaps="error")
    expected = Counter(
        tuple(run[max(0, place - 5) : place + 1]) for run in runs for place in range(1, len(run)) if run[place] % 2 == 0
    )
    if not expected:
        return Source(StructuredDataset, expected, _rows_of_sequences)
    return Source(
        lambda **more: StructuredDataset(str(folder), sequences=options, columns=["row"], **more),
        expected,
        _rows_of_sequences,
    )


def _rows_of_sequences(batch: Any) -> list[tuple[int, ...]]:
    past, masks, targets = (
        column.to_pylist() if isinstance(column, pa.Array) else np.asarray(column).tolist()
        for column in (batch["row"], batch["sequence_mask"], batch["row_future"])
    )
    return [
        (*(row for row, is_row in zip(rows, mask, strict=True) if is_row), *target)
        for rows, mask, target in zip(past, masks, targets, strict=True)
    ]


def _with_token_batches(folder: Path, files: Files, batches: TokenBatches) -> Source:
    parquet(folder, files)
    return _of_rows(folder, range(_total(files)), options={"token_batches": batches})


def buckets(folder: Path, files: Files) -> Source:
    """Windows ordered by the values of a column."""
    return _with_token_batches(folder, files, TokenBatches("payload"))


def token_budget(folder: Path, files: Files) -> Source:
    """Batches of at most so many tokens, padded."""
    return _with_token_batches(folder, files, TokenBatches("row", max_tokens=2 * _total(files) + 8))


def padding_free(folder: Path, files: Files) -> Source:
    """Batches of at most so many tokens, without padding."""
    return _with_token_batches(folder, files, TokenBatches("row", max_tokens=3 * _total(files) + 8, padding_free=True))


def _train_part(source: Source, holdout: Holdout) -> Source:
    held_out = source.open(holdout=replace(holdout, part="holdout"), batch_size=100)
    rows = source.rows - Counter(row for batch in held_out for row in source.rows_of(batch))
    return replace(source, rows=rows, options={"holdout": holdout})


def train_part(folder: Path, files: Files) -> Source:
    """All rows of Parquet files but a third of each row group."""
    return _train_part(parquet(folder, files), Holdout(1 / 3, "train"))


def train_part_by(folder: Path, files: Files) -> Source:
    """All rows of an Iceberg table with deletes but those of a third of the values of a column."""
    return _train_part(iceberg(folder, files), Holdout(1 / 3, "train", by="payload"))


_PARTS = (train_part, train_part_by)
_READERS = (parquet, orc, arrow, json_lines, csv, filtered, uncounted, iceberg, delta)
_SHAPERS = (packed, packed_best_fit, sequences, buckets, token_budget, padding_free)
SOURCES = {write.__name__: write for write in (*_READERS, *_SHAPERS, *_PARTS)}
