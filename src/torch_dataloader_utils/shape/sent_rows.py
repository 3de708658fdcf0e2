"""Record batches, arrays and types on their way to another process, without pyarrow's two surprises.

pyarrow pickles all that lies behind a view (a batch of 1,024 rows would carry its row group of 65,536), and of types
that hold others not all: names, nullability and metadata of the values of fixed-size lists are lost, and whether the
keys of a map are sorted.
"""

from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pyarrow as pa


def send_own_rows() -> None:
    """Lets multiprocessing send Arrow's rows by themselves and types whole, wherever they are in what is sent.

    Chunked arrays are pickled as the arrays that they consist of.
    """
    ForkingPickler.register(pa.RecordBatch, _reduce)
    ForkingPickler.register(pa.Table, lambda table: (pa.Table.from_batches, (table.to_batches(), table.schema)))
    for kind in _subclasses(pa.Array):
        ForkingPickler.register(kind, _reduce_array)
    ForkingPickler.register(pa.FixedSizeListType, lambda kind: (pa.list_, (kind.value_field, kind.list_size)))
    ForkingPickler.register(pa.MapType, lambda kind: (pa.map_, (kind.key_field, kind.item_field, kind.keys_sorted)))


def _subclasses(kind: Any) -> Iterator[Any]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def _reduce(batch: pa.RecordBatch) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    sent = _as_stream(batch)
    return batch.__reduce__() if sent is None else (_received, (sent,))


def _reduce_array(array: pa.Array) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    sent = _as_stream(pa.record_batch([array], [""]))
    return array.__reduce__() if sent is None else (_received_array, (sent,))


def _as_stream(batch: pa.RecordBatch) -> pa.Buffer | None:
    """None where a stream gives another type: extension types that nobody registered, categories of extension types
    (pyarrow 26.0.1), more than 64 levels of lists and structs."""
    sink = pa.BufferOutputStream()
    try:
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        sent = sink.getvalue()
        return sent if pa.ipc.open_stream(sent).schema == batch.schema else None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _received(sent: pa.Buffer) -> pa.RecordBatch:
    return pa.ipc.open_stream(sent).read_next_batch()


def _received_array(sent: pa.Buffer) -> pa.Array:
    return _received(sent).column(0)
