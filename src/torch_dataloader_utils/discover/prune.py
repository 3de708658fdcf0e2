"""Decides by partition values and statistics which files and row groups a filter keeps, before a row is read."""

import json
import logging
import re
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from torch_dataloader_utils._core.inventory import Int64s, PartitionColumn
from torch_dataloader_utils._formats.arrow_schema import leaf_ranges, type_holds
from torch_dataloader_utils._formats.parquet_trailer import has_sound_bounds
from torch_dataloader_utils._formats.row_filter import shown_filter
from torch_dataloader_utils._store import Buffer
from torch_dataloader_utils.discover.file_scan import Verdict

_log = logging.getLogger(__name__)

_PARQUET = ds.ParquetFileFormat()
_CALL = re.compile(r"\w\(")
_COMPARED_CONDITION = re.compile(r"\) (==|<|<=|>|>=) | (==|<|<=|>|>=) \(")
_MISTAKEN_DECIMALS = re.compile(r"parquet-mr version 1\.[0-9]\.")


def judge_partitions(
    row_filter: pc.Expression,
    used: Sequence[str],
    schema: pa.Schema,
    partitions: Sequence[PartitionColumn],
    num_files: int,
) -> Int64s:
    """One Verdict for each file, from its partition values alone.

    Never MAYBE if the filter uses partition columns only; else OUT for files of which the values rule out every row.
    """
    known = [column for column in partitions if column.name in used]
    if not known:
        return np.full(num_files, Verdict.MAYBE, dtype=np.int64)
    codes = np.stack([column.codes for column in known])
    tuples, inverse = np.unique(codes, axis=1, return_inverse=True)
    values = [[column.values[code] for code in row] for column, row in zip(known, tuples.tolist(), strict=True)]
    fields = [schema.field(column.name) for column in known]
    if len(known) == len(set(used)):
        verdicts = _exact(row_filter, fields, values)
    else:
        rows = zip(*values, strict=True)
        verdicts = judge_guarantees(
            row_filter, schema, [guarantee(list(zip(fields, row, strict=True))) for row in rows]
        )
    return verdicts[inverse.reshape(-1)]


def judge_groups(
    fragment: ds.ParquetFileFragment,
    partition: Sequence[tuple[pa.Field, Any]],
    row_filter: pc.Expression,
    used: Sequence[str],
    *,
    tail: Buffer,
    where: str,
) -> Int64s:
    """One Verdict a row group of a Parquet file, from the statistics in its footer and the file's partition values.

    tail: the end of the file, with the footer. where: the file, for the log, which says when statistics contradict
        themselves; their row groups are MAYBE.

    Arrow's pruning decides, except where it is wrong or does not work; then all groups are MAYBE:

    - Filters on floats that could be true for NaN: statistics do not count NaN, so Arrow prunes NaN rows.
    - Decimals of parquet-mr before 1.10 (Spark 2), which ordered them by signed bytes: of 1.00 (0x64) and 2.00 (0xC8)
      it wrote 2.00 as the least.
    - Filters for which Arrow raises: on statistics of another type than the column (timestamps with a zone, durations),
      or with a cast that they do not fit.

    IN is given only for integers, bools and times without nulls, since statistics of strings may be shortened.
    """
    partition_names = {field.name for field, _ in partition}
    own = [field for field in fragment.physical_schema if field.name not in partition_names]
    bound = pa.schema(own + [field for field, _ in partition])
    read = {field.name: field.type for field in own if field.name in used}
    num_groups = fragment.metadata.num_row_groups
    verdicts = np.full(num_groups, Verdict.MAYBE, dtype=np.int64)
    if _misleads(fragment.metadata, read, row_filter):
        return verdicts
    if not has_sound_bounds(tail):
        _log.warning("%s: bounds in its statistics are not values of their columns, and none are used", where)
        return verdicts
    may_prove_in = all(value is not None for field, value in partition if field.name in used) and all(
        has_exact_statistics(kind) for kind in read.values()
    )
    leaves = _leaves_of(fragment, read)
    certain: set[int] = set()
    try:
        out = set(range(num_groups)).difference(_surviving(fragment, row_filter, bound))
        if may_prove_in:
            certain = _groups_without_nulls(fragment.metadata, leaves)
            certain.difference_update(_surviving(fragment, ~row_filter, bound))
    except pa.ArrowException as error:
        _log.debug("statistics cannot be compared with %s, and nothing is pruned: %s", shown_filter(row_filter), error)
        return verdicts
    doubtful = {index for index in out | certain if _contradicts(fragment.metadata.row_group(index), leaves)}
    if doubtful:
        _log.warning("%s: statistics of %d row groups contradict themselves and are not used", where, len(doubtful))
    verdicts[sorted(certain - doubtful)] = Verdict.IN
    verdicts[sorted(out - doubtful)] = Verdict.OUT
    return verdicts


def guarantee(values: Sequence[tuple[pa.Field, Any]]) -> pc.Expression | None:
    """An expression that is true for every row with these partition values; None without values."""
    terms = [
        pc.field(field.name).is_null() if value is None else pc.field(field.name) == pa.scalar(value, field.type)
        for field, value in values
    ]
    return reduce(and_, terms) if terms else None


def _exact(row_filter: pc.Expression, fields: Sequence[pa.Field], values: Sequence[Sequence[Any]]) -> Int64s:
    table = pa.table([pa.array(v, f.type) for v, f in zip(values, fields, strict=True)], schema=pa.schema(fields))
    table = table.append_column("", pa.array(np.arange(table.num_rows, dtype=np.int64)))
    verdicts = np.full(table.num_rows, Verdict.OUT, dtype=np.int64)
    verdicts[table.filter(row_filter).column("").to_numpy()] = Verdict.IN
    return verdicts


def judge_guarantees(
    row_filter: pc.Expression, schema: pa.Schema, guarantees: Sequence[pc.Expression | None]
) -> Int64s:
    """One Verdict for each file, of which only an expression is known that is true for all its rows (None: nothing).

    OUT where that rules out every row, else MAYBE.
    """
    # The fragments stand for files; their paths are numbers and are never opened.
    nowhere = pafs.LocalFileSystem()
    fragments = [
        _PARQUET.make_fragment(str(i), nowhere, partition_expression=known) for i, known in enumerate(guarantees)
    ]
    survivors = ds.FileSystemDataset(fragments, schema, _PARQUET, nowhere).get_fragments(filter=row_filter)
    verdicts = np.full(len(fragments), Verdict.OUT, dtype=np.int64)
    verdicts[[int(fragment.path) for fragment in survivors]] = Verdict.MAYBE
    return verdicts


def _surviving(fragment: ds.ParquetFileFragment, row_filter: pc.Expression, schema: pa.Schema) -> list[int]:
    return [group.id for group in fragment.subset(filter=row_filter, schema=schema).row_groups]


class _Leaf(NamedTuple):
    """Leaf column of a file. logical: Its logical type as Parquet's JSON."""

    repetitions: int
    definitions: int
    logical: Mapping[str, Any]


def _leaves_of(fragment: ds.ParquetFileFragment, columns: Collection[str]) -> dict[int, _Leaf]:
    """Return the leaf columns of these columns by number."""
    schema, stored = fragment.physical_schema, fragment.metadata.schema
    ranges = (leaves for name, leaves in zip(schema.names, leaf_ranges(schema), strict=True) if name in columns)
    found = {leaf: stored.column(leaf) for leaves in ranges for leaf in leaves}
    return {
        leaf: _Leaf(each.max_repetition_level, each.max_definition_level, json.loads(each.logical_type.to_json()))
        for leaf, each in found.items()
    }


def _groups_without_nulls(metadata: pq.FileMetaData, leaves: Iterable[int]) -> set[int]:
    found = set()
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        statistics = [group.column(leaf).statistics for leaf in leaves]
        if all(s is not None and s.has_min_max and s.has_null_count and s.null_count == 0 for s in statistics):
            found.add(index)
    return found


def _contradicts(group: pq.RowGroupMetaData, leaves: Mapping[int, _Leaf]) -> bool:
    """Whether the statistics of one of these leaf columns cannot be right."""
    for number, leaf in leaves.items():
        chunk = group.column(number)
        if leaf.repetitions == 0 and chunk.num_values != group.num_rows:
            return True
        found = chunk.statistics
        if found is None:
            continue
        nulls = found.null_count if found.has_null_count else 0
        values = chunk.num_values - nulls
        if nulls < 0 or values < 0 or (nulls and leaf.definitions == 0):
            return True
        if found.has_min_max and (values == 0 or not _are_bounds(found, leaf.logical)):
            return True
        least = min(values, 1 + (found.has_min_max and found.min_raw != found.max_raw))
        if found.has_distinct_count and not least <= found.distinct_count <= values:
            return True
    return False


def _are_bounds(statistics: pq.Statistics, logical: Mapping[str, Any]) -> bool:
    """Whether min and max are values of the logical type, and in its order."""
    least, most = statistics.min_raw, statistics.max_raw
    match logical["Type"], least:
        case "Int", _:
            bits, is_signed = logical["bitWidth"], logical["isSigned"]
            if not is_signed:  # stored in 32 or 64 bits with a sign
                least, most = (number % (1 << max(bits, 32)) for number in (least, most))
            start = -(1 << bits - 1) if is_signed else 0
            return bool(start <= least <= most < start + (1 << bits))
        case "Decimal", bytes():
            least, most = (int.from_bytes(number, "big", signed=True) for number in (least, most))
        case "Float16", _:
            least, most = (struct.unpack("<e", number)[0] for number in (least, most))
    return bool(least <= most)  # false for NaN


def _misleads(metadata: pq.FileMetaData, read: dict[str, pa.DataType], row_filter: pc.Expression) -> bool:
    """Whether Arrow's pruning could drop rows that the filter keeps, for these columns of this file."""
    kinds = read.values()
    if any(type_holds(kind, pa.types.is_floating) for kind in kinds) and may_be_true_for_nan(row_filter):
        return True
    is_mistaken = _MISTAKEN_DECIMALS.match(metadata.created_by or "") is not None
    return is_mistaken and any(type_holds(kind, pa.types.is_decimal) for kind in kinds)


def has_exact_statistics(data_type: pa.DataType) -> bool:
    """Whether the bounds in statistics of this type are exact, and hold for every row that is not null."""
    return bool(pa.types.is_integer(data_type) or pa.types.is_boolean(data_type) or pa.types.is_temporal(data_type))


def may_be_true_for_nan(row_filter: pc.Expression) -> bool:
    """Whether the filter may keep a NaN, as far as its text says; statistics do not count NaN."""
    # A comparison with NaN is false unless it is "!=". Arrow prints comparisons infix, in parentheses: one beside a
    # parenthesis compares conditions, as in "((x > 1) == false)". Everything else is printed as a call "name(...)",
    # which may be true for NaN. A name or string literal that looks like one of these costs pruning only.
    text = shown_filter(row_filter)
    return "!=" in text or any(pattern.search(text) for pattern in (_CALL, _COMPARED_CONDITION))
