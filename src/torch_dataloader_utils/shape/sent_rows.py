"""Record batches and types on their way to another process, without pyarrow's two surprises.

pyarrow pickles all that lies behind a view (a batch of 1,024 rows would carry its row group of 65,536), and of types
that hold others not all: names, nullability and metadata of the values of fixed-size lists are lost, and whether the
keys of a map are sorted.
"""

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pyarrow as pa


def send_own_rows() -> None:
    """Lets multiprocessing send record batches by their own rows and types whole, wherever they are in what is sent."""
    ForkingPickler.register(pa.RecordBatch, _reduce)
    ForkingPickler.register(pa.FixedSizeListType, lambda kind: (pa.list_, (kind.value_field, kind.list_size)))
    ForkingPickler.register(pa.MapType, lambda kind: (pa.map_, (kind.key_field, kind.item_field, kind.keys_sorted)))


def _reduce(batch: pa.RecordBatch) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    try:
        sent = _as_stream(batch)
        comes_as_it_is = pa.ipc.open_stream(sent).schema == batch.schema
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        comes_as_it_is = False
    # Not with extension types that nobody registered, nor with categories of extension types (pyarrow 26.0.1), nor
    # with more than 64 levels of lists and structs.
    return (_received, (sent,)) if comes_as_it_is else batch.__reduce__()


def _as_stream(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def _received(sent: pa.Buffer) -> pa.RecordBatch:
    return pa.ipc.open_stream(sent).read_next_batch()
