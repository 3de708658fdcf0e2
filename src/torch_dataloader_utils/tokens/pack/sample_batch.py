"""Makes one RecordBatch of samples from documents and their layout; tokens are copied at most once.

slices of a sample      piece of doc 0 | EOD | piece of doc 1 | padding
"""

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._formats.process_memory import RECYCLED
from torch_dataloader_utils.tokens.documents import Documents
from torch_dataloader_utils.tokens.pack.layout import (
    DocumentPieces,
    Segments,
    boundaries,
    find_segments,
    segment_sizes,
)
from torch_dataloader_utils.tokens.pack.token_packing import TokenPacking

if TYPE_CHECKING:
    from collections.abc import Callable
import torch
from torch import Tensor

from torch_dataloader_utils.shape.ragged import Ragged

Array = npt.NDArray[Any]

# A view of bytes is 16 bytes: their number, then either all of them (up to 12), or the first 4, a buffer and an offset.
# Source: Arrow columnar format, "Variable-size Binary View Layout".
_INLINE_BYTES = 12
# Offsets are int32: a longer source becomes several buffers, each beginning this many bytes (a power of 2) later.
_BUFFER_BYTES = 1 << 30
# Items of 8 bytes that fill no view.
_MERGED_ITEMS = (1 << 28) - 1


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialised array in recycled memory, because touching fresh pages costs as much as a copy."""
    num_bytes = prod(shape) * dtype.itemsize
    # Everything made of an array over a memoryview keeps it, and so the memory is not recycled before that is gone.
    memory = RECYCLED.take(num_bytes).data[:num_bytes]
    array: Array = np.frombuffer(memory, dtype=dtype).reshape(shape)
    return array


def fixed_lists(rows: Array) -> pa.FixedSizeListArray:
    """A matrix [rows, width] of numbers or bools (as bool8, without a copy) as one list of `width` values a row."""
    flat = rows.reshape(-1)
    if rows.dtype == np.bool_:
        values = pa.ExtensionArray.from_storage(pa.bool8(), pa.array(flat.view(np.int8)))
    else:
        values = pa.array(flat)
    return pa.FixedSizeListArray.from_arrays(values, rows.shape[1])


def join_pairs(left: Array, left_borders: Int64s, right: Array, right_borders: Int64s) -> Array:
    """Run 0 of the left array, run 0 of the right one, run 1 of the left, ...: run i is [borders[i], borders[i + 1]).

        left 5 6 7, borders 0 2 3; right 0 0, borders 0 1 2      5 6 0 7 0

    As strings: one memcpy a run, without the GIL, into memory of Arrow's pool.
    """
    joined = pc.binary_join_element_wise(
        _strings(left, left_borders), _strings(right, right_borders), pa.scalar(b"", pa.large_binary())
    )
    _, ends, content = joined.buffers()
    if content is None:
        return np.empty(0, dtype=left.dtype)
    count = int(np.frombuffer(ends, np.int64)[len(joined)]) // left.itemsize
    return np.frombuffer(content, dtype=left.dtype, count=count)


def _strings(values: Array, borders: Int64s) -> pa.LargeBinaryArray:
    ends = pa.py_buffer(np.ascontiguousarray(borders, dtype=np.int64) * values.itemsize)
    return pa.Array.from_buffers(pa.large_binary(), len(borders) - 1, [None, ends, pa.py_buffer(values)])


def join_slices(sources: Sequence[Array], source: npt.NDArray[np.integer], start: Int64s, count: Int64s) -> Array:
    """sources[source[i]][start[i]:start[i] + count[i]] for all i, one after the other.

        sources (5 6 7 8) and (0), source 0 1 0, start 2 0 0, count 2 1 3      7 8 0 5 6 7

    Slices may overlap and come in any order. To Arrow each is a view of bytes, and casting views to an array of bytes
    is one memcpy a slice, without the GIL, into memory of Arrow's pool.
    """
    source, start, count = _merge_neighbours(source, start, count)
    dtype, item = sources[0].dtype, sources[0].itemsize
    views = np.zeros((len(count), 4), dtype=np.int32)
    views[:, 0] = count * item
    is_inline = count <= _INLINE_BYTES // item
    buffers: list[pa.Buffer] = []
    for number, array in enumerate(sources):
        own = source == number
        # The first 4 bytes of a longer view serve comparisons, and these are never compared.
        views[own, 2:] = _locate(start[own] * item, len(buffers))
        views[own & is_inline, 1:] = _inline(array, start[own & is_inline])
        content = np.ascontiguousarray(array).view(np.uint8)
        buffers += [pa.py_buffer(content[begin:]) for begin in range(0, max(1, len(content)), _BUFFER_BYTES)]
    strings = pa.Array.from_buffers(pa.binary_view(), len(views), [None, pa.py_buffer(views), *buffers])
    total = int(count.sum())
    joined = strings.cast(pa.large_binary()).buffers()[2]
    return np.frombuffer(joined, dtype=dtype, count=total) if total else np.empty(0, dtype=dtype)


def _merge_neighbours(
    source: npt.NDArray[np.integer], start: Int64s, count: Int64s
) -> tuple[npt.NDArray[np.integer], Int64s, Int64s]:
    """The same slices, with those that follow each other in one source as one."""
    goes_on = (start[1:] == start[:-1] + count[:-1]) & (source[1:] == source[:-1])
    # A view holds less than 2 GiB, and neighbours no more than this stay below it together.
    if not len(count) or int(count.sum()) > _MERGED_ITEMS:
        return source, start, count
    first = np.flatnonzero(np.concatenate([[True], ~goes_on]))
    return source[first], start[first], np.add.reduceat(count, first)


def _locate(offsets: Int64s, first_buffer: int) -> Int64s:
    """Buffer and offset in it of bytes of a source, [slices, 2]."""
    return np.stack([(offsets // _BUFFER_BYTES) + first_buffer, offsets % _BUFFER_BYTES], axis=1)


def _inline(array: Array, start: Int64s) -> npt.NDArray[np.int32]:
    """The 12 bytes from each of these items on, as int32 [slices, 3]; what lies behind a slice is not looked at."""
    content = np.zeros((len(start), _INLINE_BYTES), dtype=np.uint8)
    items = _INLINE_BYTES // array.itemsize
    if len(array):
        places = np.minimum(start[:, None] + np.arange(items), len(array) - 1)
        content[:, : items * array.itemsize] = array[places].view(np.uint8)
    return content.view(np.int32)


def pack_documents(
    documents: Documents, tokens: Int64s, pieces: DocumentPieces, packing: TokenPacking, num_samples: int
) -> pa.RecordBatch:
    """The samples of one row group, `packing.fields` as columns; those beyond the pieces' are all padding.

    tokens: of each document, see `document_tokens`.
    """
    length = packing.sequence_length
    # Not needed for tokens alone.
    segments = cache(lambda: find_segments(pieces, packing, num_samples))
    columns: dict[str, Callable[[], pa.Array]] = {
        "tokens": lambda: fixed_lists(_token_rows(documents, tokens, pieces, packing, num_samples)),
        "positions": lambda: fixed_lists(_position_rows(segments(), length)),
        "loss_mask": lambda: fixed_lists(_prediction_mask(segments(), length)),
        "cu_seqlens": lambda: pa.ListArray.from_arrays(*map(pa.array, boundaries(segments(), length))),
    }
    return pa.RecordBatch.from_arrays([columns[name]() for name in packing.fields], names=list(packing.fields))


def _position_rows(segments: Segments, length: int) -> Array:
    """Places from 0 in every segment, int32 [samples, length]."""
    sizes = segment_sizes(segments, length)
    zeros = np.zeros(len(sizes), dtype=np.int64)
    return join_slices([np.arange(length, dtype=np.int32)], zeros, zeros, sizes).reshape(-1, length)


def _prediction_mask(segments: Segments, length: int) -> npt.NDArray[np.bool_]:
    """Whether the next token is in the sample and of the same document, bool [samples, length]."""
    mask = new_array((len(segments.filled), length), np.dtype(np.bool_))
    mask.fill(True)
    mask.reshape(-1)[segments.unpredicted] = False
    padded = np.flatnonzero(segments.filled < length)
    mask[padded] &= np.arange(length) < segments.filled[padded, None]
    return mask


def _token_rows(
    documents: Documents, tokens: Int64s, pieces: DocumentPieces, packing: TokenPacking, num_samples: int
) -> Array:
    """Tokens of all samples, [num_samples, sample_tokens]."""
    if packing.fill == "best_fit":
        return _place_pieces(documents, tokens, pieces, packing, num_samples)
    # To join whole documents in file order and then cut is faster than to join pieces.
    if packing.eod is None:
        return _cut_stream(documents.values, packing, num_samples)
    return _cut_stream(_stream_with_eod(documents, packing, num_samples), packing, num_samples)


def _stream_with_eod(documents: Documents, packing: TokenPacking, num_samples: int) -> Array:
    """All documents, each with its EOD, then padding as far as the samples go."""
    has_eod = documents.lengths > 0
    wanted = num_samples * packing.sequence_length + packing.extra_token
    # How many tokens follow each document: an EOD or nothing, and after the last one the padding too.
    tails = np.zeros(len(has_eod) + 1, dtype=np.int64)
    np.cumsum(has_eod, out=tails[1:])
    if len(has_eod):
        tails[-1] += max(0, wanted - len(documents.values) - int(tails[-1]))
    filler = np.full(int(tails[-1]), packing.pad_id, dtype=documents.dtype)
    filler[: int(has_eod.sum())] = packing.eod or 0
    return join_pairs(documents.values, documents.offsets, filler, tails)


def _cut_stream(stream: Array, packing: TokenPacking, num_samples: int) -> Array:
    """Samples from one token after the other, each beginning `sequence_length` after the last; padded at the end.

    A view of the stream if it holds the samples exactly and they do not overlap.
    """
    length, width = packing.sequence_length, packing.sample_tokens
    if width == length and len(stream) == num_samples * length:
        return stream.reshape(num_samples, length)
    rows = new_array((num_samples, width), stream.dtype)
    whole = min(num_samples, max(0, len(stream) - (width - length)) // length)
    if whole:
        step = stream.itemsize
        rows[:whole] = np.lib.stride_tricks.as_strided(stream, (whole, width), (length * step, step), writeable=False)
    rest = stream[whole * length :][:width]
    rows[whole:] = packing.pad_id
    if whole < num_samples:
        rows[whole, : len(rest)] = rest
    return rows


def _place_pieces(
    documents: Documents, tokens: Int64s, pieces: DocumentPieces, packing: TokenPacking, num_samples: int
) -> Array:
    """Samples from pieces in any order: each with its EOD (if it ends its document), then the sample's padding."""
    width = packing.sample_tokens
    length = documents.lengths[pieces.document]
    own = np.minimum(pieces.stop, length) - pieces.start
    eod = (pieces.stop == tokens[pieces.document]) & (packing.eod is not None)
    padding = np.zeros(len(own), dtype=np.int64)
    last = np.searchsorted(pieces.sample, np.arange(pieces.sample_count), side="right") - 1
    padding[last] = width - pieces.token_counts
    slices = np.stack([own, eod, padding], axis=1).reshape(-1)
    start = np.zeros_like(slices)
    start[::3] = documents.offsets[pieces.document] + pieces.start
    # Samples beyond the pieces', which an upper bound planned, are all padding.
    spare = num_samples - pieces.sample_count
    count = np.concatenate([slices, np.full(spare, width)])
    source = np.concatenate([np.tile([0, 1, 2], len(own)), np.full(spare, 2)])
    present = np.flatnonzero(count)
    fillers = [np.full(1, packing.eod or 0, documents.dtype), np.full(width, packing.pad_id, documents.dtype)]
    start = np.concatenate([start, np.zeros(spare, dtype=np.int64)])
    joined = join_slices([documents.values, *fillers], source[present], start[present], count[present])
    return joined.reshape(num_samples, width)


def flat_cu_seqlens(cu_seqlens: Ragged, sequence_length: int) -> Tensor:
    """The boundaries of B samples laid end to end, int32, from 0 to B * sequence_length.

    The end of one sample is the beginning of the next:

        samples [0, 3, 8] and [0, 8], sequence_length=8      0 3 8 16
    """
    ends = cu_seqlens.values
    samples = torch.arange(len(cu_seqlens), device=ends.device, dtype=ends.dtype)
    sample = torch.repeat_interleave(samples, cu_seqlens.lengths, output_size=len(ends))
    flat = (ends + sample * sequence_length)[ends > 0]
    return torch.cat([flat.new_zeros(1), flat])
