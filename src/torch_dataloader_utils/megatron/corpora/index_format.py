"""Decode, check and encode the header and the arrays of the .idx file of a token corpus.

    offset          size    content (all little-endian, nothing aligned)
    0               9       magic "MMIDIDX\\0\\0"
    9               8       version, uint64 = 1
    17              1       dtype code, uint8
    18              8       sequence count S, uint64
    26              8       document count D, uint64: entries of the document array, documents + 1
    34              4 S     tokens of each sequence, int32
    34 + 4 S        8 S     byte offset of each sequence in .bin, int64
    34 + 12 S       8 D     document boundaries as sequence indices, int64: first 0, last S
    34 + 12 S + 8 D S       mode of each sequence, int8; only in multimodal corpora

Source: Megatron-Core's indexed data set; the files are the same byte for byte. Nothing here does I/O.
"""

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.arguments import check_integer
from torch_dataloader_utils._store import FileStat, redact
from torch_dataloader_utils.errors import ConfigTypeError, CorruptFileError, FileChangedError, SchemaError

TokenDtype = np.dtype[Any]

DTYPES: MappingProxyType[int, TokenDtype] = MappingProxyType(
    {
        1: np.dtype("<u1"),
        2: np.dtype("<i1"),
        3: np.dtype("<i2"),
        4: np.dtype("<i4"),
        5: np.dtype("<i8"),
        6: np.dtype("<f8"),
        7: np.dtype("<f4"),
        8: np.dtype("<u2"),
    }
)

# Not 65,536: existing corpora were written with this limit, and a few ids are kept for padding the vocabulary.
_UINT16_VOCABULARY_LIMIT = 65_500


def dtype_code(dtype: object) -> int:
    """Return the header byte of a numpy dtype, or of anything that numpy converts to a dtype.

    Raises:
        ConfigTypeError: not a dtype, or a dtype without a code in the format.
    """
    names = ", ".join(known.name for known in DTYPES.values())
    try:
        wanted = np.dtype(dtype)  # type: ignore[call-overload]
    except (TypeError, ValueError) as error:
        raise ConfigTypeError(f"{dtype!r} is not a type of tokens; the format knows {names}.") from error
    for code, known in DTYPES.items():
        if known == wanted:
            return code
    raise ConfigTypeError(f"A token corpus cannot hold {wanted.name}; the format knows {names}.")


def select_dtype(vocabulary_size: int | None) -> TokenDtype:
    """Return the dtype for a vocabulary: uint16 below 65,500 entries, else int32, else int64.

        vocabulary_size    65,499    65,500    2^31    2^31 + 1    None
        dtype              uint16    int32     int32   int64       int32

    Raises:
        ConfigTypeError, ConfigError: not a whole number, or one below 1.
    """
    if vocabulary_size is None:
        return DTYPES[4]
    check_integer("vocabulary_size", vocabulary_size, least=1)
    if vocabulary_size < _UINT16_VOCABULARY_LIMIT:
        return DTYPES[8]
    return DTYPES[4] if vocabulary_size <= 2**31 else DTYPES[5]


def integer_limits(dtype: TokenDtype) -> tuple[int, int]:
    """Return the lowest and the highest integer of the range in which the dtype holds every integer.

    uint16    0 and 65,535          float32    -2^24 and 2^24: 2^24 + 1 would become another token
    """
    if dtype.kind == "f":
        whole = 2 ** (int(np.finfo(dtype).nmant) + 1)
        return -whole, whole
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def wider_dtype(*tokens: int) -> str:
    """Return advice, for messages, on tokens that do not fit the dtype of a corpus.

    `tokens` are the tokens that do not fit, or their lowest and highest.
    """
    for dtype in map(select_dtype, (1, 2**31, 2**31 + 1)):
        low, high = integer_limits(dtype)
        if all(low <= token <= high for token in tokens):
            return f"Pass dtype=np.{dtype.name}, which holds up to {high:,}; the default is int32."
    return f"The widest type of a corpus is {dtype.name}, up to {high:,}: check the tokens."


MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
_HEADER = struct.Struct("<9sQBQQ")
HEADER_BYTES = _HEADER.size

# Entries checked at a time: enough to amortise numpy's calls, with 8 MiB of temporaries at most.
_CHECK_ENTRIES = 1 << 20

_REBUILD = "Copy or build the corpus again."


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexHeader:
    """Decoded header, the first 34 bytes. The counts can be wrong until `check_index_size` has passed."""

    dtype: TokenDtype
    sequence_count: int
    document_count: int

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Byte ranges [start, stop) of lengths, pointers, documents and modes, in that order."""
        lengths_end = HEADER_BYTES + 4 * self.sequence_count
        pointers_end = lengths_end + 8 * self.sequence_count
        documents_end = pointers_end + 8 * self.document_count
        modes_end = documents_end + self.sequence_count
        ends = (HEADER_BYTES, lengths_end, pointers_end, documents_end, modes_end)
        return tuple(itertools.pairwise(ends))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenIndex:
    """Arrays of an .idx file; views of a mapped file are read-only and unaligned.

    Attributes:
        header: the header of the file.
        sequence_lengths: int32 [S]: number of tokens of each sequence.
        sequence_pointers: int64 [S]: byte offset of each sequence in the .bin file.
        document_indices: int64 [D]: document boundaries as sequence indices.
        sequence_modes: int8 [S]: mode of each sequence, or None.
    """

    header: IndexHeader
    sequence_lengths: npt.NDArray[np.int32]
    sequence_pointers: npt.NDArray[np.int64]
    document_indices: npt.NDArray[np.int64]
    sequence_modes: npt.NDArray[np.int8] | None


def decode_header(data: bytes | memoryview, *, path: str) -> IndexHeader:
    """Decode the header from the first 34 bytes of `data`.

    Raises:
        CorruptFileError: fewer bytes, or another magic, version or dtype code.
    """
    if len(data) < HEADER_BYTES:
        raise CorruptFileError(
            f"{path} is truncated: {len(data)} bytes, the header alone has {HEADER_BYTES}. {_REBUILD}"
        )
    magic, version, code, sequence_count, document_count = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CorruptFileError(
            f"{path} is not a token index: it begins with {magic!r}, not {MAGIC!r}. Give the prefix of an .idx and a "
            ".bin file."
        )
    if version != VERSION:
        raise CorruptFileError(f"{path} has index version {version}; only version {VERSION} is known.")
    if code not in DTYPES:
        raise CorruptFileError(f"{path} has dtype code {code}; known are {sorted(DTYPES)}. {_REBUILD}")
    return IndexHeader(dtype=DTYPES[code], sequence_count=sequence_count, document_count=document_count)


def check_index_size(header: IndexHeader, *, index_bytes: int, multimodal: bool, path: str) -> bool:
    """Check the counts of the header against the size of the file. Return whether the file has modes.

    The size must be exact, with or without modes, so a file cut at any byte is refused before anything is allocated
    from its counts.

    Raises:
        CorruptFileError: the size fits neither layout, or the document array is empty.
        SchemaError: `multimodal` was asked for and the file has no modes.
    """
    if header.document_count < 1:
        raise CorruptFileError(f"{path} has an empty document array; it has at least the entry 0. {_REBUILD}")
    plain_bytes, modes_bytes = header.spans[2][1], header.spans[3][1]
    if index_bytes not in (plain_bytes, modes_bytes):
        raise CorruptFileError(
            f"{path} has {index_bytes} bytes; its header ({header.sequence_count} sequences, "
            f"{header.document_count} document entries) means {plain_bytes}, or {modes_bytes} with modes. {_REBUILD}"
        )
    has_modes = index_bytes == modes_bytes
    if multimodal and not has_modes:
        raise SchemaError(f"{path} has no sequence modes. Open it with multimodal=False.")
    return has_modes


def decode_arrays(header: IndexHeader, buffers: list[Any], *, with_modes: bool) -> TokenIndex:
    """Return the arrays as views of the buffers of `header.spans` (three, or four with modes); no copy is made."""
    lengths, pointers, documents = (
        np.frombuffer(buffer, dtype=dtype) for buffer, dtype in zip(buffers[:3], ("<i4", "<i8", "<i8"), strict=True)
    )
    return TokenIndex(
        header=header,
        sequence_lengths=lengths,
        sequence_pointers=pointers,
        document_indices=documents,
        sequence_modes=np.frombuffer(buffers[3], dtype="<i1") if with_modes else None,
    )


def check_arrays(index: TokenIndex, *, bin_bytes: int, path: str) -> None:
    """Raise unless the index describes exactly `bin_bytes` bytes of tokens.

    Every pointer must be the end of the sequence before (all known writers lay sequences end to end), the last end
    must be the size of .bin, and document boundaries must rise from 0 to the sequence count.

    Raises:
        CorruptFileError: the index is wrong; the message names the first wrong sequence or document.
    """
    itemsize = index.header.dtype.itemsize
    end = 0
    for start, stop in _blocks(index.header.sequence_count):
        lengths = index.sequence_lengths[start:stop].astype(np.int64)
        if lengths.min() < 0:
            wrong = start + int(np.argmax(lengths < 0))
            raise CorruptFileError(f"{path}: sequence {wrong} has the length {lengths[wrong - start]}. {_REBUILD}")
        ends = end + np.cumsum(lengths) * itemsize
        misplaced = np.flatnonzero(index.sequence_pointers[start:stop] != ends - lengths * itemsize)
        if misplaced.size:
            at = int(misplaced[0])
            raise CorruptFileError(
                f"{path}: sequence {start + at} should begin at byte {ends[at] - lengths[at] * itemsize}, its pointer "
                f"says {index.sequence_pointers[start + at]}. {_REBUILD}"
            )
        end = int(ends[-1])
        if end > bin_bytes:
            break
    if end != bin_bytes:
        raise CorruptFileError(f"{path} describes at least {end} bytes of tokens, its .bin has {bin_bytes}. {_REBUILD}")
    _check_documents(index, path=path)


def _check_documents(index: TokenIndex, *, path: str) -> None:
    documents, sequence_count = index.document_indices, index.header.sequence_count
    if documents[0] != 0 or documents[-1] != sequence_count:
        raise CorruptFileError(
            f"{path}: document boundaries go from {documents[0]} to {documents[-1]}, not from 0 to {sequence_count} "
            f"(the sequence count). {_REBUILD}"
        )
    for start, stop in _blocks(len(documents)):
        block = documents[start : stop + 1]
        falling = np.flatnonzero(block[1:] < block[:-1])
        if falling.size:
            raise CorruptFileError(f"{path}: document boundary {start + int(falling[0]) + 1} goes back. {_REBUILD}")


def _blocks(count: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + _CHECK_ENTRIES, count)) for start in range(0, count, _CHECK_ENTRIES))


def encode_index(
    *,
    dtype: TokenDtype,
    sequence_lengths: npt.NDArray[np.int32],
    document_indices: npt.NDArray[np.int64],
    sequence_modes: npt.NDArray[np.int8] | None,
) -> list[bytes]:
    """Return the bytes of an .idx file as pieces to write in order; pointers are computed from lengths.

    lengths 3 2 4 of uint16 with boundaries 0 2 3 give pointers 0 6 10 and 94 bytes.
    """
    lengths = np.ascontiguousarray(sequence_lengths, dtype="<i4")
    pointers = np.zeros(len(lengths), dtype="<i8")
    np.cumsum(lengths[:-1], dtype=np.int64, out=pointers[1:])
    pointers *= dtype.itemsize
    header = _HEADER.pack(MAGIC, VERSION, dtype_code(dtype), len(lengths), len(document_indices))
    pieces = [header, lengths.tobytes(), pointers.tobytes(), document_indices.astype("<i8").tobytes()]
    if sequence_modes is not None:
        pieces.append(sequence_modes.astype("<i1").tobytes())
    return pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFacts:
    """Counts and identities of a corpus, known before the corpus is opened.

    Attributes:
        sequence_count: number of sequences.
        document_count: number of entries of the document array (documents + 1), as in the format.
        token_count: number of tokens, or None if the sequences file does not have the number.
        identities: size and identity of .idx and .bin, or None if the sequences file does not have them.
    """

    sequence_count: int
    document_count: int
    token_count: int | None = None
    identities: tuple[FileStat, FileStat] | None = None

    def check(self, header: IndexHeader, identities: tuple[FileStat, FileStat], *, path_prefix: str) -> None:
        """Compare the facts with the opened files.

        Raises:
            FileChangedError: counts or identities differ; the message shows both sides.
        """
        seen = (header.sequence_count, header.document_count)
        known = (self.sequence_count, self.document_count)
        if seen != known or (self.identities is not None and self.identities != identities):
            raise FileChangedError(
                f"{redact(path_prefix)} is not the corpus that the sequences file describes: {seen} sequences and "
                f"document entries, {identities}; the file says {known}, {self.identities}. Write the file again."
            )
