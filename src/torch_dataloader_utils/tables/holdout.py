"""Rows of the two parts of a `Holdout`: which stored rows each row group gives, and which values of a column.

Without `by`, rows are chosen by their place in the file, whatever is deleted or filtered: nothing has to be read. A
file is known by its name, the directories such as year=2024 above the name, and its size in bytes, so that a copy or a
part of the data set has the same parts.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils._arrow.documents import plain_type, to_plain
from torch_dataloader_utils._arrow.schema import is_text
from torch_dataloader_utils._arrow.xxh64 import ByteSpans, Words, byte_spans, hash_bytes, hash_integers, integer_words
from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s, Inventory, StringColumn
from torch_dataloader_utils._core.option_values import Holdout
from torch_dataloader_utils._core.permute import Purpose, random_words, stable_order
from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils._runtime.parallel import map_watched
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.tables.live_rows import group_deletes


def part_of(inventory: Inventory, holdout: Holdout | None, threads: int) -> Inventory:
    """Return the inventory of one part; row groups without rows of the part are left out.

    Live rows are UNKNOWN where only reading can count them: with `by`, and where a filter or equality deletes chose the
    live rows.

    Raises:
        ConfigError: the inventory is of another part.
    """
    if inventory.holdout is not None or holdout is None:
        raise ConfigError(
            f"{inventory.source}: the inventory has one part of the rows, {inventory.holdout}; this call has "
            f"holdout={holdout}. Pass the same holdout=, or an inventory from scan_files, which has all rows."
        )
    inventory = replace(inventory, holdout=holdout, notes=(*inventory.notes, f"a part of the rows: {holdout}"))
    groups, files = inventory.groups, inventory.files
    if holdout.by is not None:
        uncounted = np.full(len(groups), UNKNOWN, dtype=np.int64)
        return replace(inventory, groups=replace(groups, live_rows=uncounted), nulls={})
    held = _held_rows(
        _file_keys(files.paths, files.sizes, holdout)[groups.file], groups.first_row, groups.physical_rows, holdout
    )
    rows = held if holdout.part == "holdout" else groups.physical_rows - held
    live = np.where((groups.live_rows == groups.physical_rows) & (groups.physical_rows != UNKNOWN), rows, UNKNOWN)
    some_deleted = np.flatnonzero((groups.live_rows != UNKNOWN) & (groups.live_rows < groups.physical_rows)).tolist()
    live[some_deleted] = map_watched(
        lambda group: _live_rows(inventory.task(group), holdout), some_deleted, threads=threads, name="tdu-holdout"
    )
    # Each row that is left out may be one of those with nulls.
    lost = int((groups.live_rows - live.clip(min=0)).sum(where=groups.live_rows != UNKNOWN))
    return replace(
        inventory,
        groups=replace(groups, live_rows=live).take(np.flatnonzero(live != 0)),
        nulls={name: count - lost for name, count in inventory.nulls.items() if count > lost},
    )


def _live_rows(task: RowGroupTask, holdout: Holdout) -> int:
    """Return the live rows of one part of a row group; UNKNOWN if more than deletes by position left rows out."""
    deleted = group_deletes(task)
    if deleted is None or task.live_rows != task.physical_rows - len(deleted):
        return UNKNOWN
    (others,) = other_parts([task], [task.physical_rows], holdout)
    return task.physical_rows - len(np.union1d(deleted, others))


def left_out(deleted: Int64s | None, task: RowGroupTask, num_rows: int, holdout: Holdout | None) -> Int64s | None:
    """Return the deleted rows and the rows of the other part, ascending; None for no rows.

    deleted: Deleted rows, counted from the first row of the row group. num_rows: Stored rows of the row group; UNKNOWN
        if they are not counted yet, and then only the deleted rows are returned.
    """
    if holdout is None or holdout.by is not None or num_rows == UNKNOWN:
        return deleted
    (others,) = other_parts([task], [num_rows], holdout)
    return others if deleted is None else np.union1d(deleted, others)


def other_parts(tasks: Sequence[RowGroupTask], num_rows: Sequence[int], holdout: Holdout) -> list[Int64s]:
    """Return the rows that are not in the part, ascending, of each row group; see `left_out`."""
    sizes, first_rows = (np.array([getattr(task, name) for task in tasks]) for name in ("file_size", "first_row"))
    keys = _file_keys(StringColumn.of(task.path for task in tasks), sizes, holdout)
    held = _held_rows(keys, first_rows, np.array(num_rows), holdout)
    rows = []
    for task, key, count, held_count in zip(tasks, keys.tolist(), num_rows, held.tolist(), strict=True):
        words = random_words(count, seed=holdout.seed, epoch=key, purpose=Purpose.HOLDOUT, index=task.ordinal)
        is_held = _smallest(words, held_count)
        rows.append(np.flatnonzero(~is_held if holdout.part == "holdout" else is_held))
    return rows


def _smallest(words: Words, count: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the `count` smallest words; of equal words, the first are smaller."""
    if count == 0:
        return np.zeros(len(words), dtype=np.bool_)
    is_small: npt.NDArray[np.bool_] = words <= np.partition(words, count - 1)[count - 1]
    if np.count_nonzero(is_small) != count:
        is_small[:] = False
        is_small[stable_order(words)[:count]] = True
    return is_small


def _held_rows(keys: Words, first_row: Int64s, num_rows: Int64s, holdout: Holdout) -> Int64s:
    """Return how many rows of each row group are held out: the fraction, rounded up or down.

    The sum over the row groups of a file is its fraction too, rounded up or down by chance.

        a tenth of 14 and 14 rows      1 and 1, 2 and 1, or 1 and 2
    """
    share = holdout.share
    before = share.numerator * first_row.clip(min=0) + (keys % np.uint64(share.denominator)).astype(np.int64)
    after = before + share.numerator * num_rows.clip(min=0)
    held: Int64s = after // share.denominator - before // share.denominator
    return held


def _file_keys(paths: StringColumn, sizes: Int64s, holdout: Holdout) -> Words:
    """Return a word for each file, a hash of its name and size."""
    starts, ends = _names(paths)
    names = hash_bytes(ByteSpans(paths.data, starts, ends - starts), holdout.seed)
    return hash_integers(names ^ hash_integers(sizes.astype(np.uint64), holdout.seed), holdout.seed)


def _names(paths: StringColumn) -> tuple[Int64s, Int64s]:
    """Return where the name of each file begins and ends in the bytes of the paths, with Hive directories above it.

    /t/year=2024/month=01/a.parquet                 year=2024/month=01/a.parquet
    https://host/t/a.parquet?signature=12           a.parquet
    """
    first, ends = paths.offsets[:-1], paths.offsets[1:]
    queries = np.append(np.flatnonzero(paths.data == ord("?")), len(paths.data))
    ends = np.minimum(ends, queries[np.searchsorted(queries, first)])
    slashes = np.append(-1, np.flatnonzero(paths.data == ord("/")))
    equals = np.flatnonzero(paths.data == ord("="))
    at = np.searchsorted(slashes, ends) - 1  # the slash before each name
    while True:
        above = np.maximum(at - 1, 0)
        has_equals = np.searchsorted(equals, slashes[above]) < np.searchsorted(equals, slashes[at])
        is_partition = has_equals & (slashes[above] >= first)
        if not is_partition.any():
            break
        at = np.where(is_partition, above, at)
    return np.maximum(slashes[at] + 1, first), ends


def repeats_exactly(data_type: pa.DataType) -> bool:
    """Return whether values of the type repeat exactly, and have a hash: integers, text, dates, decimals."""
    plain = plain_type(data_type.storage_type if isinstance(data_type, pa.BaseExtensionType) else data_type)
    kinds = (
        *(pt.is_integer, pt.is_boolean, pt.is_decimal, pt.is_date, pt.is_time, pt.is_timestamp, pt.is_duration),
        *(is_text, pt.is_fixed_size_binary),
    )
    return any(is_kind(plain) for is_kind in kinds)


def check_by(name: str, data_type: pa.DataType) -> None:
    """Raise ConfigError unless the values of a column, or of a field inside of one, can be divided into parts."""
    if not repeats_exactly(data_type):
        raise ConfigError(
            f"Holdout.by={name!r}: the column is {data_type}. Pass a column with values that repeat exactly: "
            "integers, text, dates or decimals; a field of a struct by its dotted name."
        )


def is_in_part(values: pa.Array, holdout: Holdout) -> npt.NDArray[np.bool_]:
    """Return a mask of the values of the part: a value is held out if its XXH64 is below the fraction of 2^64."""
    share = holdout.share
    limit = np.uint64((share.numerator << 64) // share.denominator)
    is_held: npt.NDArray[np.bool_] = hash_values(values, holdout.seed) < limit
    return is_held if holdout.part == "holdout" else ~is_held


def hash_values(values: pa.Array, seed: int) -> Words:
    """Return the XXH64 of each value: integers, dates and times as 8 bytes, text as UTF-8, nulls as empty text."""
    values = to_plain(values.storage if isinstance(values.type, pa.BaseExtensionType) else values)  # a UUID: 16 bytes
    if pt.is_temporal(values.type):
        values = values.view(pa.int64() if values.type.bit_width == 64 else pa.int32())
    elif pt.is_boolean(values.type):
        values = values.cast(pa.int8())
    elif pt.is_decimal(values.type) or pt.is_fixed_size_binary(values.type):
        values = values.cast(pa.string() if pt.is_decimal(values.type) else pa.binary())
    if pt.is_integer(values.type):
        hashed = hash_integers(integer_words(values), seed)
    else:
        hashed = hash_bytes(byte_spans(values), seed)
    if values.null_count:
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        hashed[is_null] = hash_bytes(byte_spans(pa.array([""])), seed)
    return hashed
