"""Tensors and Arrow data on their way through pickle, without surprises of torch and pyarrow.

Pickling a view writes the whole storage behind it (a batch of 1,024 rows would carry its row group of 65,536),
and torch refuses to pickle uint16, uint32 and uint64.
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
    """A tensor of one of the refused dtypes, as signed bits."""

    bits: Tensor
    dtype: torch.dtype


def signed(tensor: Tensor) -> Tensor:
    """The same bits under a dtype that all of torch knows: uint16, uint32, uint64 as signed integers."""
    carrier = _SIGNED.get(tensor.dtype)
    return tensor if carrier is None else tensor.view(carrier)


def unsigned(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor that `signed` made of one of `dtype`, under that dtype again.

    Others are not viewed: derivatives do not go through a view as bits.
    """
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def portable(tensor: Tensor) -> Tensor | UnsignedTensor:
    """The value to pickle for `tensor`: its own rows only, of a dtype that pickles. `from_portable` undoes it."""
    if tensor.untyped_storage().nbytes() > tensor.nbytes:
        tensor = tensor.clone()
    return UnsignedTensor(signed(tensor), tensor.dtype) if tensor.dtype in _SIGNED else tensor


def from_portable(column: Any) -> Any:
    """The tensor that was made portable; anything else passes through."""
    return unsigned(column.bits, column.dtype) if isinstance(column, UnsignedTensor) else column


def register_arrow_pickling() -> None:
    """From now on multiprocessing pickles record batches, tables and arrays with their own rows and whole types.

    Also where they are members of something else. Chunked arrays need nothing: they are pickled as their arrays.
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
    """The rows of the batch, and no others, as an IPC stream; None for types that do not come out of it as they were.

    Those are extension types that nobody registered, categories of extension types (pyarrow 26.0.1), and more than 64
    levels of lists and structs.
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
