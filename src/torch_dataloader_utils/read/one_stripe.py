"""A stripe of an ORC file as a file of its own, in memory.

    "ORC" · the stripe's bytes · a footer that has this stripe alone · a postscript · its length

pyarrow parses all of a file's footer whenever the file is opened, and so for each stripe. With 4,000 stripes that takes
several times as long as to decode a small one; of a store, that footer is fetched each time too.
Source: ORC specification v1, "File Tail", "Stripe Information" and "Compression".
"""

from array import array
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import pyarrow as pa

from torch_dataloader_utils._core.inventory import RowGroupTask
from torch_dataloader_utils._core.protobuf import (
    Message,
    as_message,
    as_number,
    fields,
    read_field,
    write_bytes,
    write_number,
)
from torch_dataloader_utils.read.source import TaskSource

_MAGIC = b"ORC"

# Field numbers: FileTail, as pyarrow gives it.
_TAIL_POSTSCRIPT, _TAIL_FOOTER = 1, 2

# PostScript: lengths of footer and metadata (both are written anew), codec, block size, version, writer version, magic.
_FOOTER_BYTES, _CODEC, _BLOCK_BYTES, _VERSION, _METADATA_BYTES, _WRITER_VERSION, _MAGIC_FIELD = 1, 2, 3, 4, 5, 6, 8000
_OF_POSTSCRIPT = frozenset({_CODEC, _BLOCK_BYTES, _VERSION, _WRITER_VERSION})
_POSTSCRIPT = _OF_POSTSCRIPT | {_FOOTER_BYTES, _METADATA_BYTES, _MAGIC_FIELD}

# Footer: lengths of header and content, stripes, rows (all written anew) and statistics (left out); types, the writer's
# metadata, rows between index entries, writer, calendar, the writer's software. 10 is encryption.
_HEADER_BYTES, _CONTENT_BYTES, _STRIPE, _ROWS, _STATISTICS = 1, 2, 3, 6, 7
_OF_FOOTER = frozenset({4, 5, 8, 9, 11, 12})
_LEFT_OUT = frozenset({_HEADER_BYTES, _CONTENT_BYTES, _ROWS, _STATISTICS})
_STRIPE_TAG = _STRIPE << 3 | 2

# StripeInformation: offset, bytes of index, data and footer, rows. 6 and 7 are encryption.
_OFFSET, _PARTS, _STRIPE_ROWS = 1, (2, 3, 4), 5
_OF_STRIPE = frozenset({_OFFSET, *_PARTS, _STRIPE_ROWS})

# Where the specification has no other.
_DEFAULT_BLOCK_BYTES = 256 << 10
_MOST_BLOCK_BYTES = 1 << 23

# A stripe is read whole here. Of a local file pyarrow reads only the streams of the columns that are asked for; but to
# parse a byte of a footer takes it 5 ns, and to read one from the page cache 0.1. Making a footer takes as long as
# parsing 4 KB.
_BYTES_FOR_A_FOOTER_BYTE = 8
_LEAST_FOOTER_BYTES = 4 << 10
# From a store the stripe comes whole anyway, and a tail of 64 KiB with it: a small part beyond this.
_MOST_REMOTE_BYTES = 4 << 20


class KnownTail:
    """The tail of a file with several stripes. schema: its Arrow schema. encoded: the tail as pyarrow serializes it."""

    def __init__(self, schema: Any, encoded: bytes) -> None:
        self.schema = schema
        self._encoded = encoded

    def stripe_alone(self, source: TaskSource) -> Any | None:
        """A pyarrow file that has the stripe of the task as its only one.

        None if it is better read from the file itself: that is no slower, the tail has what is not known here
        (encryption), or does not have this stripe where it was planned.

        Raises:
            FileChangedError, StoreError: as `TaskSource.read_into`.
        """
        task = source.task
        if self._parts is None or not self._parts.is_worth_it(task, is_local=source.store.is_local):
            return None
        end = self._parts.end(task)
        if end is None:
            return None
        file = pa.allocate_buffer(len(_MAGIC) + task.byte_length + len(end))
        memory = memoryview(file).cast("B")
        memory[: len(_MAGIC)] = _MAGIC
        memory[-len(end) :] = end
        source.read_into([(task.byte_offset, task.byte_length)], [memory[len(_MAGIC) : -len(end)]])
        return pa.BufferReader(file)

    # Most files of some few stripes are never asked; two threads may both do it.
    @cached_property
    def _parts(self) -> "_TailParts | None":
        try:
            return _TailParts.of(self._encoded)
        except (IndexError, ValueError, KeyError):
            return None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _TailParts:
    """The parts of a tail.

    postscript, rest: the fields of postscript and footer that files of one stripe have too. block_bytes: the size of
    compressed blocks; 0 if nothing is compressed.
    footer: the whole footer. starts: where the message of each stripe begins in it; its length is the byte before.
    """

    postscript: bytes
    block_bytes: int
    footer: bytes
    starts: "array[int]"
    rest: bytes

    @classmethod
    def of(cls, encoded: bytes) -> Self:
        """Raises IndexError, ValueError, KeyError for a tail that is not as known here."""
        tail = dict(fields(encoded))
        footer = bytes(as_message(tail[_TAIL_FOOTER]))
        postscript = dict(fields(as_message(tail[_TAIL_POSTSCRIPT])))
        if not postscript.keys() <= _POSTSCRIPT:
            raise ValueError("a field of the postscript is not known")
        block_bytes = 0
        if postscript.get(_CODEC, 0):
            block_bytes = as_number(postscript.get(_BLOCK_BYTES, _DEFAULT_BLOCK_BYTES))
            if not 0 < block_bytes <= _MOST_BLOCK_BYTES:
                raise ValueError(f"blocks of {block_bytes} bytes")
        starts, rest = _split(footer)
        kept = _written(tail[_TAIL_POSTSCRIPT], _OF_POSTSCRIPT)
        return cls(postscript=kept, block_bytes=block_bytes, footer=footer, starts=starts, rest=rest)

    def is_worth_it(self, task: RowGroupTask, *, is_local: bool) -> bool:
        """Whether a stripe alone is read faster than from its file."""
        if not is_local:
            return task.byte_length <= _MOST_REMOTE_BYTES
        saved = len(self.footer) - len(self.rest)
        return saved >= _LEAST_FOOTER_BYTES and task.byte_length <= saved * _BYTES_FOR_A_FOOTER_BYTE

    def end(self, task: RowGroupTask) -> bytes | None:
        """What comes after the bytes of a stripe in a file of its own; None if it does not lie where it was planned."""
        if task.ordinal >= len(self.starts):
            return None
        start = self.starts[task.ordinal]
        stripe = dict(fields(self.footer[start : start + self.footer[start - 1]]))
        if not stripe.keys() <= _OF_STRIPE or not all(isinstance(value, int) for value in stripe.values()):
            return None
        stripe_bytes = sum(as_number(stripe.get(number, 0)) for number in _PARTS)
        is_planned = (stripe.get(_OFFSET, 0), stripe_bytes) == (task.byte_offset, task.byte_length)
        if not is_planned or task.byte_offset + task.byte_length > task.file_size:
            return None
        stripe[_OFFSET] = len(_MAGIC)
        written = b"".join(write_number(number, as_number(value)) for number, value in stripe.items())
        footer = self._framed(
            write_number(_HEADER_BYTES, len(_MAGIC))
            + write_number(_CONTENT_BYTES, stripe_bytes)
            + write_bytes(_STRIPE, written)
            + self.rest
            + write_number(_ROWS, as_number(stripe.get(_STRIPE_ROWS, 0)))
        )
        # Readers look for the magic in the last bytes.
        lengths = write_number(_FOOTER_BYTES, len(footer)) + write_number(_METADATA_BYTES, 0)
        postscript = lengths + self.postscript + write_bytes(_MAGIC_FIELD, _MAGIC)
        return footer + postscript + bytes([len(postscript)])

    def _framed(self, footer: bytes) -> bytes:
        """The footer; in a compressed file as blocks that are stored as they are: (length << 1 | 1) in 3 bytes."""
        if not self.block_bytes:
            return footer
        # Three bytes have room for a length below the most.
        step = min(self.block_bytes, _MOST_BLOCK_BYTES - 1)
        blocks = [footer[start : start + step] for start in range(0, len(footer), step)]
        return b"".join((len(block) << 1 | 1).to_bytes(3, "little") + block for block in blocks)


def _split(footer: bytes) -> tuple["array[int]", bytes]:
    """Where each stripe's message begins, and the other fields that are kept."""
    starts, kept, start = array("q"), [], 0
    while start < len(footer):
        if footer[start] == _STRIPE_TAG and footer[start + 1] < 0x80:  # of which there may be thousands
            start += 2
            starts.append(start)
            start += footer[start - 1]
            continue
        number, _, stop = read_field(footer, start)
        if number in _OF_FOOTER:
            kept.append(footer[start:stop])
        elif number not in _LEFT_OUT:
            raise ValueError(f"field {number} of the footer is not known")
        start = stop
    if start != len(footer):
        raise IndexError("a stripe runs over the end of the footer")
    return starts, b"".join(kept)


def _written(message: int | Message, numbers: frozenset[int]) -> bytes:
    """These fields of a message, as they are."""
    message, kept, start = as_message(message), [], 0
    while start < len(message):
        number, _, stop = read_field(message, start)
        if number in numbers:
            kept.append(bytes(message[start:stop]))
        start = stop
    return b"".join(kept)
