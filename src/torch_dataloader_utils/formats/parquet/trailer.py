"""Trailer of a Parquet file (footer length as uint32, magic), and checks of the footer before it.

Source: parquet-format, "File Format"; "Parquet Modular Encryption", "Plaintext footer mode".
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch_dataloader_utils import _engine
from torch_dataloader_utils.errors import CorruptFileError, UnsupportedFeatureError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

TRAILER_BYTES = 8
MAGIC = b"PAR1"

# Magic of a file with an encrypted footer.
_ENCRYPTED_MAGIC = b"PARE"

# Bytes of a nonce and a tag after the footer: the columns are encrypted, and the footer is not.
_SIGNATURE_BYTES = 28

# Limits above the need of any table; hostile files may exceed them. To decode a footer takes about 30 times its bytes
# in memory, and some Python objects for each column and row group.
_MOST_FOOTER_BYTES = 64 << 20
_MOST_COLUMNS = 100_000
_MOST_ROW_GROUPS = 100_000


def footer_length(tail: bytes | memoryview) -> int:
    """Return the length of the footer, trailer included; tail: Last bytes of the file."""
    return int.from_bytes(tail[-TRAILER_BYTES:][:4], "little") + TRAILER_BYTES


def checked_footer_length(tail: bytes | memoryview, file_size: int, where: str) -> int:
    """Return the length of the footer, trailer included, for bytes that were not checked yet. May exceed `tail`.

    where: File, for messages.

    Raises:
        CorruptFileError: the file does not end with a footer (it was cut, or is not a Parquet file), or the footer is
            larger than the file.
        UnsupportedFeatureError: the footer is encrypted, or has too many bytes.
    """
    if len(tail) < len(MAGIC) + TRAILER_BYTES:
        raise _corrupt(where, f"{file_size:,} bytes are too few for a Parquet file")
    magic = bytes(tail[-len(MAGIC) :])
    if magic == _ENCRYPTED_MAGIC:
        raise UnsupportedFeatureError(
            f"{where}: the footer is encrypted, which is not supported. Write the file again unencrypted."
        )
    if magic != MAGIC:
        raise _corrupt(where, "this is not a Parquet file, or it was cut (it does not end with PAR1)")
    length = footer_length(tail)
    if length > file_size:
        raise _corrupt(where, f"the footer claims {length:,} bytes of a file of {file_size:,}")
    _check_most(where, length, _MOST_FOOTER_BYTES, "bytes of footer")
    return length


def check_structure(tail: bytes | memoryview, where: str) -> None:
    """Raise an error for a footer that contradicts itself; arguments as for `check_unsigned`.

    Call it before pyarrow parses the footer: pyarrow ends the process where levels, counts or types do not fit. Without
    the compiled decoder nothing is checked.

    Raises:
        CorruptFileError: the footer does not parse, its schema is not a tree, or row groups do not have its columns.
        UnsupportedFeatureError: encrypted columns, or a schema that is too deep.
    """
    fault, group, leaf, _ = _structure(tail)
    match fault:
        case "":
            return
        case "it has encrypted columns":
            raise _encrypted(where)
        case "its schema is too deep":
            raise UnsupportedFeatureError(
                f"{where}: {fault}, of more than 100 levels. Write the table again with fewer."
            )
    place = f" (row group {group})" if leaf < 0 else f" (row group {group}, leaf column {leaf})"
    raise _corrupt(where, f"the footer contradicts itself: {fault}{place if group >= 0 else ''}")


def has_sound_bounds(tail: bytes | memoryview) -> bool:
    """Return whether bounds in statistics are values of their columns. pyarrow ends the process where they are not."""
    return _structure(tail)[3]


def _structure(tail: bytes | memoryview) -> tuple[str, int, int, bool]:
    encoded = memoryview(tail)[-footer_length(tail) : -TRAILER_BYTES]
    return _engine.check_footer(encoded) if _engine.IS_BUILT else ("", -1, -1, True)


def check_unsigned(tail: bytes | memoryview, metadata: "pq.FileMetaData", where: str) -> None:
    """Raise an error for a file with encrypted columns and a plain footer. Such a footer is signed.

    Call it before any chunk is asked for: pyarrow ends the process if the chunk is encrypted.

    tail: End of the file. metadata: Footer of the file. where: File, for messages.

    Raises:
        UnsupportedFeatureError: columns are encrypted.
    """
    if footer_length(tail) - TRAILER_BYTES - metadata.serialized_size == _SIGNATURE_BYTES:
        raise _encrypted(where)


def check_footer(tail: bytes | memoryview, metadata: "pq.FileMetaData", where: str) -> None:
    """Raise an error for a parsed footer that cannot be used; arguments as for `check_unsigned`.

    Raises:
        UnsupportedFeatureError: encrypted columns, or more columns or row groups than any table needs.
    """
    check_unsigned(tail, metadata, where)
    _check_most(where, metadata.num_columns, _MOST_COLUMNS, "leaf columns")
    _check_most(where, metadata.num_row_groups, _MOST_ROW_GROUPS, "row groups")


def check_metadata(tail: bytes | memoryview, metadata: "pq.FileMetaData", where: str) -> None:
    """Raise an error for the footer of a data file that cannot be used; arguments as for `check_unsigned`.

    Raises:
        UnsupportedFeatureError: see `check_footer`, or column chunks lie in other files.
    """
    check_footer(tail, metadata, where)
    if metadata.num_row_groups and metadata.num_columns and metadata.row_group(0).column(0).file_path:
        raise UnsupportedFeatureError(
            f"{where}: its column chunks lie in other files (a _metadata file?). Name the data files themselves."
        )


def chunk_start(data_start: int, dictionary_start: int | None) -> int:
    """Return the start of a chunk's first page. Some writers store 0 for "no dictionary page"."""
    return dictionary_start if dictionary_start and 0 < dictionary_start < data_start else data_start


def open_checked(data: bytes | memoryview, where: str, open_file: Callable[[], "pq.ParquetFile"]) -> "pq.ParquetFile":
    """Return the file that `open_file` makes of a whole file's bytes, checked before and after.

    The check before names a file that is not a Parquet file. The check after keeps encrypted columns from being used.

    Raises:
        CorruptFileError, UnsupportedFeatureError: see `checked_footer_length` and `check_unsigned`.
    """
    checked_footer_length(data, len(data), where)
    check_structure(data, where)
    file = open_file()
    check_unsigned(data, file.metadata, where)
    return file


def _check_most(where: str, count: int, most: int, what: str) -> None:
    if count > most:
        raise UnsupportedFeatureError(
            f"{where}: the file has {count:,} {what}, the limit is {most:,}. Write the table as more files, or check "
            "this one."
        )


def _encrypted(where: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"{where}: columns are encrypted, which is not supported. Write the file again unencrypted."
    )


def _corrupt(where: str, what: str) -> CorruptFileError:
    return CorruptFileError(
        f"{where}: {what}. The file is damaged, incomplete or of another format; write it again or leave it out."
    )
