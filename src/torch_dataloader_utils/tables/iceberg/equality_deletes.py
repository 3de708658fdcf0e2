"""Rows of a row group that equality delete files delete, by their keys.

`deletes` finds the delete files that apply to each data file, and has deletes by position.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq

from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils._core.inventory import FileFormat, Int64s
from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils._core.table_file import EqualityDeleteFile, TableFile, field_id
from torch_dataloader_utils._store import Buffer, Store, redact
from torch_dataloader_utils.errors import SchemaError
from torch_dataloader_utils.formats.errors import foreign_errors
from torch_dataloader_utils.formats.file_cache import FileCache
from torch_dataloader_utils.formats.parquet.trailer import open_checked
from torch_dataloader_utils.tables.iceberg.stored_fields import (
    FileColumn,
    check_distinct,
    identify,
    innermost,
    names_key,
    project_columns,
)

# Bytes of the key sets of one process. Sets of a few million keys fit.
_CAPACITY_BYTES = 512 << 20
# Bytes of the keys of single delete files. Streaming writers add a small file with each commit, and each data file then
# has its own set of all later delete files: 500,000 reads for 1,000 commits without this cache.
_FILE_KEYS_BYTES = 128 << 20

_key_sets: FileCache["KeySet"] = FileCache(_CAPACITY_BYTES)
_file_keys: FileCache[list[pa.Array]] = FileCache(_FILE_KEYS_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeySet:
    """Distinct keys of one or more columns.

    values: Distinct values of each column.
    prefixes: For each column but the first, the distinct keys of the columns up to this column, ascending int64. A key
        is the place of its prefix (one column less), times the number of distinct values, plus the place of its value.

        keys (a, 1) (b, 1) (b, 2)      values [a, b] and [1, 2], prefixes [0, 2, 3]
    """

    values: tuple[pa.Array, ...]
    prefixes: tuple[Int64s, ...]

    @classmethod
    def of(cls, columns: Sequence[pa.Array]) -> "KeySet":
        """Return the set of the rows of these columns."""
        values = tuple(map(_distinct, columns))
        prefixes: list[Int64s] = []
        keys = _places(columns[0], values[0]) if len(columns) > 1 else np.zeros(0, dtype=np.int64)
        for column, distinct in zip(columns[1:], values[1:], strict=True):
            # Keys are numbered again after each column, so that the product of two counts always fits into 63 bits.
            unique, keys = np.unique(keys * len(distinct) + _places(column, distinct), return_inverse=True)
            prefixes.append(unique)
        return cls(values=values, prefixes=tuple(prefixes))

    @property
    def nbytes(self) -> int:
        """Bytes of memory held, about."""
        return sum(each.nbytes for each in (*self.values, *self.prefixes))

    def contains(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
        """Return for each row of these columns whether it is in the set."""
        keys = _places(columns[0], self.values[0])
        found = keys >= 0
        if found.any():
            for column, distinct, prefix in zip(columns[1:], self.values[1:], self.prefixes, strict=True):
                place = _places(column, distinct)
                wanted = keys * len(distinct) + place
                keys = np.minimum(np.searchsorted(prefix, wanted), len(prefix) - 1)
                found &= (place >= 0) & (prefix[keys] == wanted)
        return found


def deleted_by_keys(
    task: RowGroupTask,
    batch: pa.RecordBatch,
    columns: Mapping[int, FileColumn],
    extra: TableFile,
    open_store: Callable[[str], Store],
) -> Int64s:
    """Return the rows of the batch that equality deletes delete, ascending.

    batch: Decoded rows, with all key columns that the file has. columns: Columns of the file by field id.

    Raises:
        SchemaError, CorruptFileError, FileChangedError, StoreError: a delete file cannot be used.
    """
    deleted = np.zeros(batch.num_rows, dtype=np.bool_)
    keys = key_fields(extra)
    by_keys = sorted(extra.equality_deletes, key=lambda each: each.key_ids)
    for key_ids, group in groupby(by_keys, key=lambda each: each.key_ids):
        wanted = [keys.field(str(key_id)) for key_id in key_ids]
        arrays = project_columns(task, batch, wanted, columns, extra)
        rows = [innermost(array) for array in arrays]
        deleted |= _key_set(tuple(group), wanted, extra, open_store).contains(rows)
    return np.flatnonzero(deleted)


def key_fields(extra: TableFile) -> pa.Schema:
    """Return the schema of all key columns; see `TableFields.keys`."""
    return decode_schema(extra.table.keys)


def _key_set(
    files: tuple[EqualityDeleteFile, ...],
    wanted: Sequence[pa.Field],
    extra: TableFile,
    open_store: Callable[[str], Store],
) -> KeySet:
    def load() -> tuple[KeySet, int]:
        parts = [_keys_of(file, wanted, extra, open_store) for file in files]
        keys = KeySet.of([pa.concat_arrays([part[index] for part in parts]) for index in range(len(wanted))])
        return keys, keys.nbytes

    pinned = tuple((file.path, file.identity) for file in files)
    return _key_sets.get_for_all(pinned, load, _reading(wanted, extra))


def _keys_of(
    file: EqualityDeleteFile, wanted: Sequence[pa.Field], extra: TableFile, open_store: Callable[[str], Store]
) -> list[pa.Array]:
    """Return the key columns of one delete file, cached because other data files need them too."""

    def load() -> tuple[list[pa.Array], int]:
        columns = _read_keys(file, wanted, extra, open_store(file.path))
        return columns, sum(each.nbytes for each in columns)

    return _file_keys.get((file.path, file.identity), load, _reading(wanted, extra))


def _reading(wanted: Sequence[pa.Field], extra: TableFile) -> tuple[int | str, ...]:
    """Return the part of a cache key beside the files: under other names or types the same files give other keys."""
    return (names_key(extra.table), *(str(each.type) for each in wanted))


def _read_keys(file: EqualityDeleteFile, wanted: Sequence[pa.Field], extra: TableFile, store: Store) -> list[pa.Array]:
    task = RowGroupTask(
        path=file.path,
        file_size=file.file_size,
        identity=file.identity,
        file_format=file.file_format,
        ordinal=0,
        first_row=0,
        physical_rows=-1,
        live_rows=-1,
        byte_offset=0,
        byte_length=file.file_size,
    )
    (data,) = store.ranges(file.path, [(0, file.file_size)], file.identity, task.ordinal)
    with foreign_errors(task, lambda: True):
        table = _read_table(file, data)
        columns = identify(table.schema, extra.table)
        missing = [each.name for each in wanted if not _holds(columns, each)]
        if missing:
            raise SchemaError(
                f"{task.where}: this equality delete file lacks its key column of field id {missing[0]}. Its manifest "
                "or the file is wrong."
            )
        check_distinct(task, table.schema, [columns[field_id(each)].name for each in wanted])
        batch = table.combine_chunks().to_batches()[0] if table.num_rows else _no_rows(table.schema)
        return [innermost(array) for array in project_columns(task, batch, wanted, columns, extra)]


def _holds(columns: Mapping[int, FileColumn] | Mapping[int | str, FileColumn], key: pa.Field) -> bool:
    """Return whether the file has the key column, inside of its structs too."""
    column = columns.get(field_id(key))
    if column is None or not pa.types.is_struct(key.type):
        return column is not None
    return _holds(column.children, key.type.field(0))


def _read_table(file: EqualityDeleteFile, data: Buffer) -> pa.Table:
    if file.file_format == FileFormat.ORC:
        return pa_orc.ORCFile(pa.BufferReader(data)).read()
    # The units are the units of data files.
    options = {"page_checksum_verification": True, "coerce_int96_timestamp_unit": "us"}
    open_file = partial(pq.ParquetFile, pa.BufferReader(data), **options)
    return open_checked(data, redact(file.path), open_file).read(use_threads=False)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], each.type) for each in schema], schema=schema)


def _distinct(column: pa.Array) -> pa.Array:
    """Return the distinct values; integers ascending, unless some are null.

    Sorted integers can be searched: Arrow's hash table of 2.6 million integers takes 200 MB and 0.2 s for each row
    group.
    """
    if not pa.types.is_integer(column.type) or column.null_count:
        return column.unique()
    ascending = np.sort(column.to_numpy())
    is_first = np.ones(len(ascending), dtype=np.bool_)
    np.not_equal(ascending[1:], ascending[:-1], out=is_first[1:])
    return pa.array(ascending[is_first], column.type)


def _places(column: pa.Array, distinct: pa.Array) -> Int64s:
    """Return the place of each value in `distinct` (made by `_distinct`); -1 for a value that is missing."""
    if _are_searched(column, distinct):
        ascending, values = distinct.to_numpy(), column.fill_null(0).to_numpy()
        # Values are searched in ascending order. Random searches wait for memory: a million take four times as long.
        order = np.argsort(values)
        place = np.empty(len(values), dtype=np.int64)
        place[order] = np.searchsorted(ascending[:-1], values[order])
        is_there = (ascending[place] == values) & column.is_valid().to_numpy(zero_copy_only=False)
        return np.where(is_there, place, -1)
    found = pc.index_in(column, value_set=distinct)
    places: Int64s = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return places


def _are_searched(column: pa.Array, distinct: pa.Array) -> bool:
    """Return whether to search in the sorted values. For few values, Arrow's hash table is small and faster."""
    return pa.types.is_integer(distinct.type) and distinct.null_count == 0 and 4 * len(distinct) > len(column)
