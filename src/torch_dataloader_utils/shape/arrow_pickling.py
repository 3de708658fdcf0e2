"""Arrow data on its way through multiprocessing's pickle, without pyarrow's two surprises.

Pickling a slice writes all rows behind it (a batch of 1,024 rows would carry its row group of 65,536). And parts of
types are lost: name, nullability and metadata of the items of fixed-size lists, and whether the keys of a map are
sorted.
"""

from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pyarrow as pa


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
