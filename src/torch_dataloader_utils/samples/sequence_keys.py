"""Where runs begin among rows, from the columns that name groups and order rows; rows out of order are errors."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from torch_dataloader_utils._arrow.documents import to_plain
from torch_dataloader_utils._arrow.schema import nested_path, values_at
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils.errors import DataError, NullValueError
from torch_dataloader_utils.samples.sequences import Sequences
from torch_dataloader_utils.tables.holdout import hash_values

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyRows:
    """Facts of consecutive rows; row 0 begins a run if nothing leads it.

    begins: Rows that begin a run, int64, without row 0. order: Values of the column `order`, int64 [rows]; zeros
    without the column. events: Rows at which the column `at` is true; None for every row.
    """

    begins: Int64s
    order: Int64s
    events: Int64s | None

    @classmethod
    def of(cls, rows: pa.RecordBatch, sequences: Sequences, where: str) -> "KeyRows":
        """Return the facts of these rows. rows: With the key columns. where: Name of the row group, for messages.

        Raises:
            NullValueError: a null among the keys.
            DataError: rows of a group are not in order, or have a gap that is an error.
        """
        for name in (*sequences.by, *filter(None, [sequences.order])):
            _check_nulls(name, rows, where)
        is_new = np.zeros(max(rows.num_rows - 1, 0), dtype=np.bool_)
        for name in sequences.by:
            is_new |= _differs(to_plain(key_values(rows, name)))
        order = np.zeros(rows.num_rows, dtype=np.int64)
        if sequences.order is not None:
            values = key_values(rows, sequences.order)
            order = order_numbers(values)
            is_same = ~is_new
            wrong, is_gap = broken_steps(order[:-1], order[1:], sequences, values.type)
            if (wrong & is_same).any():
                row = int(np.flatnonzero(wrong & is_same)[0]) + 1
                raise out_of_order(rows.slice(row - 1, 1), rows.slice(row, 1), sequences, f"{where}, live row {row}")
            is_new |= is_gap
        events = None
        if sequences.has_events:
            events = np.flatnonzero(key_values(rows, str(sequences.at)).fill_null(False).to_numpy(zero_copy_only=False))
        return cls(begins=np.flatnonzero(is_new) + 1, order=order, events=events)


def key_values(rows: pa.RecordBatch, name: str) -> pa.Array:
    """Return the values of a key: of a column, or of a field of a struct by its dotted name."""
    return values_at(rows, nested_path(rows.schema, name))


def _differs(values: pa.Array) -> Bools:
    """Return whether each value differs from the value before it, for all but the first."""
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    differs: Bools = pc.not_equal(values.slice(1), values.slice(0, max(len(values) - 1, 0))).to_numpy(
        zero_copy_only=False
    )
    return differs


def broken_steps(before: Int64s, after: Int64s, sequences: Sequences, data_type: pa.DataType) -> tuple[Bools, Bools]:
    """Return which steps from one row of a group to the next are errors, and which are gaps that end a run.

    A step back is an error; with `gaps`, a step of 0 too.
    """
    if sequences.interval is None:
        return after < before, np.zeros(len(after), dtype=np.bool_)
    most = sequences.most_step(to_plain(pa.array([], data_type)).type)
    wrong = after <= before
    # As unsigned numbers, a difference beyond int64 does not wrap around.
    is_gap = ~wrong & (after.view(np.uint64) - before.view(np.uint64) > np.uint64(most or 0))
    return (wrong | is_gap, is_gap) if sequences.interval.at_gap == "error" else (wrong, is_gap)


def order_numbers(values: pa.Array) -> Int64s:
    """Return integers, dates or times as int64 in their own unit."""
    values = to_plain(values)
    if pt.is_temporal(values.type):
        values = values.view(pa.int64() if values.type.bit_width == 64 else pa.int32())
    numbers: Int64s = values.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def group_hashes(rows: pa.RecordBatch, sequences: Sequences) -> Int64s:
    """Return a hash of the group of each row, 64 bits; rows of one group have the same."""
    hashes = np.zeros(rows.num_rows, dtype=np.uint64)
    for seed, name in enumerate(sequences.by):
        hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + hash_values(key_values(rows, name), seed)
    return hashes.view(np.int64)


def _check_nulls(name: str, rows: pa.RecordBatch, where: str) -> None:
    path = nested_path(rows.schema, name)
    values = values_at(rows, path)
    if values.null_count:
        row = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise NullValueError(
            f"{where}, live row {row}: {name!r} is null in {values.null_count} rows, and sequences need the group and "
            "the order of every row. Write a value, or leave these rows out: "
            f"filters=~pc.field({', '.join(map(repr, path))}).is_null()."
        )


def out_of_order(before: pa.RecordBatch, after: pa.RecordBatch, sequences: Sequences, where: str) -> DataError:
    """Return the error for two neighbouring rows of one group. where: File, row group and row of the second one."""
    name = str(sequences.order)
    old, new = _value(before, name), _value(after, name)
    group = "".join(f" of {each}={_value(before, each)}" for each in sequences.by)
    step = f"{where}: {name}={new} follows {name}={old}{group}"
    if order_numbers(key_values(after, name))[0] < order_numbers(key_values(before, name))[0]:
        return DataError(f"{step}, so the rows are not in order. {how_to_sort(sequences)}")
    if old == new:
        return DataError(f"{step}: equal values with gaps=. Remove the duplicates, or leave gaps= out.")
    return DataError(f'{step}, a step of more than {sequences.gaps}. Fill the gap, or pass "split" to end runs there.')


def how_to_sort(sequences: Sequences) -> str:
    """Return what to do about rows that are not neighbours or not in order."""
    columns = ", ".join([*sequences.by, *filter(None, [sequences.order])])
    return (
        f"Write the data sorted by {columns}, in files that are in order by name: in DuckDB, with ORDER BY {columns}; "
        "see docs/how-to/sequences.md."
    )


def _value(row: pa.RecordBatch, name: str) -> Any:
    return key_values(row, name)[0].as_py()
