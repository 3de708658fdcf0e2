"""Makes one RecordBatch of samples from documents and their layout; tokens are copied at most once.

slices of a sample      piece of doc 0 | EOD | piece of doc 1 | padding
"""

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils.token_packing.documents import Documents
from torch_dataloader_utils.token_packing.layout import (
    Segments,
    boundaries,
    find_segments,
    fixed_lists,
    join_pairs,
    join_slices,
    new_array,
    prediction_mask,
    segment_sizes,
)
from torch_dataloader_utils.token_packing.options import TokenPacking
from torch_dataloader_utils.tokens.fill import Pieces

if TYPE_CHECKING:
    from collections.abc import Callable

Array = npt.NDArray[Any]


def pack_documents(
    documents: Documents, tokens: Int64s, pieces: Pieces, packing: TokenPacking, num_samples: int
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
        "loss_mask": lambda: fixed_lists(prediction_mask(segments(), length)),
        "cu_seqlens": lambda: pa.ListArray.from_arrays(*map(pa.array, boundaries(segments(), length))),
    }
    return pa.RecordBatch.from_arrays([columns[name]() for name in packing.fields], names=list(packing.fields))


def _position_rows(segments: Segments, length: int) -> Array:
    """Places from 0 in every segment, int32 [samples, length]."""
    sizes = segment_sizes(segments, length)
    zeros = np.zeros(len(sizes), dtype=np.int64)
    return join_slices([np.arange(length, dtype=np.int32)], zeros, zeros, sizes).reshape(-1, length)


def _token_rows(documents: Documents, tokens: Int64s, pieces: Pieces, packing: TokenPacking, num_samples: int) -> Array:
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
    documents: Documents, tokens: Int64s, pieces: Pieces, packing: TokenPacking, num_samples: int
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
