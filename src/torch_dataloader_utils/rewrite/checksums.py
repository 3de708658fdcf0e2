"""Checksums of columns: sums over rows in which each row has a weight of its own.

Rows may be summed in any order and in any parts. A value that is lost, repeated, changed or moved to another row
changes the sum of its column.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from torch_dataloader_utils._arrow.schema import is_list
from torch_dataloader_utils._arrow.xxh64 import byte_spans, hash_bytes

Weights = npt.NDArray[np.uint64]
FieldPlace = tuple[int, ...]
"""Numbers of the fields on the way to a nested field: (2, 0) is the first field inside the third column."""

WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_LENGTH = 0xC2B2AE3D27D4EB4F


def sum_columns(rows: pa.RecordBatch, weights: Weights) -> tuple[list[int], set[FieldPlace]]:
    """Return the checksum of each column modulo 2^64, and the fields with nulls (a field in a null struct is null).

    weights: Random words, one for each row. Columns have no dictionaries, run ends and views.
    """
    nulls: set[FieldPlace] = set()
    return [_sum(column, weights, (place,), nulls) & WORD for place, column in enumerate(rows.columns)], nulls


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
        array = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    if is_list(array.type):
        lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64)
        ends = np.cumsum(lengths)
        places = np.arange(int(ends[-1]), dtype=np.uint64) - np.repeat(ends - lengths, lengths.astype(np.int64))
        of_items = np.repeat(weights, lengths.astype(np.int64)) * (places * np.uint64(2) + np.uint64(1))
        return total + _dot(weights, lengths) * _LENGTH + _sum(array.flatten(), of_items, (*place, 0), nulls)
    return total + sum(_dot(weights * _odd(i) if i else weights, lane) for i, lane in enumerate(_lanes(array)))


def _lanes(array: pa.Array) -> list[Weights]:
    """Return the values as 64-bit words, shape [n] each: one word, or several for wide values."""
    kind = array.type
    if pt.is_string(kind) or pt.is_binary(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind):
        return [hash_bytes(byte_spans(array), 0)]
    if pt.is_boolean(kind):
        array = array.cast(pa.uint8())
    width = array.type.byte_width
    data = np.frombuffer(array.buffers()[1], np.uint8)[array.offset * width : (array.offset + len(array)) * width]
    if width in (1, 2, 4):
        return [data.view(f"u{width}").astype(np.uint64)]
    words = -(-width // 8)
    if width % 8:
        data = np.pad(data.reshape(-1, width), ((0, 0), (0, words * 8 - width))).reshape(-1)
    lanes = data.view(np.uint64).reshape(-1, words)
    return [lanes[:, i] for i in range(words)]


def _dot(weights: Weights, values: Weights) -> int:
    # The product of a weight and the highest bit has one bit of the weight: fold the high half into the low half.
    return int(np.dot(weights, values ^ (values >> np.uint64(32))))


def _odd(number: int) -> np.uint64:
    return np.uint64((_GOLDEN * (2 * number + 1)) & WORD)
