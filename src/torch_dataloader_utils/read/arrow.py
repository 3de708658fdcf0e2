"""One record batch of an Arrow IPC file (Feather version 2) or stream, decoded.

Source: Arrow columnar format, "IPC File Format" and "IPC Streaming Format"; pyarrow.ipc.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from torch_dataloader_utils._store import Span
from torch_dataloader_utils.read.arrow_stream import arrow_stream
from torch_dataloader_utils.read.checks import (
    check_all_decoded,
    check_decoded_size,
    check_unique,
    no_such_group,
    repeated_names,
)
from torch_dataloader_utils.read.contiguous import rows_only
from torch_dataloader_utils.read.source import TaskSource

_MAGIC = b"ARROW1"


def decode_arrow(source: TaskSource, fields: Sequence[Any]) -> Any:
    """The rows of one record batch, columns `fields` as far as the file has them, in the file's types and order.

    Arrow files are memory images, whose offsets and indices are used unchecked. So that a damaged file cannot make a
    later step read outside its buffers, everything is validated here (0.35 ms for a batch of 65,536 rows and seven
    columns). A remote batch is fetched whole.

    Raises:
        SchemaError, UnsupportedFeatureError, FileChangedError; and whatever pyarrow raises.
    """
    task = source.task
    with source.open(lambda: _spans(source)) as file:
        file.seek(max(0, task.file_size - len(_MAGIC)))
        stream = None if bytes(file.read(len(_MAGIC))) == _MAGIC else arrow_stream(source, file)
        schema = pa.ipc.open_file(file).schema if stream is None else stream.schema
        known = set(schema.names)
        names = [field.name for field in fields if field.name in known]
        check_unique(task, repeated_names(schema.names), names)
        # One column is enough to count rows.
        wanted = [schema.get_field_index(name) for name in names] or [0][: len(schema)]
        batch = _of_file(source, file, wanted) if stream is None else stream.batch(source, file)
    check_all_decoded(task, names, batch)
    # Before its bytes are counted, which uses the offsets.
    batch.validate(full=True)
    check_decoded_size(task, batch.nbytes, source.max_row_group_bytes)
    return batch if names else rows_only(batch.num_rows)


def _of_file(source: TaskSource, file: Any, wanted: list[int]) -> Any:
    reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False))
    if source.task.ordinal >= reader.num_record_batches:
        raise no_such_group(source.task, reader.num_record_batches)
    return reader.get_batch(source.task.ordinal)


def _spans(source: TaskSource) -> list[Span]:
    # The rest (the schema of a stream, dictionaries) is fetched when the reader asks for it.
    return [source.tail_span(), (source.task.byte_offset, source.task.byte_length)]
