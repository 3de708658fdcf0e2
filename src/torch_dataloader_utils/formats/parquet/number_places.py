"""Places of decoded columns in one piece of memory, and the record batch over this memory."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils._arrow.number_batch import NumberBatch, NumberRun
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._runtime.recent import Recent
from torch_dataloader_utils._runtime.reused_memory import Bytes
from torch_dataloader_utils.formats.parquet.number_columns import NumberColumn

# Arrow wants columns to begin at multiples of this.
_ALIGNED_BYTES = 64

# Places are kept for so many numbers of rows: most row groups of a file have the same number.
_MOST_PLACES = 8


class NumberTable(NamedTuple):
    """Columns of numbers in the order in which they lie in memory once they are decoded, with their facts as arrays.

    schema: Fields of the columns. leaves: Numbers of the leaf columns, int64 [columns]. layouts: See
    `NumberColumn.layout`, int64 [columns, 7]. are_lists: bool [columns]. fixed_sizes: Length of fixed-size lists, by
    column. dtypes: Type of the values of each column; None for lists, bits and decimals, which have no place in a
    NumberBatch. have_dtypes: Whether the column has a type there, bool [columns].
    flat_places: Places by number of rows, see `Places.flat`. schemas: Schemas of some of the columns, see `some`.
    """

    columns: Sequence[NumberColumn]
    schema: pa.Schema
    leaves: Int64s
    layouts: Int64s
    are_lists: npt.NDArray[np.bool_]
    fixed_sizes: dict[int, int]
    dtypes: Sequence[np.dtype[Any] | None]
    have_dtypes: npt.NDArray[np.bool_]
    flat_places: "Recent[int, Places]"
    schemas: Recent[bytes, pa.Schema]

    @classmethod
    def of(cls, columns: Iterable[NumberColumn]) -> Self:
        """Return the table of these columns, in any order."""
        columns = sorted(columns, key=NumberColumn.kind)
        dtypes = list(map(_dtype, columns))
        return cls(
            columns=columns,
            schema=pa.schema([column.field for column in columns]),
            leaves=np.array([column.leaf for column in columns], np.int64),
            layouts=np.array([column.layout for column in columns], np.int64).reshape(len(columns), 7),
            are_lists=np.array([column.is_list for column in columns], np.bool_),
            fixed_sizes={index: column.fixed_size for index, column in enumerate(columns) if column.fixed_size},
            dtypes=dtypes,
            have_dtypes=np.array([each is not None for each in dtypes], np.bool_),
            flat_places=Recent(_MOST_PLACES),
            schemas=Recent(_MOST_PLACES),
        )

    def some(self, are_chosen: npt.NDArray[np.bool_]) -> pa.Schema:
        """Return the fields of the chosen columns: the same object for the same columns."""
        if are_chosen.all():
            return self.schema
        chosen = np.flatnonzero(are_chosen).tolist()
        return self.schemas.get(
            are_chosen.tobytes(), lambda _: pa.schema([self.columns[index].field for index in chosen])
        )


def _dtype(column: NumberColumn) -> np.dtype[Any] | None:
    return np.dtype(column.value_dtype) if column.value_dtype and not column.is_list else None


class Places(NamedTuple):
    """Places of columns in one piece of memory: values one column after the other, everything else behind all values.

    numbers: Places as the decoder takes them, int64 [columns, 10]. lengths: Bytes of values, their validity, offsets,
    and validity of lists, int64 [columns, 4]. runs: See `NumberBatch`, of all columns in a NumberBatch.
    """

    table: NumberTable
    numbers: Int64s
    lengths: Int64s
    num_rows: int
    num_bytes: int
    runs: Sequence[NumberRun]

    @classmethod
    def flat(cls, table: NumberTable, num_rows: int) -> "Places":
        """Return places for columns without lists. The places depend on the number of rows alone."""
        return table.flat_places.get(num_rows, lambda _: cls.of(table, np.full(len(table.leaves), num_rows), num_rows))

    @classmethod
    def of_rows(cls, table: NumberTable, values: Int64s, num_rows: int) -> "Places":
        """Return places for rows of one row group. values: Number of values in each chunk, by the footer."""
        if table.are_lists.any():
            return cls.of(table, np.where(table.are_lists, values, num_rows), num_rows)
        return cls.flat(table, num_rows)

    @classmethod
    def of(cls, table: NumberTable, room: Int64s, num_rows: int) -> "Places":
        """Return places for columns. room: Number of values that each column has room for.

        Only decoding counts the items of lists.
        """
        layouts, are_lists = table.layouts, table.are_lists
        levels, lists_are_optional, conversions, bits = layouts[:, 3:].T
        lengths = np.stack(
            [
                -(-room * bits // 8),
                -(-room // 8) * (levels > 0),
                (num_rows + 1) * 4 * are_lists,
                -(-num_rows // 8) * lists_are_optional,
            ],
            axis=1,
        )
        # All values, then the rest, column by column.
        aligned = -(-lengths // _ALIGNED_BYTES) * _ALIGNED_BYTES
        sizes = np.concatenate([aligned[:, 0], aligned[:, 1:].ravel()])
        starts = np.cumsum(sizes) - sizes
        others = starts[len(room) :].reshape(-1, 3)
        others[~are_lists, 1] = -1
        numbers = np.column_stack([layouts[:, :5], starts[: len(room)], others, conversions])
        runs = _runs(table, table.have_dtypes, starts, aligned[:, 0])
        return cls(table, numbers, lengths, num_rows, int(sizes.sum()), runs)

    def checked(self, memory: Bytes, results: Int64s, reasons: Sequence[str]) -> Sequence[str]:
        """Return the reasons, and "type" for fixed-size lists that are null or have another length.

        Files hold fixed-size lists as lists of any length. pyarrow makes rows of null lists, and refuses other lengths.
        """
        if not self.table.fixed_sizes:
            return reasons
        checked = list(reasons) or [""] * len(results)
        for index, size in self.table.fixed_sizes.items():
            start = self.numbers[index, 7]
            ends = memory[start : start + self.lengths[index, 2]].view(np.int32)
            if not checked[index] and (results[index, 1] or (np.diff(ends) != size).any()):
                checked[index] = "type"
        return checked

    def batches(self, memory: Bytes, results: Int64s, reasons: Sequence[str]) -> Iterator[pa.RecordBatch | NumberBatch]:
        """Yield the decoded columns, over the memory that the decoder wrote: plain numbers without nulls, then others.

        results: Nulls and null lists, int64 [columns, 2]. reasons: Reason why each column was refused; "" for a decoded
        column; empty if all columns were decoded.
        """
        if not reasons and self.table.have_dtypes.all() and not results.any():
            yield NumberBatch(self.table.schema, self.num_rows, self.runs, memory)
            return
        are_decoded = np.array([not reason for reason in reasons] or True)
        chosen = self.table.have_dtypes & (results[:, 0] == 0) & are_decoded
        if chosen.any():
            pitches = -(-self.lengths[:, 0] // _ALIGNED_BYTES) * _ALIGNED_BYTES
            are_all = (chosen == self.table.have_dtypes).all()
            runs = self.runs if are_all else _runs(self.table, chosen, self.numbers[:, 5], pitches)
            yield NumberBatch(self.table.some(chosen), self.num_rows, runs, memory)
        if chosen.all():
            return
        buffer, arrays, fields = pa.py_buffer(memory), [], []
        rows = zip(
            self.table.columns,
            self.numbers[:, 5:].tolist(),
            self.lengths.tolist(),
            results.tolist(),
            (are_decoded & ~chosen).tolist(),
            strict=True,
        )
        for column, starts, lengths, nulls, is_other in rows:
            if is_other:
                count = len(starts) if column.is_list else 2
                content = list(map(buffer.slice, starts[:count], lengths))
                arrays.append(_array(column, content, self.num_rows, *nulls))
                fields.append(column.field)
        if arrays:
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _runs(table: NumberTable, are_chosen: npt.NDArray[np.bool_], starts: Int64s, pitches: Int64s) -> list[NumberRun]:
    """Return runs of the chosen columns; their numbers count the chosen columns alone."""
    runs: list[NumberRun] = []
    chosen = np.flatnonzero(are_chosen)
    before = -2
    for number, (index, start, pitch) in enumerate(
        zip(chosen.tolist(), starts[chosen].tolist(), pitches[chosen].tolist(), strict=True)
    ):
        dtype = table.dtypes[index]
        if runs and runs[-1].dtype == dtype and before == index - 1:
            runs[-1] = runs[-1]._replace(num_columns=runs[-1].num_columns + 1)
        else:
            runs.append(NumberRun(number, 1, cast("np.dtype[Any]", dtype), start, pitch))
        before = index
    return runs


def _array(column: NumberColumn, content: Sequence[pa.Buffer], num_rows: int, nulls: int, null_lists: int) -> pa.Array:
    """Return a column; content: Buffers of values, their validity, and for lists offsets and validity of lists."""
    values, validity = content[0], content[1] if nulls else None
    data_type = column.field.type
    if not column.is_list:
        return pa.Array.from_buffers(data_type, num_rows, [validity, values], null_count=nulls)
    ends = np.frombuffer(content[2], np.int32)
    items = pa.Array.from_buffers(data_type.value_type, int(ends[num_rows]), [validity, values], null_count=nulls)
    if column.fixed_size:
        return pa.Array.from_buffers(data_type, num_rows, [None], null_count=0, children=[items])
    offsets = pa.py_buffer(ends.astype(np.int64)) if pa.types.is_large_list(data_type) else content[2]
    of_lists = [content[3] if null_lists else None, offsets]
    return pa.Array.from_buffers(data_type, num_rows, of_lists, null_count=null_lists, children=[items])
