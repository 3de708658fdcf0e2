"""Documents and their layout to one RecordBatch of samples; tokens are copied at most once for each step that needs it.

To Arrow a document is a string of bytes, and joining strings is one memcpy each, without the GIL:

    join [doc 0 | doc 1 | doc 2] with [EOD | EOD | EOD + padding]      one pass (3.3 M int32: 1.3 ms)
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils.token_packing.arrow_views import fixed_lists, new_array, strings
from torch_dataloader_utils.token_packing.documents import Documents
from torch_dataloader_utils.token_packing.layout import (
    boundaries,
    find_segments,
    position_ids,
    prediction_mask,
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

    tokens: what each document takes up (see `document_tokens`).
    """
    length = packing.sequence_length
    segments = find_segments(pieces, packing, num_samples)
    columns: dict[str, Callable[[], pa.Array]] = {
        "tokens": lambda: fixed_lists(_token_rows(documents, tokens, pieces, packing, num_samples)),
        "positions": lambda: fixed_lists(position_ids(segments, length)),
        "loss_mask": lambda: fixed_lists(prediction_mask(segments, length)),
        "cu_seqlens": lambda: pa.ListArray.from_arrays(*map(pa.array, boundaries(segments, length))),
    }
    return pa.RecordBatch.from_arrays([columns[name]() for name in packing.fields], names=list(packing.fields))


def _token_rows(documents: Documents, tokens: Int64s, pieces: Pieces, packing: TokenPacking, num_samples: int) -> Array:
    """Tokens of all samples, [num_samples, sample_tokens]."""
    if packing.fill == "greedy":
        stream = documents.values
        if packing.eod is not None:
            wanted = num_samples * packing.sequence_length + packing.extra_token
            stream = _stream_with_eod(documents, packing, wanted)
        return _cut_stream(stream, packing, num_samples)
    return _place_pieces(documents, tokens, pieces, packing, num_samples)


def _stream_with_eod(documents: Documents, packing: TokenPacking, wanted: int) -> Array:
    """All documents, each with its EOD, then padding up to `wanted` tokens."""
    has_eod = documents.lengths > 0
    padding = np.zeros(len(has_eod), dtype=np.int64)
    missing = wanted - len(documents.values) - int(has_eod.sum())
    if len(padding):
        padding[-1] = max(0, missing)
    return _join(strings(documents.values, documents.offsets), has_eod, padding, documents.dtype, packing)


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
    """Samples from pieces in any order: taken as strings, then joined with their EODs and padding."""
    if not pieces.sample_count:
        return np.full((num_samples, packing.sample_tokens), packing.pad_id, dtype=documents.dtype)
    origin = documents.offsets[pieces.document]
    start = origin + pieces.start
    stop = origin + np.minimum(pieces.stop, documents.lengths[pieces.document])
    order = np.lexsort((pieces.start, pieces.document))
    # Strings lie end to end: every second one is what lies between two pieces (a dropped document, or nothing).
    borders = np.stack([start[order], stop[order]], axis=1).ravel()
    string_of_piece = np.empty(len(order), dtype=np.int64)
    string_of_piece[order] = 2 * np.arange(len(order))
    taken = strings(documents.values, borders).take(pa.array(string_of_piece))
    has_eod = np.zeros(len(order), dtype=np.bool_)
    if packing.eod is not None:
        has_eod = pieces.stop == tokens[pieces.document]
    padding = np.zeros(len(order), dtype=np.int64)
    last = np.searchsorted(pieces.sample, np.arange(pieces.sample_count), side="right") - 1
    padding[last] = packing.sample_tokens - pieces.token_counts
    padding[-1] += (num_samples - pieces.sample_count) * packing.sample_tokens
    joined = _join(taken, has_eod, padding, documents.dtype, packing)
    return joined.reshape(num_samples, packing.sample_tokens)


def _join(
    parts: pa.Array, has_eod: npt.NDArray[np.bool_], padding: Int64s, dtype: np.dtype[Any], packing: TokenPacking
) -> Array:
    """The parts (strings) one after the other, each followed by its EOD (where it has one) and its padding."""
    offsets = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum(has_eod + padding, out=offsets[1:])
    data = np.full(int(offsets[-1]), packing.pad_id, dtype=dtype)
    data[offsets[:-1][has_eod]] = packing.eod or 0
    tails = strings(data, offsets)
    joined = pc.binary_join_element_wise(parts, tails, pa.scalar(b"", pa.large_binary()))
    _, ends, content = joined.buffers()
    if content is None:
        return np.empty(0, dtype=dtype)
    count = int(np.frombuffer(ends, np.int64)[len(joined)]) // dtype.itemsize
    return np.frombuffer(content, dtype=dtype, count=count)
