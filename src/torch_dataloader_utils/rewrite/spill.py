"""Pass 1: scatter rows into spill files; and read the rows of one output file back from them.

A spill file has rounds, as many as memory makes necessary. A round has one fragment for each output file: an Arrow
record batch of its rows, with their words as the first column. The file ends with an index, int64:

    [rounds, outputs + 1]    first byte of each output file's fragment, and the end of the last fragment
    [2, outputs]             rows, and bytes in memory, for each output file

An output job reads its own numbers of the index, so no process holds all numbers of all spill files.
"""

import io
import secrets
from collections.abc import Iterator, Sequence
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
from torch_dataloader_utils._core.permute import stable_order
from torch_dataloader_utils._core.row_group_task import GroupRows, RowGroupTask
from torch_dataloader_utils._core.table_file import FIELD_ID
from torch_dataloader_utils.errors import CorruptFileError, UnsupportedFeatureError
from torch_dataloader_utils.rewrite.checksums import FieldPlace, add_sums, sum_columns
from torch_dataloader_utils.rewrite.order import RowOrder, Words
from torch_dataloader_utils.rewrite.pending import read_json, size_of, write_json
from torch_dataloader_utils.tables.reader import Reader

_INTEGER_BYTES = 8


class SpillFile(NamedTuple):
    """Finished spill file. index_start: First byte of its index. rounds: Number of rounds."""

    path: str
    index_start: int
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillReceipt:
    """Facts about a finished spill file.

    file: Its name; each run of a job writes a file of its own. size: Its size in bytes.
    index_start, rounds: See `SpillFile`.
    rows: Number of rows. sums: Checksum of each column. nulls: Fields with nulls; see `sum_columns`.
    """

    file: str
    size: int
    index_start: int
    rounds: int
    rows: int
    sums: list[int]
    nulls: list[list[int]]


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
        is_whole = receipt is not None and size_of(self.receipt.parent / receipt.file) == receipt.size
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
            spill = _SpillWriter(file, _words_schema(schema), self.order.outputs)
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
            index_start = spill.write_index()
        receipt = SpillReceipt(
            file=path.name,
            size=size_of(path),
            index_start=index_start,
            rounds=len(spill.rounds),
            rows=rows,
            sums=sums,
            nulls=sorted(map(list, nulls)),
        )
        write_json(self.receipt, asdict(receipt))
        return receipt

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield rows, and the number of their first row."""
        for task, first in self.groups:
            for start in range(0, task.live_rows, self.read_rows):
                stop = min(start + self.read_rows, task.live_rows)
                yield self.reader.read(task, GroupRows(start, stop)), first + start


class _SpillWriter:
    """Writer of rounds; it holds batches in the order of words, with the place where each output file's rows begin."""

    def __init__(self, file: pa.NativeFile, schema: pa.Schema, outputs: int) -> None:
        self._file, self._writer = file, pa.ipc.new_stream(file, schema)
        # Otherwise the schema would stand before the first fragment.
        self._writer.write_batch(pa.RecordBatch.from_pylist([], schema))
        self._held: list[tuple[pa.RecordBatch, list[int]]] = []
        self.held_bytes = 0
        self.rounds: list[npt.NDArray[np.int64]] = []
        self._sizes = np.zeros((2, outputs), np.int64)

    def add(self, batch: pa.RecordBatch, starts: list[int]) -> None:
        """Hold rows for the next round."""
        self._held.append((batch, starts))
        self.held_bytes += batch.nbytes

    def write_round(self) -> None:
        """Write the rows that are held, a fragment for each output file."""
        places = np.zeros(self._sizes.shape[1] + 1, np.int64)
        for output in range(self._sizes.shape[1]):
            places[output] = self._file.tell()
            parts = [batch.slice(at[output], at[output + 1] - at[output]) for batch, at in self._held]
            if parts := [part for part in parts if part.num_rows]:
                fragment = pa.concat_batches(parts)
                self._writer.write_batch(fragment)
                self._sizes[:, output] += (fragment.num_rows, fragment.nbytes)
        places[-1] = self._file.tell()
        self.rounds.append(places)
        self._held.clear()
        self.held_bytes = 0

    def write_index(self) -> int:
        """Write the index after the last round, and return its first byte."""
        start: int = self._file.tell()
        for numbers in (*self.rounds, self._sizes):
            self._file.write(numbers.astype("<i8").tobytes())
        return start


def output_sizes(spills: Sequence[SpillFile], outputs: int) -> npt.NDArray[np.int64]:
    """Return the rows, and the bytes in memory, that all spill files have for each output file: int64 [2, outputs]."""
    sizes = np.zeros((2, outputs), np.int64)
    for path, index_start, rounds in spills:
        start = index_start + rounds * (outputs + 1) * _INTEGER_BYTES
        sizes += np.fromfile(path, "<i8", 2 * outputs, offset=start).reshape(2, outputs)
    return sizes


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema without its metadata, and without dictionaries, run ends, views of text and ids of fields.

    The ids of a table's fields mean other fields, or none, in a table that the files may be added to.
    """
    return pa.schema([with_change(_without_runs(field), _plain_field) for field in schema])


def check_writable(rows: pa.RecordBatch, plain: pa.Schema) -> None:
    """Raise UnsupportedFeatureError for a column that cannot be written to a Parquet file, or is read back changed.

    plain: Plain schema of the rows.
    """
    for column, source, field in zip(rows.columns, rows.schema, plain, strict=True):
        try:
            if type_holds(source.type, _is_list_view) or type_holds(field.type, pa.types.is_dictionary):
                raise pa.ArrowNotImplementedError(str(source.type))
            wanted, sink = pa.schema([field]), io.BytesIO()
            written = plain_rows(pa.RecordBatch.from_arrays([column], names=[field.name]), wanted)
            pq.write_table(pa.Table.from_batches([written]), sink)
            (back,) = pq.read_table(pa.BufferReader(sink.getvalue())).cast(wanted).combine_chunks().to_batches()
            words = np.arange(1, rows.num_rows + 1, dtype=np.uint64)
            if sum_columns(back, words) != sum_columns(written, words):
                raise pa.ArrowInvalid(f"{source.type} comes back with other values")
        except (pa.ArrowException, OSError) as error:
            raise UnsupportedFeatureError(
                f"column {field.name!r}: pyarrow {pa.__version__} cannot write it to Parquet ({error}). Leave it out "
                "with columns=, or write it as another type."
            ) from error


def _plain_field(field: pa.Field) -> pa.Field:
    kept = {key: value for key, value in (field.metadata or {}).items() if key != FIELD_ID}
    return field.with_type(plain_type(field.type)).with_metadata(kept or None)


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


def read_spilled(
    spills: Sequence[SpillFile], output: int, outputs: int, schema: pa.Schema, low: int, high: int
) -> SpilledRows:
    """Return the rows of one output file with words in [low, high).

    Raises:
        CorruptFileError: a spill file is damaged. OSError: the disk failed.
    """
    stored = _words_schema(schema)
    parts = [_between(fragment, low, high) for spill in spills for fragment in _read(spill, output, outputs, stored)]
    found = pa.concat_batches(parts) if parts else pa.RecordBatch.from_pylist([], stored)
    words = found.column(0).to_numpy()
    order = stable_order(words)
    return SpilledRows(found.select(range(1, found.num_columns)), order, words[order])


def _read(spill: SpillFile, output: int, outputs: int, stored: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the fragments of one output file."""
    with pa.OSFile(spill.path) as file:
        for number in range(spill.rounds):
            file.seek(spill.index_start + (number * (outputs + 1) + output) * _INTEGER_BYTES)
            start, stop = np.frombuffer(file.read(2 * _INTEGER_BYTES), "<i8").tolist()
            if start == stop:
                continue
            try:
                file.seek(start)
                yield pa.ipc.read_record_batch(pa.ipc.read_message(file.read_buffer(stop - start)), stored)
            except (pa.ArrowException, OSError, ValueError, EOFError) as error:
                raise CorruptFileError(
                    f"{spill.path}: bytes {start:,} to {stop:,} do not decode ({error}). A disk or memory has damaged "
                    f"the file. Remove {Path(spill.path).parent} and run the shuffle again."
                ) from error


def _between(fragment: pa.RecordBatch, low: int, high: int) -> pa.RecordBatch:
    words = fragment.column(0).to_numpy()
    inside = np.flatnonzero((words >= np.uint64(low)) & (words <= np.uint64(high - 1)))
    return fragment if len(inside) == len(words) else take_rows(fragment, inside)
