"""Checksums of columns: sums over rows in which each row has a weight of its own.

Rows may be summed in any order and in any parts. A value that is lost, repeated, changed or moved to another row
changes the sum of its column.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from torch_dataloader_utils._arrow.schema import is_list, is_number, is_text
from torch_dataloader_utils._arrow.xxh64 import ByteSpans, byte_spans, hash_bytes

Weights = npt.NDArray[np.uint64]
FieldPlace = tuple[int, ...]
"""Numbers of the fields on the way to a nested field: (2, 0) is the first field inside the third column."""

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_LENGTH = 0xC2B2AE3D27D4EB4F
# numpy hashes short values all at once, in a step for each 32 bytes: 20 bytes each, a third faster than hashlib hashes
# them one by one. It hashes documents at less than half the speed of hashlib.
_LONG_BYTES = 256


def sum_columns(rows: pa.RecordBatch, weights: Weights) -> tuple[list[int], set[FieldPlace]]:
    """Return the checksum of each column modulo 2^64, and the fields with nulls (a field in a null struct is null).

    weights: Random words, one for each row. Columns have no dictionaries, run ends and views.
    """
    nulls: set[FieldPlace] = set()
    return [_sum(column, weights, (place,), nulls) & _WORD for place, column in enumerate(rows.columns)], nulls


def add_sums(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Return the checksum of each column of the rows of both."""
    return [(first + second) & _WORD for first, second in zip(one, other, strict=True)]


def _sum(array: pa.Array, weights: Weights, place: FieldPlace, nulls: set[FieldPlace]) -> int:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    total = 0
    if array.null_count:
        nulls.add(place)
        is_valid = array.is_valid().to_numpy(zero_copy_only=False)
        total = int(weights[~is_valid].sum()) * _GOLDEN
        weights = np.where(is_valid, weights, np.uint64(0))
    kind = array.type
    if not len(array) or pt.is_null(kind):
        return total
    if pt.is_struct(kind):
        inner = (_sum(each, weights * _odd(i), (*place, i), nulls) for i, each in enumerate(array.flatten()))
        return total + sum(inner)
    if pt.is_map(kind):
        array = _lists_of_pairs(array)
    if is_list(array.type):
        items, lengths = array.flatten(), pc.list_value_length(array).fill_null(0)
        counts = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
        if is_number(items.type):
            # How a row is summed depends on this row alone: other parts divide the rows in another way.
            is_whole = _have_no_nulls(items, counts)
            width = items.type.byte_width
            spans = ByteSpans(_bytes(items), (np.cumsum(counts) - counts) * width, counts * width)
            total += _sum_spans(spans, np.where(is_whole, weights, np.uint64(0)))
            if is_whole.all():
                return total
            weights = np.where(is_whole, np.uint64(0), weights)
        of_items, _ = _spread(weights, counts)
        return total + _dot(weights, counts) * _LENGTH + _sum(items, of_items, (*place, 0), nulls)
    if is_text(kind):
        return total + _sum_spans(byte_spans(array), weights)
    return total + sum(_dot(weights * _odd(i) if i else weights, words) for i, words in enumerate(_value_words(array)))


def _lists_of_pairs(array: pa.MapArray) -> pa.ListArray:
    # Not a cast: pyarrow (26.0.1) makes arrays of the wrong length of lists of nulls inside maps.
    fields = [array.type.key_field, array.type.item_field]
    pairs = pa.StructArray.from_arrays([array.keys, array.items], fields=fields)
    return pa.Array.from_buffers(
        pa.list_(pairs.type), len(array), array.buffers()[:2], offset=array.offset, children=[pairs]
    )


def _sum_spans(spans: ByteSpans, weights: Weights) -> int:
    """Return the checksum of values of any length, each hashed as a whole."""
    first = int(spans.starts[0])
    data = spans.data[first : int(spans.starts[-1] + spans.lengths[-1])]
    starts, lengths = spans.starts - first, np.where(weights != 0, spans.lengths, 0)
    is_long = lengths >= _LONG_BYTES
    hashed = np.empty(len(lengths), np.uint64)
    hashed[~is_long] = hash_bytes(ByteSpans(data, starts[~is_long], lengths[~is_long]), 0)
    view, places = data.data, zip(starts[is_long].tolist(), lengths[is_long].tolist(), strict=True)
    digests = [blake2b(view[start : start + length], digest_size=8).digest() for start, length in places]
    hashed[is_long] = np.frombuffer(b"".join(digests), "<u8")
    return _dot(weights, hashed)


def _have_no_nulls(items: pa.Array, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return for each row whether none of its items is null."""
    if not items.null_count:
        return np.ones(len(counts), np.bool_)
    before, ends = np.zeros(len(items) + 1, np.int64), np.cumsum(counts)
    np.cumsum(items.is_null().to_numpy(zero_copy_only=False), out=before[1:])
    is_whole: npt.NDArray[np.bool_] = before[ends] == before[ends - counts]
    return is_whole


def _spread(weights: Weights, counts: npt.NDArray[np.int64]) -> tuple[Weights, Weights]:
    """Return a weight for each item of each row, which depends on its place in the row, and the places."""
    ends = np.cumsum(counts)
    places = np.arange(int(ends[-1]), dtype=np.uint64) - np.repeat(ends - counts, counts).astype(np.uint64)
    return np.repeat(weights, counts) * (places * np.uint64(2) + np.uint64(1)), places


def _value_words(array: pa.Array) -> list[Weights]:
    """Return the values as 64-bit words, shape [n] each: one word, or several for wide values."""
    if pt.is_boolean(array.type):
        array = array.cast(pa.uint8())
    width, data = array.type.byte_width, _bytes(array)
    if width in (1, 2, 4):
        return [data.view(f"u{width}").astype(np.uint64)]
    words = -(-width // 8)
    if width % 8:
        data = np.pad(data.reshape(-1, width), ((0, 0), (0, words * 8 - width))).reshape(-1)
    values = data.view(np.uint64).reshape(-1, words)
    return [values[:, i] for i in range(words)]


def _bytes(array: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of values of one width, without those before and after a slice."""
    width = array.type.byte_width
    if not len(array):
        return np.zeros(0, np.uint8)
    return np.frombuffer(array.buffers()[1], np.uint8)[array.offset * width : (array.offset + len(array)) * width]


def _dot(weights: Weights, values: npt.NDArray[Any]) -> int:
    # The product of a weight and the highest bit has one bit of the weight: fold the high half into the low half.
    words = values.astype(np.uint64, copy=False)
    return int(np.dot(weights, words ^ (words >> np.uint64(32))))


def _odd(number: int) -> np.uint64:
    return np.uint64((_GOLDEN * (2 * number + 1)) & _WORD)
