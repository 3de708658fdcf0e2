"""Rows of batches in every output format: counted, sliced and joined."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from torch import Tensor

from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.shape.memory import join, join_lists
from torch_dataloader_utils.shape.ragged import Ragged
from torch_dataloader_utils.shape.tensor_batch import TensorBatch


def num_rows(batch: Any) -> int:
    """Rows of a batch.

    Raises:
        ConfigTypeError: it is in no output format of this package.
    """
    match batch:
        case TensorBatch() | pa.RecordBatch():
            return int(batch.num_rows)
        case dict() if batch:
            return len(next(iter(batch.values())))
    raise ConfigTypeError(
        f'per="sample" mixes rows, and a source gives {type(batch).__name__} batches (from a transform or collate '
        'function?). Apply the function to the blend\'s batches, or blend per="batch".'
    )


def slice_rows(batch: Any, start: int, stop: int) -> Any:
    """Rows [start, stop) of a batch: views."""
    if start == 0 and stop == num_rows(batch):
        return batch
    if isinstance(batch, pa.RecordBatch):
        return batch.slice(start, stop - start)
    return _like(batch, {name: column[start:stop] for name, column in batch.items()}, stop - start)


def join_rows(parts: Sequence[Any]) -> Any:
    """The rows of all parts, one after the other; one part is itself.

    Raises:
        ConfigError: parts with different columns or types.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    for part in parts[1:]:
        _check_alike(first, part)
    if isinstance(first, pa.RecordBatch):
        return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
    columns = {name: _join_columns(name, [part[name] for part in parts]) for name in first}
    return _like(first, columns, sum(map(num_rows, parts)))


def _join_columns(name: str, columns: Sequence[Any]) -> Any:
    kinds = {_kind(column) for column in columns}
    if len(kinds) > 1:
        raise ConfigError(
            f"The sources of a blend per sample differ in column {name!r}: {' and '.join(sorted(map(str, kinds)))}. "
            "Write them with one type, or choose columns that agree."
        )
    match columns[0]:
        case Tensor():
            return join(columns)
        case Ragged():
            return Ragged(*join_lists([each.values for each in columns], [each.offsets for each in columns]))
        case np.ndarray():
            return np.concatenate(columns)
        case _:
            return [value for column in columns for value in column]


def _kind(column: Any) -> tuple[Any, ...]:
    """What columns must share to be joined."""
    match column:
        case Tensor() | np.ndarray():
            return (type(column).__name__, str(column.dtype), tuple(column.shape[1:]))
        case Ragged():
            return ("Ragged", str(column.values.dtype), tuple(column.values.shape[1:]))
        case _:
            return ("list",)


def _check_alike(first: Any, other: Any) -> None:
    names = [batch.schema if isinstance(batch, pa.RecordBatch) else list(batch) for batch in (first, other)]
    if type(first) is not type(other) or names[0] != names[1]:
        raise ConfigError(
            f"The sources of a blend per sample differ in what batches hold: {names[0]} and {names[1]}. Give all of "
            "them the same columns= and output_format=."
        )


def _like(batch: Any, columns: dict[str, Any], rows: int) -> Any:
    return TensorBatch(columns, num_rows=rows) if isinstance(batch, TensorBatch) else columns
