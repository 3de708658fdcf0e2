"""Rows of batches in every output format: counted, sliced and joined."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.shape.memory import join_lists
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
    first = columns[0]
    for other in columns[1:]:
        if not _is_like(first, other):
            raise ConfigError(
                f"The sources of a blend per sample differ in column {name!r}: {_kind(first)} and {_kind(other)}. "
                "Write them with one type, or choose columns that agree."
            )
    match first:
        case Tensor():
            # The parts of one batch are small: memory of the shape stage's pool would cost more than the copy.
            return torch.cat(list(columns))
        case Ragged():
            return Ragged(*join_lists([each.values for each in columns], [each.offsets for each in columns]))
        case np.ndarray():
            return np.concatenate(columns)
        case _:
            return [value for column in columns for value in column]


def _is_like(first: Any, other: Any) -> bool:
    """Whether two columns can be joined."""
    match first:
        case Tensor() | np.ndarray():
            is_same_type = type(other) is type(first) and other.dtype == first.dtype
            return is_same_type and other.shape[1:] == first.shape[1:]
        case Ragged():
            return isinstance(other, Ragged) and _is_like(first.values, other.values)
        case _:
            return not isinstance(other, Tensor | np.ndarray | Ragged)


def _kind(column: Any) -> str:
    """What `_is_like` looks at, in words."""
    match column:
        case Tensor() | np.ndarray():
            return f"{type(column).__name__} {column.dtype} {[*column.shape[1:]]}"
        case Ragged():
            return f"Ragged of {_kind(column.values)}"
        case _:
            return "list"


def _check_alike(first: Any, other: Any) -> None:
    names = [batch.schema if isinstance(batch, pa.RecordBatch) else list(batch) for batch in (first, other)]
    if type(first) is not type(other) or names[0] != names[1]:
        raise ConfigError(
            f"The sources of a blend per sample differ in what batches hold: {names[0]} and {names[1]}. Give all of "
            "them the same columns= and output_format=."
        )


def _like(batch: Any, columns: dict[str, Any], rows: int) -> Any:
    return TensorBatch(columns, num_rows=rows) if isinstance(batch, TensorBatch) else columns
