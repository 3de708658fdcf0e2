"""Pickle tensors and Arrow data with their own rows only, and in every dtype.

torch and pyarrow pickle a view with the whole storage behind it (a batch of 1,024 rows would carry its row group of
65,536 rows), and torch refuses to pickle uint16, uint32 and uint64.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


@dataclass(frozen=True, slots=True)
class UnsignedTensor:
    """Tensor of a dtype that torch refuses to pickle, as signed bits."""

    bits: Tensor
    dtype: torch.dtype


def signed(tensor: Tensor) -> Tensor:
    """View uint16, uint32 and uint64 as signed integers of the same bits, which all of torch supports."""
    carrier = _SIGNED.get(tensor.dtype)
    return tensor if carrier is None else tensor.view(carrier)


def unsigned(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """View a tensor from `signed` as its first dtype, `dtype`, again.

    A tensor of `dtype` is returned as it is: derivatives do not go through a view as bits.
    """
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def portable(tensor: Tensor) -> Tensor | UnsignedTensor:
    """Return the value to pickle for `tensor`: only its own rows, in a dtype that pickles. See `from_portable`."""
    if tensor.untyped_storage().nbytes() > tensor.nbytes:
        tensor = tensor.clone()
    return UnsignedTensor(signed(tensor), tensor.dtype) if tensor.dtype in _SIGNED else tensor


def from_portable(column: object) -> Any:
    """Return the tensor that `portable` converted; any other value is returned as it is."""
    return unsigned(column.bits, column.dtype) if isinstance(column, UnsignedTensor) else column


def register_arrow_pickling() -> None:
    """Make multiprocessing pickle record batches, tables and arrays with only their own rows, and with whole types.

    This also holds for members of other objects. Chunked arrays are pickled as their arrays.
    """
    ForkingPickler.register(pa.RecordBatch, _reduce_batch)
    ForkingPickler.register(pa.Table, lambda table: (pa.Table.from_batches, (table.to_batches(), table.schema)))
    for kind in _subclasses(pa.Array):
        ForkingPickler.register(kind, _reduce_array)
    ForkingPickler.register(pa.FixedSizeListType, lambda kind: (pa.list_, (kind.value_field, kind.list_size)))
    ForkingPickler.register(pa.MapType, lambda kind: (pa.map_, (kind.key_field, kind.item_field, kind.keys_sorted)))


def _subclasses(kind: Any) -> Iterator[Any]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def _reduce_batch(batch: pa.RecordBatch) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    sent = _as_stream(batch)
    return batch.__reduce__() if sent is None else (_batch_from, (sent,))


def _reduce_array(array: pa.Array) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    sent = _as_stream(pa.record_batch([array], [""]))
    return array.__reduce__() if sent is None else (_array_from, (sent,))


def _as_stream(batch: pa.RecordBatch) -> pa.Buffer | None:
    """Return only the rows of the batch, as an IPC stream; None for types that an IPC stream changes.

    Such types are unregistered extension types, categories of extension types (pyarrow 26.0.1), and more than 64 levels
    of lists and structs.
    """
    sink = pa.BufferOutputStream()
    try:
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        sent = sink.getvalue()
        return sent if pa.ipc.open_stream(sent).schema == batch.schema else None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _batch_from(sent: pa.Buffer) -> pa.RecordBatch:
    return pa.ipc.open_stream(sent).read_next_batch()


def _array_from(sent: pa.Buffer) -> pa.Array:
    return _batch_from(sent).column(0)
