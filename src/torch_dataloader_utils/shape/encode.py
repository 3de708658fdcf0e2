"""Encode text and categories as numbers while row groups are decoded, with Arrow and numpy: no Python object a row.

    Hash         a value's bucket           "Paris" -> 320,963          by XXH64, which never changes
    Vocabulary   a value's number           "Paris" -> 17               by a list of values that was made before
    Bytes        a text's UTF-8 bytes       "Paris" -> 80 97 114 105 115

`prepare.PreparingShaper` replaces columns of record batches before they are shaped: `nulls=`, `stack=` and every output
format work with the numbers as if the files stored numbers.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from os import PathLike
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from torch_dataloader_utils._arrow.schema import is_binary, is_list, is_text, is_utf8
from torch_dataloader_utils._arrow.xxh64 import Words, byte_spans, hash_bytes, hash_integers, integer_words
from torch_dataloader_utils._core.arguments import check_integer, check_seed, hold_integers
from torch_dataloader_utils._core.inventory import Int64s, short_digest
from torch_dataloader_utils._core.paths import check_path
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, DataError, of_type, which_column
from torch_dataloader_utils.formats.parquet.trailer import open_checked
from torch_dataloader_utils.shape.arrow_types import decoded_type
from torch_dataloader_utils.shape.raw_numbers import change_items, plain, validity

_NUMBER = pa.int64()


@dataclass(frozen=True, slots=True)
class Hash:
    """Encoder of each value as a bucket in [0, buckets), an int64: its XXH64 with `seed`, modulo `buckets`.

        Hash(buckets=1_000_000)    "Paris" -> xxh64(b"Paris", 0) % 1_000_000 = 320963

    Text is hashed as its UTF-8 bytes, binary values as they are, integers of every width as 8 bytes, little-endian.
    XXH64 has a specification and libraries in every language: the buckets are the same on every platform, in every
    version of this library, and where a model is served. Nulls stay nulls.

    Attributes:
        buckets: number of buckets.
        seed: any integer, taken modulo 2^64; with another seed, other values share a bucket.
    """

    buckets: int
    _: KW_ONLY
    seed: int = 0

    def __post_init__(self) -> None:
        hold_integers(self, "buckets", least=1)
        object.__setattr__(self, "seed", check_seed("seed", self.seed))

    @property
    def num_ids(self) -> int:
        """Number of rows that an embedding of these numbers needs."""
        return self.buckets

    def numbers(self, values: pa.Array) -> Int64s:
        """Return the bucket of each value, int64 [values]; undefined for nulls."""
        hashed = _integer_hashes(values, self.seed) if pt.is_integer(values.type) else _text_hashes(values, self.seed)
        buckets: Int64s = (hashed % np.uint64(self.buckets)).astype(np.int64)
        return buckets

    def encoded_type(self, data_type: pa.DataType) -> pa.DataType | None:
        """Return the type of encoded values of this type; None if values of this type cannot be hashed."""
        return _NUMBER if is_text(data_type) or pt.is_integer(data_type) else None


class Vocabulary:
    """Encoder of each value as its number, an int64: values are numbered in list order, from 0, leaving out `unknown`.

        Vocabulary(["DE", "FR"], unknown=0)     DE 1, FR 2, all others 0
        Vocabulary(["DE", "FR"], unknown=-1)    DE 0, FR 1, all others -1
        Vocabulary(["DE", "FR"], unknown=2)     DE 0, FR 1, all others 2

    Nulls stay nulls. `tdu vocabulary` writes a column's values to a file, and `Vocabulary.load` reads the file.

    Args:
        values: list or Arrow array of texts, binary values or integers, each value once.
        unknown: number that encodes every value outside the list.

    Raises:
        ConfigError: `values` has a null, or a value comes twice. ConfigTypeError: values have other types.
    """

    def __init__(self, values: object, *, unknown: int = 0) -> None:
        self.unknown = check_integer("unknown", unknown)
        self._values = vocabulary_values(values, "The vocabulary")
        self._seed, self._order = 0, np.zeros(0, np.int64)
        # Values are found by their hashes, with a seed that gives all values different hashes: the first seed, usually.
        while True:
            hashes = self._keys(self._values)
            self._order = np.argsort(hashes, kind="stable")
            self._sorted = hashes[self._order]
            same = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
            if not len(same):
                break
            self._check_once()
            self._seed += 1
        self._digest = short_digest(hashes.tobytes() + f"{self._values.type}".encode())

    @classmethod
    def load(cls, path: str | PathLike[str], *, unknown: int = 0) -> "Vocabulary":
        """Load the vocabulary of a Parquet file from `tdu vocabulary`: the values of its first column, in order.

        Raises:
            ConfigTypeError: `path` is not a path. ConfigError: the file does not exist, or is not a Parquet file with a
                column of valid values.
        """
        file = check_path("path", path)
        try:
            data = Path(file).read_bytes()
            opened = open_checked(data, file, partial(pq.ParquetFile, pa.BufferReader(data)))
            column = opened.read(columns=opened.schema_arrow.names[:1]).column(0)
        except (OSError, DataError, pa.ArrowException, UnicodeError, IndexError) as error:
            raise ConfigError(
                f"{path}: no vocabulary can be read from it ({error}). Pass a Parquet file that tdu vocabulary wrote."
            ) from error
        return cls(column, unknown=unknown)

    def __repr__(self) -> str:
        return f"Vocabulary(<{len(self._values):,} values, {self._digest}>, unknown={self.unknown})"

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._values)

    @property
    def num_ids(self) -> int:
        """Number of rows that an embedding of these numbers needs: the largest number plus 1."""
        known = len(self) - 1 + (0 <= self.unknown < len(self))
        return max(known, self.unknown) + 1

    def numbers(self, values: pa.Array) -> Int64s:
        """Return the number of each value, int64 [values]; undefined for nulls."""
        if not len(self):
            return np.full(len(values), self.unknown, dtype=np.int64)
        keys = self._keys(values)
        places = np.minimum(np.searchsorted(self._sorted, keys), len(self) - 1)
        found, positions = self._sorted[places] == keys, self._order[places]
        if pt.is_integer(values.type):
            if pt.is_uint64(values.type):  # values beyond int64 have the bits of negative int64 numbers
                found &= keys <= np.uint64(np.iinfo(np.int64).max)
        else:
            same = pc.equal(self._values.take(pa.array(positions)), values.cast(self._values.type))
            found &= same.fill_null(False).to_numpy(zero_copy_only=False)
        numbered = positions + (positions >= self.unknown) if self.unknown >= 0 else positions
        return np.where(found, numbered, self.unknown)

    def encoded_type(self, data_type: pa.DataType) -> pa.DataType | None:
        """Return the type of encoded values of this type; None if the vocabulary has values of another kind."""
        kinds = (pt.is_integer, is_utf8, is_binary)
        return _NUMBER if any(kind(data_type) and kind(self._values.type) for kind in kinds) else None

    def _keys(self, values: pa.Array) -> Words:
        """Return a 64-bit word for each value: an integer itself, or the hash of a text."""
        return integer_words(values) if pt.is_integer(values.type) else _text_hashes(values, self._seed)

    def _check_once(self) -> None:
        counted = pc.value_counts(self._values)
        twice = counted.filter(pc.greater(counted.field("counts"), 1))
        if len(twice):
            raise ConfigError(
                f"The vocabulary has {twice[0]['values'].as_py()!r} more than once: name each value once. `tdu "
                "vocabulary` counts the values of a column."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """Encoder of a text as its UTF-8 bytes, and of a binary value as its bytes: a list of uint8 a row.

    Tensor batches have a `Ragged` of these bytes, for tokenising on the device. No byte is copied. Nulls stay nulls.
    """

    def encoded_type(self, data_type: pa.DataType) -> pa.DataType | None:
        """Return the type of encoded values of this type; None if the type is neither text nor binary."""
        if not is_text(data_type):
            return None
        is_large = pt.is_large_string(data_type) or pt.is_large_binary(data_type)
        return pa.large_list(pa.uint8()) if is_large else pa.list_(pa.uint8())


Encoder = Hash | Vocabulary | Bytes


def encoded_schema(delivered: pa.Schema, encode: Mapping[str, Encoder] | None) -> pa.Schema:
    """Return the schema of the delivered columns, with the columns of `encode` in their encoded types.

    Raises:
        ConfigError: a column is not delivered, or has a type that its encoder does not take.
    """
    for name, encoder in (encode or {}).items():
        index = delivered.get_field_index(name)
        if index < 0:
            raise ConfigError(
                f"encode= names column {name!r}, which batches do not have; {which_column(name, delivered.names)} "
                "Correct the name, or name it in columns= too."
            )
        column = delivered.field(index)
        delivered = delivered.set(index, column.with_type(_encoded_type(column, encoder)))
    return delivered


def is_hashed(data_type: pa.DataType) -> bool:
    """Return whether `Hash` takes columns of this type."""
    return _with_items(data_type, Hash(buckets=1)) is not None


def _encoded_type(column: pa.Field, encoder: Encoder) -> pa.DataType:
    data_type = decoded_type(column.type)
    if isinstance(encoder, Bytes):
        found = encoder.encoded_type(data_type)
        wanted = "text or binary values"
    else:
        found = _with_items(data_type, encoder)
        kind = "" if isinstance(encoder, Hash) else f", as its values ({encoder._values.type}) are"
        wanted = f"text, binary values, integers, or lists of them{kind}"
    if found is None:
        raise ConfigError(
            f"encode={{{column.name!r}: {encoder!r}}}: the column is {column.type}, and {type(encoder).__name__} "
            f"takes columns of {wanted}. Choose another encoder, or leave the column out of encode=."
        )
    return found


def _with_items(data_type: pa.DataType, encoder: Hash | Vocabulary) -> pa.DataType | None:
    """Return the type with its items encoded, at any depth of lists."""
    data_type = decoded_type(data_type)
    if not is_list(data_type):
        return encoder.encoded_type(data_type)
    item = _with_items(data_type.value_type, encoder)
    if item is None:
        return None
    if pt.is_fixed_size_list(data_type):
        return pa.list_(item, data_type.list_size)
    return pa.large_list(item) if pt.is_large_list(data_type) else pa.list_(item)


def encoded(array: pa.Array, encoder: Encoder) -> pa.Array:
    """Return the encoded column. Each distinct text is encoded once."""
    if isinstance(encoder, Bytes):
        return _as_bytes(plain(array))
    if pt.is_run_end_encoded(array.type):
        array = plain(array)
    data_type = array.type
    if is_list(data_type):
        return change_items(array, partial(encoded, encoder=encoder))
    if pt.is_dictionary(data_type):
        return encoded(array.dictionary, encoder).take(array.indices)
    if not is_text(data_type):
        return _numbered(array, encoder)
    distinct = array.dictionary_encode()
    return _numbered(distinct.dictionary, encoder).take(distinct.indices)


def _numbered(values: pa.Array, encoder: Hash | Vocabulary) -> pa.Array:
    valid = validity(values)
    return pa.array(encoder.numbers(values), mask=None if valid is None else ~valid)


def _as_bytes(array: pa.Array) -> pa.Array:
    wanted = Bytes().encoded_type(array.type)
    valid, offsets, data = array.buffers()
    size = 0 if data is None else data.size
    items = pa.Array.from_buffers(pa.uint8(), size, [None, pa.py_buffer(b"") if data is None else data])
    return pa.Array.from_buffers(wanted, len(array), [valid, offsets], offset=array.offset, children=[items])


def _text_hashes(values: pa.Array, seed: int) -> Words:
    return hash_bytes(byte_spans(values), seed)


def _integer_hashes(values: pa.Array, seed: int) -> Words:
    return hash_integers(integer_words(values), seed)


def vocabulary_values(values: object, what: str) -> pa.Array:
    """Return the values as large_string, large_binary or int64, in one array.

    what: name of the values' owner, for messages.

    Raises:
        ConfigTypeError: the values have another type. ConfigError: a null, or an integer beyond int64.
    """
    # Arrow would take the letters of a text, a set in an order that changes with the process, and the keys of a mapping
    # without its values.
    if isinstance(values, str | bytes | set | frozenset | Mapping):
        advice = "; Vocabulary.load(path) reads a file" if isinstance(values, str) else ""
        raise ConfigTypeError(
            f"values is {of_type(values)}: pass a list of texts, or of integers, in a fixed order{advice}."
        )
    try:
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ConfigTypeError(
            f"values is {of_type(values)}: pass a list of texts, or of integers ({error})."
        ) from error
    array = plain(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)
    if array.null_count:
        raise ConfigError(f"{what} has {array.null_count} nulls: leave them out (nulls= says what they become).")
    kinds = {is_utf8: pa.large_string(), is_binary: pa.large_binary(), pt.is_integer: _NUMBER}
    kinds[pt.is_null] = pa.large_string()  # no values at all
    wanted = next((wanted for is_kind, wanted in kinds.items() if is_kind(array.type)), None)
    if wanted is None:
        raise ConfigTypeError(f"{what} has values of type {array.type}, and wants texts, binary values or integers.")
    try:
        return array.cast(wanted)
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{what} has an integer beyond int64 ({error}). Leave it out.") from error
