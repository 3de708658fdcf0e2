"""Filters against the statistics in a Parquet footer: row groups are ruled out, or kept whole, before they are read."""

import json
import logging
import re
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from torch_dataloader_utils._arrow.row_filter import shown_filter
from torch_dataloader_utils._arrow.schema import leaf_ranges, type_holds
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._store import Buffer
from torch_dataloader_utils.formats.file_scan import Verdict
from torch_dataloader_utils.formats.parquet.trailer import has_sound_bounds
from torch_dataloader_utils.formats.statistics import counts_contradict, has_exact_statistics, may_be_true_for_nan

_log = logging.getLogger(__name__)

_MISTAKEN_DECIMALS = re.compile(r"parquet-mr version 1\.[0-9]\.")


def judge_groups(
    fragment: ds.ParquetFileFragment,
    partition: Sequence[tuple[pa.Field, Any]],
    row_filter: pc.Expression,
    used: Sequence[str],
    *,
    tail: Buffer,
    where: str,
) -> Int64s:
    """Return one Verdict for each row group, from the statistics in the footer and the file's partition values.

    tail: End of the file, with the footer. where: File, for the log. The log says when statistics contradict
        themselves; their row groups are MAYBE.

    Arrow's pruning decides, except where it is wrong or does not work; then all groups are MAYBE:

    - Filters on floats that could be true for NaN: statistics do not count NaN, so Arrow prunes NaN rows.
    - Decimals of parquet-mr before 1.10 (Spark 2), which ordered them by signed bytes: of 1.00 (0x64) and 2.00 (0xC8)
      it wrote 2.00 as the least.
    - Filters for which Arrow raises: on statistics of another type than the column (timestamps with a zone, durations),
      or with a cast that the statistics do not fit.

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


def _surviving(fragment: ds.ParquetFileFragment, row_filter: pc.Expression, schema: pa.Schema) -> list[int]:
    return [group.id for group in fragment.subset(filter=row_filter, schema=schema).row_groups]


class _Leaf(NamedTuple):
    """Leaf column of a file. logical: Logical type as Parquet's JSON."""

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
    """Return whether the statistics of one of these leaf columns cannot be right."""
    for number, leaf in leaves.items():
        chunk = group.column(number)
        if leaf.repetitions == 0 and chunk.num_values != group.num_rows:
            return True
        found = chunk.statistics
        if found is None:
            continue
        nulls = found.null_count if found.has_null_count else 0
        if counts_contradict(chunk.num_values, nulls, has_bounds=found.has_min_max):
            return True
        if (nulls and leaf.definitions == 0) or (found.has_min_max and not _are_bounds(found, leaf.logical)):
            return True
        values = chunk.num_values - nulls
        least = min(values, 1 + (found.has_min_max and found.min_raw != found.max_raw))
        if found.has_distinct_count and not least <= found.distinct_count <= values:
            return True
    return False


def _are_bounds(statistics: pq.Statistics, logical: Mapping[str, Any]) -> bool:
    """Return whether min and max are values of the logical type, and in its order."""
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
    return bool(least <= most)  # False for NaN


def _misleads(metadata: pq.FileMetaData, read: dict[str, pa.DataType], row_filter: pc.Expression) -> bool:
    """Return whether Arrow's pruning could drop rows that the filter keeps, for these columns of this file."""
    kinds = read.values()
    if any(type_holds(kind, pa.types.is_floating) for kind in kinds) and may_be_true_for_nan(row_filter):
        return True
    is_mistaken = _MISTAKEN_DECIMALS.match(metadata.created_by or "") is not None
    return is_mistaken and any(type_holds(kind, pa.types.is_decimal) for kind in kinds)
