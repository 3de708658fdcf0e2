"""Decoding of one record batch of an Arrow IPC file (Feather version 2) or stream.

Source: Arrow columnar format, "IPC File Format" and "IPC Streaming Format"; pyarrow.ipc.
"""

import sys
import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from torch_dataloader_utils._arrow.batches import rows_only
from torch_dataloader_utils._arrow.schema import type_holds
from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils._store import Span
from torch_dataloader_utils.errors import CorruptFileError
from torch_dataloader_utils.formats.arrow.messages import Message, metadata_length, read_head, stream_messages
from torch_dataloader_utils.formats.checks import (
    check_all_decoded,
    check_decoded_size,
    check_unique,
    no_such_group,
    repeated_names,
)
from torch_dataloader_utils.formats.file_cache import FileCache
from torch_dataloader_utils.formats.task_source import TaskSource

# Most bytes before a message's metadata.
_PREFIX_BYTES = 8

_streams: FileCache["ArrowStream"] = FileCache()


def arrow_stream(source: TaskSource, file: pa.NativeFile) -> "ArrowStream":
    """Return the stream that a task belongs to, cached for the next task; file: Opened stream."""
    return _streams.get(source.key, lambda: _read_stream(file, source.task.file_size))


def _read_stream(file: pa.NativeFile, file_size: int) -> tuple["ArrowStream", int]:
    file.seek(0)
    length, prefix = metadata_length(file.read(_PREFIX_BYTES))
    if not 0 < length <= file_size:
        raise pa.ArrowInvalid(f"the schema claims {length} bytes of a file of {file_size}")
    file.seek(0)
    head = file.read(prefix + length)
    return ArrowStream(head), len(head)


class ArrowStream:
    """Schema of one stream, and the places of its dictionaries, found by a walk over its messages as far as needed.

    Thread-safe: one thread walks; other threads that ask for a batch meanwhile wait for it.
    """

    def __init__(self, head: bytes) -> None:
        """Start at the schema's message; head: Bytes of the message."""
        self.schema = pa.ipc.read_schema(pa.py_buffer(head))
        self._head = head
        self._is_swapped = read_head(head, 0).is_big_endian != (sys.byteorder == "big")
        self._has_dictionaries = any(type_holds(kind, pa.types.is_dictionary) for kind in self.schema.types)
        self._lock = threading.Lock()
        self._walked_bytes = len(head)
        self._dictionaries: dict[int, _Versions] = {}

    def batch(self, source: TaskSource, file: pa.NativeFile) -> pa.RecordBatch:
        """Return the task's record batch, with all its columns; file: Opened stream.

        Raises:
            CorruptFileError: the stream has no such batch; and every error of pyarrow.
        """
        file.seek(source.task.byte_offset)
        message = file.read(source.task.byte_length)
        try:
            if not self._has_dictionaries and not self._is_swapped:
                return pa.ipc.read_record_batch(pa.py_buffer(message), self.schema)
            # A pyarrow schema keeps no byte order: numbers are swapped only in a stream with its own head.
            parts = [self._head, *self._dictionaries_before(source), message]
            return pa.ipc.open_stream(pa.py_buffer(b"".join(parts))).read_next_batch()
        except (StopIteration, EOFError) as error:
            raise _no_such_batch(source.task) from error

    def _dictionaries_before(self, source: TaskSource) -> list[bytearray]:
        """Return the dictionaries that hold for the task's batch, in the order of the stream."""
        if not self._has_dictionaries:
            return []
        offset = source.task.byte_offset
        with self._lock:
            for message in stream_messages(lambda at, length: source.span((at, length)), self._walked_bytes, offset):
                if message.dictionary is not None:
                    self._dictionaries.setdefault(message.dictionary, _Versions()).add(message)
                self._walked_bytes = message.stop
            spans = sorted(span for versions in self._dictionaries.values() for span in versions.before(offset))
        return _read_spans(source, spans)


@dataclass(slots=True)
class _Versions:
    """Messages of one dictionary, in the order of the stream.

    bases: For each message, the index of the last message that is not a delta. The values begin with that message.
    """

    spans: list[Span] = field(default_factory=list)
    bases: list[int] = field(default_factory=list)

    def add(self, message: Message) -> None:
        self.bases.append(self.bases[-1] if message.is_delta and self.bases else len(self.spans))
        self.spans.append((message.start, message.stop - message.start))

    def before(self, offset: int) -> list[Span]:
        """Return the messages that make up the dictionary at a byte of the stream."""
        count = bisect_left(self.spans, (offset, 0))
        return self.spans[self.bases[count - 1] : count] if count else []


def _read_spans(source: TaskSource, spans: Sequence[Span]) -> list[bytearray]:
    parts = [bytearray(length) for _, length in spans]
    source.read_into(spans, [memoryview(part) for part in parts])
    return parts


def _no_such_batch(task: RowGroupTask) -> CorruptFileError:
    return CorruptFileError(
        f"{task.where} does not exist: the stream has no record batch at byte {task.byte_offset}. Plan the data set "
        "again."
    )


_MAGIC = b"ARROW1"


def decode_arrow(source: TaskSource, fields: pa.Schema) -> pa.RecordBatch:
    """Return one record batch with the columns of `fields` that the file has, in the file's types and order.

    Arrow files are memory images, and their offsets and indices are used unchecked. Everything is validated here, so
    that a damaged file cannot make a later step read outside its buffers (0.35 ms for a batch of 65,536 rows and seven
    columns). A remote batch is fetched whole.

    Raises:
        SchemaError, UnsupportedFeatureError, FileChangedError; and every error of pyarrow.
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
    # First of all: the count of bytes uses the offsets.
    batch.validate(full=True)
    check_decoded_size(task, batch.nbytes, source.max_row_group_bytes)
    return batch if names else rows_only(batch.num_rows)


def _of_file(source: TaskSource, file: pa.NativeFile, wanted: list[int]) -> pa.RecordBatch:
    reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False))
    if source.task.ordinal >= reader.num_record_batches:
        raise no_such_group(source.task, reader.num_record_batches)
    return reader.get_batch(source.task.ordinal)


def _spans(source: TaskSource) -> list[Span]:
    # The rest (the schema of a stream, dictionaries) is fetched when the reader asks for it.
    return [source.tail_span(), (source.task.byte_offset, source.task.byte_length)]
