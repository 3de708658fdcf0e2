"""Filters against partition values and other facts about whole files: files are ruled out before a row is read."""

import re
from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from torch_dataloader_utils._arrow.row_filter import shown_filter
from torch_dataloader_utils._core.inventory import Int64s, PartitionColumn
from torch_dataloader_utils.formats.file_scan import Verdict

_PARQUET = ds.ParquetFileFormat()
_CALL = re.compile(r"\w\(")
_COMPARED_CONDITION = re.compile(r"\) (==|<|<=|>|>=) | (==|<|<=|>|>=) \(")


def judge_partitions(
    row_filter: pc.Expression,
    used: Sequence[str],
    schema: pa.Schema,
    partitions: Sequence[PartitionColumn],
    num_files: int,
) -> Int64s:
    """Return one Verdict for each file, from its partition values alone.

    Never MAYBE if the filter uses partition columns only; else OUT for files whose values rule out every row.
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


def guarantee(values: Sequence[tuple[pa.Field, Any]]) -> pc.Expression | None:
    """Return an expression that is true for every row with these partition values; None without values."""
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
    """Return one Verdict for each file: OUT if its guarantee rules out every row, else MAYBE.

    guarantees: For each file, an expression that is true for all its rows; None if nothing is known.
    """
    # A fragment stands for a file. Its path is a number, and is never opened.
    nowhere = pafs.LocalFileSystem()
    fragments = [
        _PARQUET.make_fragment(str(i), nowhere, partition_expression=known) for i, known in enumerate(guarantees)
    ]
    survivors = ds.FileSystemDataset(fragments, schema, _PARQUET, nowhere).get_fragments(filter=row_filter)
    verdicts = np.full(len(fragments), Verdict.OUT, dtype=np.int64)
    verdicts[[int(fragment.path) for fragment in survivors]] = Verdict.MAYBE
    return verdicts


def has_exact_statistics(data_type: pa.DataType) -> bool:
    """Return whether bounds in statistics of this type are exact, and hold for every row that is not null."""
    return bool(pa.types.is_integer(data_type) or pa.types.is_boolean(data_type) or pa.types.is_temporal(data_type))


def counts_contradict(values: int, nulls: int, *, has_bounds: bool = False) -> bool:
    """Return whether statistics of a column cannot be right: too many nulls, or bounds without a value.

    values: Number of values, nulls included. nulls: Number of nulls. has_bounds: Whether statistics have a least or
    greatest value.

        5 values, 6 nulls                      True
        5 values, 5 nulls, and bounds          True
        5 values, 4 nulls, and bounds          False
    """
    return not 0 <= nulls <= values or (has_bounds and nulls == values)


def may_be_true_for_nan(row_filter: pc.Expression) -> bool:
    """Return whether the filter may keep a NaN, as far as its text says. Statistics do not count NaN."""
    # A comparison with NaN is false unless it is "!=". Arrow prints comparisons infix, in parentheses: one beside a
    # parenthesis compares conditions, as in "((x > 1) == false)". Everything else is printed as a call "name(...)",
    # which may be true for NaN. A name or string literal that looks like one of these costs pruning only.
    text = shown_filter(row_filter)
    return "!=" in text or any(pattern.search(text) for pattern in (_CALL, _COMPARED_CONDITION))
