"""Computes where every token of a row group goes: from lengths of documents to pieces of samples.

lengths 5 3 4, L=4         samples 0[0:4] | 0[4:5] 1[0:3] | 2[0:4]
segments of the inputs             0..3   |   0    1..3   | 0..3
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils.errors import DataError
from torch_dataloader_utils.shape.reused_memory import RECYCLED
from torch_dataloader_utils.token_packing.options import TokenPacking
from torch_dataloader_utils.tokens.fill import Pieces, count_greedy_samples, fill_best_fit, fill_greedily

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
    # Everything made of an array over a memoryview keeps it, and the loan with it.
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
        # The first 4 bytes of a longer view serve comparisons, and nobody compares these.
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segments:
    """The inputs of all samples, cut into runs of one document or of padding; together they cover [0, samples * L).

    start: input positions, numbered through all samples, at which a run begins; ascending int64.
    unpredicted: input positions with tokens whose next token is of another document or sample; int64.
    filled: input positions of each sample that hold tokens, the first ones; int64 [samples].
    """

    start: Int64s
    unpredicted: Int64s
    filled: Int64s


def document_tokens(lengths: Int64s, packing: TokenPacking, where: str) -> Int64s:
    """Tokens that each document takes, with its EOD; 0 for one that is empty or dropped. int64 [documents].

    where: the row group, for messages.

    Raises:
        DataError: a document is longer than a sample, with over_long="error".
    """
    tokens = lengths if packing.eod is None else lengths + (lengths > 0)
    if packing.over_long == "cut":
        return tokens
    is_over = tokens > packing.sample_tokens
    if packing.over_long == "error" and is_over.any():
        longest = int(tokens.max())
        raise DataError(
            f"{where}: {int(is_over.sum())} documents do not fit a sample of {packing.sample_tokens} tokens (the "
            f'longest has {longest}), and over_long="error". Raise sequence_length, or pass over_long="cut" or "drop".'
        )
    return np.where(is_over, 0, tokens)


def count_samples(tokens: Int64s, packing: TokenPacking) -> int:
    """How many samples `lay_out` gives for documents that take up so many tokens."""
    if packing.fill == "best_fit":
        return lay_out(tokens, packing).sample_count
    return count_greedy(int(tokens.sum()), packing)


def count_greedy(num_tokens: int, packing: TokenPacking) -> int:
    """Samples of so many tokens end to end.

    L=4: 0 tokens 0 samples, 4 tokens 1, 5 tokens 2; with the extra token 1 token 0 samples, 5 tokens 1, 6 tokens 2
    """
    extra = int(packing.extra_token)
    return count_greedy_samples(num_tokens, packing.sequence_length, extra_tokens=extra, keeps_tail=True)


def lay_out(tokens: Int64s, packing: TokenPacking) -> Pieces:
    """The pieces of all samples of one row group, from the tokens that its documents take up."""
    if packing.fill == "greedy":
        extra = int(packing.extra_token)
        return fill_greedily(tokens, packing.sequence_length, extra_tokens=extra, keeps_tail=True)
    return fill_best_fit(tokens, packing.sample_tokens, window_documents=max(1, len(tokens)))


def find_segments(pieces: Pieces, packing: TokenPacking, num_samples: int) -> Segments:
    """The segments of `num_samples` samples: those of the pieces, then samples that are all padding."""
    length = packing.sequence_length
    counts = pieces.stop - pieces.start
    ends = np.cumsum(counts)
    first_piece = np.searchsorted(pieces.sample, np.arange(pieces.sample_count))
    begin = ends - counts
    begin = begin - begin[first_piece][pieces.sample]
    end = begin + counts
    # A piece may be the extra token alone, which is a label and no input.
    is_input = begin < length
    origin, begin, end = pieces.sample[is_input] * length, begin[is_input], end[is_input]
    filled = np.zeros(num_samples, dtype=np.int64)
    filled[: pieces.sample_count] = np.minimum(pieces.token_counts, length)
    padded = np.flatnonzero(filled < length)
    # Padding of a sample begins after its last piece, so that sorting merges two sorted runs.
    start = np.sort(np.concatenate([origin + begin, padded * length + filled[padded]]), kind="stable")
    return Segments(start=start, unpredicted=(origin + end - 1)[end <= length], filled=filled)


def segment_sizes(segments: Segments, length: int) -> Int64s:
    """Input positions of each segment, int64; together samples * L."""
    return np.diff(segments.start, append=len(segments.filled) * length)


def prediction_mask(segments: Segments, length: int) -> npt.NDArray[np.bool_]:
    """Whether the next token is in the sample and of the same document, bool [samples, length]."""
    mask = new_array((len(segments.filled), length), np.dtype(np.bool_))
    mask.fill(True)
    mask.reshape(-1)[segments.unpredicted] = False
    padded = np.flatnonzero(segments.filled < length)
    mask[padded] &= np.arange(length) < segments.filled[padded, None]
    return mask


def boundaries(segments: Segments, length: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """(offsets, values) of the list column `cu_seqlens`: for each sample its segments' begins, then `length`."""
    num_samples = len(segments.filled)
    sample = segments.start // length
    counts = np.bincount(sample, minlength=num_samples)
    offsets = np.zeros(num_samples + 1, dtype=np.int32)
    np.cumsum(counts + 1, out=offsets[1:])
    values = np.full(int(offsets[-1]), length, dtype=np.int32)
    values[np.arange(len(sample)) + sample] = segments.start % length
    return offsets, values
