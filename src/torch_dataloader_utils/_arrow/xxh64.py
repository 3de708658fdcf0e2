"""Compute XXH64 of many values at once with numpy, for the buckets of `Hash` and the parts of `Holdout`.

Source: the xxHash specification, version 0.1.1 (XXH64). Every implementation of the specification, in any language,
gives the same numbers, so a model that was trained here can be served elsewhere. Text is hashed as its UTF-8 bytes,
integers as 8 bytes, little-endian.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

Words = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_WORD = (1 << 64) - 1
_STRIPE_BYTES = 32


class ByteSpans(NamedTuple):
    """Values as bytes: value i is `data[starts[i] : starts[i] + lengths[i]]`. The bytes of nulls have no meaning."""

    data: npt.NDArray[np.uint8]
    starts: Places
    lengths: Places


def byte_spans(array: pa.Array) -> ByteSpans:
    """Return the values of an array of text or bytes (also of large types), without copying values."""
    is_large = pt.is_large_string(array.type) or pt.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    if len(array) == 0 or offsets is None:
        return ByteSpans(np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64))
    stored = np.frombuffer(offsets, np.dtype(np.int64 if is_large else np.int32))
    ends: Places = stored[array.offset : array.offset + len(array) + 1].astype(np.int64)
    values = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return ByteSpans(values, ends[:-1], np.diff(ends))


def integer_words(values: pa.Array) -> Words:
    """Return each integer as 64 bits, shape [n]; 0 for nulls."""
    filled = values.fill_null(0) if values.null_count else values
    words: Words = (
        filled.to_numpy().astype(np.dtype("i8" if pt.is_signed_integer(values.type) else "u8")).view(np.uint64)
    )
    return words


def hash_integers(values: Words, seed: int) -> Words:
    """Return XXH64 of each value as 8 bytes, shape [n]; negative numbers are in two's complement."""
    hashed = np.full(len(values), (seed + _P5 + 8) & _WORD, dtype=np.uint64)
    return _mixed(_with_word(hashed, values))


def hash_bytes(spans: ByteSpans, seed: int) -> Words:
    """Return XXH64 of each value, shape [n]. Takes one step of numpy for each 32 bytes of the longest value."""
    # The longest values come first, so that the values with another stripe are always a prefix.
    order = np.argsort(-spans.lengths, kind="stable")
    starts, lengths = spans.starts[order], spans.lengths[order]
    # A word may be read at each byte: the last words need padding.
    data = np.concatenate([spans.data, np.zeros(8, np.uint8)])
    words: Words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    hashed = _stripes(words, starts, lengths // _STRIPE_BYTES, seed) + lengths.astype(np.uint64)
    at, left = starts + lengths // _STRIPE_BYTES * _STRIPE_BYTES, lengths % _STRIPE_BYTES
    for _ in range(3):
        some = np.flatnonzero(left >= 8)
        hashed[some] = _with_word(hashed[some], words[at[some]].astype(np.uint64))
        at[some] += 8
        left[some] -= 8
    some = np.flatnonzero(left >= 4)
    halves = words[at[some]].astype(np.uint64) & np.uint64(0xFFFFFFFF)
    hashed[some] = _rotated(hashed[some] ^ (halves * np.uint64(_P1)), 23) * np.uint64(_P2) + np.uint64(_P3)
    at[some] += 4
    left[some] -= 4
    for _ in range(3):
        some = np.flatnonzero(left >= 1)
        byte = data[at[some]].astype(np.uint64)
        hashed[some] = _rotated(hashed[some] ^ (byte * np.uint64(_P5)), 11) * np.uint64(_P1)
        at[some] += 1
        left[some] -= 1
    result = np.empty_like(hashed)
    result[order] = _mixed(hashed)
    return result


def _stripes(words: Words, starts: Places, stripes: Places, seed: int) -> Words:
    """Return the hashes after all whole stripes of 32 bytes. Values come in the order of falling `stripes`."""
    hashed = np.full(len(starts), (seed + _P5) & _WORD, dtype=np.uint64)
    long = int(np.count_nonzero(stripes))
    if not long:
        return hashed
    first = np.array([seed + _P1 + _P2, seed + _P2, seed, seed - _P1], dtype=object) & _WORD
    lanes = np.tile(first.astype(np.uint64), (long, 1))
    places = starts[:long, None] + np.arange(0, _STRIPE_BYTES, 8)
    # Number of values with more than i stripes, for all i.
    counts = long - np.searchsorted(stripes[:long][::-1], np.arange(int(stripes[0])), side="right")
    for count in counts.tolist():
        lanes[:count] = _round(lanes[:count], words[places[:count]].astype(np.uint64))
        places[:count] += _STRIPE_BYTES
    joined = sum((_rotated(lanes[:, i], by) for i, by in enumerate((1, 7, 12, 18))), np.zeros(long, np.uint64))
    for lane in lanes.T:
        joined = (joined ^ _round(np.zeros(long, np.uint64), lane)) * np.uint64(_P1) + np.uint64(_P4)
    hashed[:long] = joined
    return hashed


def _rotated(values: Words, by: int) -> Words:
    return (values << np.uint64(by)) | (values >> np.uint64(64 - by))


def _round(hashed: Words, words: Words) -> Words:
    return _rotated(hashed + words * np.uint64(_P2), 31) * np.uint64(_P1)


def _with_word(hashed: Words, words: Words) -> Words:
    mixed = hashed ^ _round(np.zeros_like(words), words)
    return _rotated(mixed, 27) * np.uint64(_P1) + np.uint64(_P4)


def _mixed(hashed: Words) -> Words:
    """Apply the last step of XXH64: every bit of the result depends on every bit of the input."""
    hashed = (hashed ^ (hashed >> np.uint64(33))) * np.uint64(_P2)
    hashed = (hashed ^ (hashed >> np.uint64(29))) * np.uint64(_P3)
    return hashed ^ (hashed >> np.uint64(32))
