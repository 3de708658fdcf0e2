"""Makes the fields of samples from documents and their layout; tokens are copied at most once.

slices of a sample      piece of doc 0 | EOD | piece of doc 1 | padding
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._arrow.documents import Documents
from torch_dataloader_utils._arrow.process_memory import RECYCLED
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils.samples.fill import DocumentPieces
from torch_dataloader_utils.samples.layout import Segments, boundaries, find_segments, segment_sizes, with_eod
from torch_dataloader_utils.samples.token_packing import TokenPacking

Array = npt.NDArray[Any]

# A view takes 16 bytes: the number of bytes, then either all bytes (up to 12), or the first 4, a buffer and an offset.
# Source: Arrow columnar format, "Variable-size Binary View Layout".
_INLINE_BYTES = 12
# Offsets are int32: a longer source becomes several buffers, each beginning this many bytes (a power of 2) later.
_BUFFER_BYTES = 1 << 30
# Most items of 8 bytes in a view, which holds less than 2 GiB.
_MERGED_ITEMS = (1 << 28) - 1


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an uninitialised array in recycled memory, because touching fresh pages costs as much as a copy."""
    num_bytes = prod(shape) * dtype.itemsize
    # Every object made from the array keeps the memoryview alive, so the memory is recycled only after all are gone.
    memory = RECYCLED.take(num_bytes).data[:num_bytes]
    array: Array = np.frombuffer(memory, dtype=dtype).reshape(shape)
    return array


def fixed_lists(rows: Array) -> pa.FixedSizeListArray:
    """Return a matrix [rows, width] as one list of `width` values for each row, without a copy; bools become bool8."""
    flat = rows.reshape(-1)
    if rows.dtype == np.bool_:
        values = pa.ExtensionArray.from_storage(pa.bool8(), pa.array(flat.view(np.int8)))
    else:
        values = pa.array(flat)
    return pa.FixedSizeListArray.from_arrays(values, rows.shape[1])


def join_pairs(left: Array, left_borders: Int64s, right: Array, right_borders: Int64s) -> Array:
    """Return the runs of two arrays alternately: left 0, right 0, left 1, ...; run i is [borders[i], borders[i + 1]).

        left 5 6 7, borders 0 2 3; right 0 0, borders 0 1 2      5 6 0 7 0

    Arrow joins the runs as strings: one memcpy for each run, without the GIL, into memory of Arrow's pool.
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
    """Return sources[source[i]][start[i]:start[i] + count[i]] for all i, joined.

        sources (5 6 7 8) and (0), source 0 1 0, start 2 0 0, count 2 1 3      7 8 0 5 6 7

    Slices may overlap and come in any order. Arrow sees each slice as a view of bytes, and casts views to an array of
    bytes with one memcpy for each slice, without the GIL, into memory of Arrow's pool.
    """
    source, start, count = _merge_neighbours(source, start, count)
    dtype, item = sources[0].dtype, sources[0].itemsize
    views = np.zeros((len(count), 4), dtype=np.int32)
    views[:, 0] = count * item
    is_inline = count <= _INLINE_BYTES // item
    buffers: list[pa.Buffer] = []
    for number, array in enumerate(sources):
        own = source == number
        # The first 4 bytes of a longer view stay 0: they serve comparisons only, and these views are never compared.
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
    """Return the slices, with neighbouring slices that are contiguous in one source merged."""
    goes_on = (start[1:] == start[:-1] + count[:-1]) & (source[1:] == source[:-1])
    # Below this sum no merged slice can exceed the 2 GiB of a view.
    if not len(count) or int(count.sum()) > _MERGED_ITEMS:
        return source, start, count
    first = np.flatnonzero(np.concatenate([[True], ~goes_on]))
    return source[first], start[first], np.add.reduceat(count, first)


def _locate(offsets: Int64s, first_buffer: int) -> Int64s:
    """Return the buffer of each byte offset of a source, and the offset in the buffer: [slices, 2]."""
    return np.stack([(offsets // _BUFFER_BYTES) + first_buffer, offsets % _BUFFER_BYTES], axis=1)


def _inline(array: Array, start: Int64s) -> npt.NDArray[np.int32]:
    """Return the 12 bytes from each start item on, as int32 [slices, 3]; bytes behind the slice count for nothing."""
    content = np.zeros((len(start), _INLINE_BYTES), dtype=np.uint8)
    items = _INLINE_BYTES // array.itemsize
    if len(array):
        places = np.minimum(start[:, None] + np.arange(items), len(array) - 1)
        content[:, : items * array.itemsize] = array[places].view(np.uint8)
    return content.view(np.int32)


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedGroup:
    """Samples of one packing window: the lengths of its documents, and their pieces.

    lengths: int64 [documents]: tokens of each document.
    tokens: int64 [documents]: tokens with EOD and padding, 0 for a document that is left out; see `document_tokens`.
    num_samples: Number of samples, at least `pieces.sample_count`; further samples are all padding.
    """

    packing: TokenPacking
    lengths: Int64s
    tokens: Int64s
    pieces: DocumentPieces
    num_samples: int

    @cached_property
    def segments(self) -> Segments:
        """Segments of the samples, found on first use; the field `tokens` does not need segments."""
        return find_segments(self.pieces, with_eod(self.lengths, self.packing), self.packing, self.num_samples)

    def own_field(self, name: str, documents: Documents, origin: Callable[[str, Int64s], pa.Array]) -> pa.Array:
        """Return a field that packing makes, one list for each sample.

        documents: The tokens. origin: Function that returns a field of these documents: file, row group, or row in it.
        """
        length = self.packing.sequence_length
        match name:
            case "tokens":
                return self.per_token(documents, self.packing.eod or 0, self.packing.pad_id)
            case "positions":
                return fixed_lists(_position_rows(self.segments, length))
            case "loss_mask":
                return fixed_lists(_prediction_mask(self.segments, length))
            case "cu_seqlens":
                return pa.ListArray.from_arrays(*map(pa.array, boundaries(self.segments, length)))
            case "document_start":
                return self._listed(pa.array(self.pieces.start[self.segments.piece]))
            case "document_tokens":
                return self._listed(pa.array(self.segments.tokens.astype(np.int32)))
        return self._listed(origin(name, self.pieces.document[self.segments.piece]))

    def per_token(self, documents: Documents, eod: float, pad: float) -> pa.FixedSizeListArray:
        """Return the values of all tokens, `sample_tokens` for each sample.

        documents: Values of each document, as many as its tokens, or as its tokens with EOD and padding.
        """
        rows = _cut_stream if self.packing.is_stream else _place_pieces
        return fixed_lists(rows(self, documents, eod, pad))

    def per_document(self, values: pa.Array) -> pa.ListArray:
        """Return one value for each document that begins or goes on in a sample. values: A value of each document."""
        return self._listed(values.take(pa.array(self.pieces.document[self.segments.piece])))

    def _listed(self, values: pa.Array) -> pa.ListArray:
        """Return one value for each piece in `segments.piece` as one list for each sample."""
        counts = np.bincount(self.pieces.sample[self.segments.piece], minlength=self.num_samples)
        offsets = np.zeros(self.num_samples + 1, dtype=np.int32)
        np.cumsum(counts, out=offsets[1:])
        return pa.ListArray.from_arrays(pa.array(offsets), values)


def _position_rows(segments: Segments, length: int) -> Array:
    """Return places that begin at 0 in every segment, int32 [samples, length]."""
    sizes = segment_sizes(segments, length)
    zeros = np.zeros(len(sizes), dtype=np.int64)
    return join_slices([np.arange(length, dtype=np.int32)], zeros, zeros, sizes).reshape(-1, length)


def _prediction_mask(segments: Segments, length: int) -> npt.NDArray[np.bool_]:
    """Return whether the next token is in the sample and of the same document, bool [samples, length]."""
    mask = new_array((len(segments.filled), length), np.dtype(np.bool_))
    mask.fill(True)
    mask.reshape(-1)[segments.unpredicted] = False
    padded = np.flatnonzero(segments.filled < length)
    mask[padded] &= np.arange(length) < segments.filled[padded, None]
    return mask


def _joined_stream(group: PackedGroup, documents: Documents, eod: float, pad: float) -> Array:
    """Return all documents, each with its EOD and padding, then padding to the end of the samples."""
    # Number of values behind each document: EOD and padding, and behind the last document the rest of the samples.
    tails = np.zeros(len(group.tokens) + 1, dtype=np.int64)
    np.cumsum(group.tokens - documents.lengths, out=tails[1:])
    if tails[-1] == 0:
        return documents.values
    first = tails[:-1][np.diff(tails) > 0]
    wanted = group.num_samples * group.packing.sequence_length + group.packing.extra_token
    tails[-1] += max(0, wanted - len(documents.values) - int(tails[-1]))
    filler = np.full(int(tails[-1]), pad, dtype=documents.dtype)
    if group.packing.eod is not None:
        filler[first] = eod
    return join_pairs(documents.values, documents.offsets, filler, tails)


def _cut_stream(group: PackedGroup, documents: Documents, eod: float, pad: float) -> Array:
    """Return greedy samples: tokens in stored order, each sample `sequence_length` tokens after the previous sample.

    To join whole documents in file order and then cut is faster than to join pieces. The result is a view of the
    documents if the documents fill the samples exactly and samples do not overlap.
    """
    stream = _joined_stream(group, documents, eod, pad)
    length, width, num_samples = group.packing.sequence_length, group.packing.sample_tokens, group.num_samples
    if width == length and len(stream) == num_samples * length:
        return stream.reshape(num_samples, length)
    rows = new_array((num_samples, width), stream.dtype)
    whole = min(num_samples, max(0, len(stream) - (width - length)) // length)
    if whole:
        step = stream.itemsize
        rows[:whole] = np.lib.stride_tricks.as_strided(stream, (whole, width), (length * step, step), writeable=False)
    rest = stream[whole * length :][:width]
    rows[whole:] = pad
    if whole < num_samples:
        rows[whole, : len(rest)] = rest
    return rows


def _place_pieces(group: PackedGroup, documents: Documents, eod: float, pad: float) -> Array:
    """Return samples of pieces in any order: a piece, EOD and padding of a document that ends, the sample's padding."""
    pieces, width = group.pieces, group.packing.sample_tokens
    length = documents.lengths[pieces.document]
    own = np.minimum(pieces.stop, length) - pieces.start
    ends = (length < pieces.stop) & (group.packing.eod is not None)
    padding = pieces.stop - pieces.start - own - ends
    last = np.searchsorted(pieces.sample, np.arange(pieces.sample_count), side="right") - 1
    padding[last] += width - pieces.token_counts
    slices = np.stack([own, ends, padding], axis=1).reshape(-1)
    start = np.zeros_like(slices)
    start[::3] = documents.offsets[pieces.document] + pieces.start
    # An upper bound may have planned more samples than the pieces have: these samples are all padding.
    spare = group.num_samples - pieces.sample_count
    count = np.concatenate([slices, np.full(spare, width)])
    source = np.concatenate([np.tile([0, 1, 2], len(own)), np.full(spare, 2)])
    present = np.flatnonzero(count)
    fillers = [np.full(1, eod, documents.dtype), np.full(width, pad, documents.dtype)]
    start = np.concatenate([start, np.zeros(spare, dtype=np.int64)])
    joined = join_slices([documents.values, *fillers], source[present], start[present], count[present])
    return joined.reshape(group.num_samples, width)
