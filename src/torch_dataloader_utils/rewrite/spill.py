"""Pass 1: scatter rows into spill files; and read the rows of one output file back from them.

A spill file has rounds, as many as memory makes necessary. A round has one fragment for each output file: an Arrow
record batch of its rows, with their words as the first column.
"""

import io
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils._arrow.batches import decode_runs, take_rows
from torch_dataloader_utils._arrow.documents import plain_type
from torch_dataloader_utils._arrow.schema import decode_schema, type_holds, with_change
from torch_dataloader_utils._core.inventory import GroupRows, RowGroupTask
from torch_dataloader_utils._core.permute import stable_order
from torch_dataloader_utils.errors import UnsupportedFeatureError
from torch_dataloader_utils.rewrite.checksums import FieldPlace, add_sums, sum_columns
from torch_dataloader_utils.rewrite.order import RowOrder, Words
from torch_dataloader_utils.rewrite.pending import read_json, size_of, write_json
from torch_dataloader_utils.tables.reader import Reader

Fragments = tuple[tuple[Path, tuple[tuple[int, int], ...]], ...]
"""Spill files, each with the first and the last byte of each fragment of one output file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillReceipt:
    """Facts about a finished spill file.

    file: Its name; each run of a job writes a file of its own.
    rows: Number of rows. sums: Checksum of each column. nulls: Fields with nulls; see `sum_columns`.
    rounds: For each round, the first byte of each output file's fragment, and the end of the last fragment.
    output_rows, output_bytes: Rows, and bytes in memory, for each output file.
    """

    file: str
    rows: int
    sums: list[int]
    nulls: list[list[int]]
    rounds: list[list[int]]
    output_rows: list[int]
    output_bytes: list[int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpillJob:
    """Neighbouring row groups that one task scatters into one spill file; picklable.

    groups: Row group, and the number of its first row among all rows.
    schema: Plain schema of the rows, as IPC bytes.
    held_bytes: Bytes of rows in memory after which a round is written.
    read_rows: Rows that are read at once.
    """

    receipt: Path
    reader: Reader
    groups: tuple[tuple[RowGroupTask, int], ...]
    order: RowOrder
    schema: bytes
    held_bytes: int
    read_rows: int

    def finished(self) -> SpillReceipt | None:
        """Return the receipt of the spill file, None if there is none."""
        content = read_json(self.receipt)
        receipt = None if content is None else SpillReceipt(**content)
        is_whole = receipt is not None and size_of(self.receipt.parent / receipt.file) == receipt.rounds[-1][-1]
        return receipt if is_whole else None

    def run(self) -> SpillReceipt:
        """Scatter the rows.

        Raises:
            DataError, StoreError: a row group cannot be read. OSError: the disk is full or failed.
        """
        schema = decode_schema(self.schema)
        sums, nulls, rows = [0] * len(schema), set[FieldPlace](), 0
        path = self.receipt.with_name(f"{self.receipt.stem}-{secrets.token_hex(4)}.arrow")
        with pa.OSFile(str(path), "wb") as file:
            spill = _SpillFile(file, _words_schema(schema), self.order.outputs)
            for batch, first in self._batches():
                batch = plain_rows(batch, schema)
                words = self.order.words(first, batch.num_rows)
                found, fields = sum_columns(batch, words)
                sums = add_sums(sums, found)
                nulls |= fields
                rows += batch.num_rows
                order = stable_order(words)
                spill.add(_with_words(words[order], take_rows(batch, order)), self.order.cut(words[order]))
                if spill.held_bytes >= self.held_bytes:
                    spill.write_round()
            spill.write_round()
        receipt = SpillReceipt(
            file=path.name,
            rows=rows,
            sums=sums,
            nulls=sorted(map(list, nulls)),
            rounds=spill.rounds,
            output_rows=spill.output_rows,
            output_bytes=spill.output_bytes,
        )
        write_json(self.receipt, asdict(receipt))
        return receipt

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield rows, and the number of their first row."""
        for task, first in self.groups:
            for start in range(0, task.live_rows, self.read_rows):
                stop = min(start + self.read_rows, task.live_rows)
                yield self.reader.read(task, GroupRows(start, stop)), first + start


class _SpillFile:
    """Writer of rounds; it holds batches in the order of words, with the place where each output file's rows begin."""

    def __init__(self, file: pa.NativeFile, schema: pa.Schema, outputs: int) -> None:
        self._file, self._writer = file, pa.ipc.new_stream(file, schema)
        # Otherwise the schema would stand before the first fragment.
        self._writer.write_batch(pa.RecordBatch.from_pylist([], schema))
        self._held: list[tuple[pa.RecordBatch, list[int]]] = []
        self.held_bytes = 0
        self.rounds: list[list[int]] = []
        self.output_rows, self.output_bytes = [0] * outputs, [0] * outputs

    def add(self, batch: pa.RecordBatch, starts: list[int]) -> None:
        """Hold rows for the next round."""
        self._held.append((batch, starts))
        self.held_bytes += batch.nbytes

    def write_round(self) -> None:
        """Write the rows that are held, a fragment for each output file."""
        places = []
        for output in range(len(self.output_rows)):
            places.append(self._file.tell())
            parts = [batch.slice(at[output], at[output + 1] - at[output]) for batch, at in self._held]
            if parts := [part for part in parts if part.num_rows]:
                fragment = pa.concat_batches(parts)
                self._writer.write_batch(fragment)
                self.output_rows[output] += fragment.num_rows
                self.output_bytes[output] += fragment.nbytes
        self.rounds.append([*places, self._file.tell()])
        self._held.clear()
        self.held_bytes = 0


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema without its metadata, and without dictionaries, run ends and views of text.

    Raises:
        UnsupportedFeatureError: a column that Parquet cannot hold.
    """
    plain = pa.schema(
        [with_change(_without_runs(field), lambda each: each.with_type(plain_type(each.type))) for field in schema]
    )
    for each in plain:
        try:
            if type_holds(each.type, _is_list_view):
                raise pa.ArrowNotImplementedError(str(each.type))
            pq.ParquetWriter(io.BytesIO(), pa.schema([each])).close()
        except pa.ArrowException as error:
            raise UnsupportedFeatureError(
                f"column {each.name!r}: pyarrow {pa.__version__} cannot write it to Parquet ({error}). Leave it out "
                "with columns=."
            ) from error
    return plain


def plain_rows(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows in the types of a plain schema."""
    if rows.schema.equals(schema):
        return rows
    columns = [decode_runs(each) if pa.types.is_run_end_encoded(each.type) else each for each in rows.columns]
    cast = [each if each.type == to.type else each.cast(to.type) for each, to in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=schema)


def _without_runs(field: pa.Field) -> pa.Field:
    return field.with_type(field.type.value_type) if pa.types.is_run_end_encoded(field.type) else field


def _is_list_view(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(data_type) or pa.types.is_large_list_view(data_type))


def _with_words(words: Words, rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(words), *rows.columns], schema=_words_schema(rows.schema))


def _words_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field("", pa.uint64()), *schema])


class SpilledRows(NamedTuple):
    """Rows of one output file. order: The order in which they are written. words: Their words in that order."""

    rows: pa.RecordBatch
    order: npt.NDArray[np.int64]
    words: Words


def read_spilled(fragments: Fragments, schema: pa.Schema, low: int, high: int) -> SpilledRows:
    """Return the rows of one output file with words in [low, high)."""
    stored = _words_schema(schema)
    parts = [_between(fragment, low, high) for fragment in _read(fragments, stored)]
    found = pa.concat_batches(parts) if parts else pa.RecordBatch.from_pylist([], stored)
    words = found.column(0).to_numpy()
    order = stable_order(words)
    return SpilledRows(found.select(range(1, found.num_columns)), order, words[order])


def _read(fragments: Fragments, stored: pa.Schema) -> Iterator[pa.RecordBatch]:
    for path, spans in fragments:
        with pa.OSFile(str(path)) as file:
            for start, stop in spans:
                file.seek(start)
                yield pa.ipc.read_record_batch(pa.ipc.read_message(file.read_buffer(stop - start)), stored)


def _between(fragment: pa.RecordBatch, low: int, high: int) -> pa.RecordBatch:
    words = fragment.column(0).to_numpy()
    inside = np.flatnonzero((words >= np.uint64(low)) & (words <= np.uint64(high - 1)))
    return fragment if len(inside) == len(words) else take_rows(fragment, inside)
