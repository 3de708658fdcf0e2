"""The last bytes of a Parquet file, the length of its footer (uint32) and the magic; and which footers are refused.

Source: parquet-format, "File Format"; "Parquet Modular Encryption", "Plaintext footer mode".
"""

from collections.abc import Callable
from typing import Any

from torch_dataloader_utils.errors import CorruptFileError, UnsupportedFeatureError

TRAILER_BYTES = 8
MAGIC = b"PAR1"

# In place of the magic, where the footer is encrypted.
_ENCRYPTED_MAGIC = b"PARE"

# A nonce and a tag, which follow the footer of a file whose columns are encrypted and its footer is not.
_SIGNATURE_BYTES = 28

# More than any table needs, and what hostile files have: decoding a footer takes about 30 times its bytes of memory,
# and each column and row group some Python objects.
_MOST_FOOTER_BYTES = 64 << 20
_MOST_COLUMNS = 100_000
_MOST_ROW_GROUPS = 100_000


def footer_length(tail: bytes | memoryview) -> int:
    """How long the footer of a file is that ends in these bytes, trailer included."""
    return int.from_bytes(tail[-TRAILER_BYTES:][:4], "little") + TRAILER_BYTES


def checked_footer_length(tail: bytes | memoryview, file_size: int, where: str) -> int:
    """The same of bytes that nobody looked at yet; it may be more than they are.

    file_size: of the file. where: what messages call it.

    Raises:
        CorruptFileError: no footer ends the file (it was cut, or is no Parquet file), or one larger than the file.
        UnsupportedFeatureError: the footer is encrypted, or of too many bytes.
    """
    if len(tail) < len(MAGIC) + TRAILER_BYTES:
        raise _corrupt(where, f"{file_size:,} bytes are too few for a Parquet file")
    magic = bytes(tail[-len(MAGIC) :])
    if magic == _ENCRYPTED_MAGIC:
        raise UnsupportedFeatureError(
            f"{where}: the footer is encrypted, which is not supported. Write the file again unencrypted."
        )
    if magic != MAGIC:
        raise _corrupt(where, "this is no Parquet file, or it was cut (it does not end with PAR1)")
    length = footer_length(tail)
    if length > file_size:
        raise _corrupt(where, f"the footer claims {length:,} bytes of a file of {file_size:,}")
    _check_most(where, length, _MOST_FOOTER_BYTES, "bytes of footer")
    return length


def check_unsigned(tail: bytes | memoryview, metadata: Any, where: str) -> None:
    """Refuse a file that is encrypted though its footer is not: the footer is signed then.

    For before the metadata are asked of any chunk: pyarrow ends the process if that one is encrypted.

    tail: what the file ends with. metadata: its footer (pyarrow.parquet.FileMetaData). where: as above.

    Raises:
        UnsupportedFeatureError: whichever columns are encrypted.
    """
    if footer_length(tail) - TRAILER_BYTES - metadata.serialized_size == _SIGNATURE_BYTES:
        raise UnsupportedFeatureError(
            f"{where}: columns are encrypted, which is not supported. Write the file again unencrypted."
        )


def check_footer(tail: bytes | memoryview, metadata: Any, where: str) -> None:
    """Refuse a footer once it is parsed; arguments as of `check_unsigned`.

    Raises:
        UnsupportedFeatureError: encrypted columns, or more columns or row groups than any table needs.
    """
    check_unsigned(tail, metadata, where)
    _check_most(where, metadata.num_columns, _MOST_COLUMNS, "leaf columns")
    _check_most(where, metadata.num_row_groups, _MOST_ROW_GROUPS, "row groups")


def check_metadata(tail: bytes | memoryview, metadata: Any, where: str) -> None:
    """The same of a data file; UnsupportedFeatureError too if it only says where column chunks lie."""
    check_footer(tail, metadata, where)
    if metadata.num_row_groups and metadata.num_columns and metadata.row_group(0).column(0).file_path:
        raise UnsupportedFeatureError(
            f"{where}: its column chunks lie in other files (a _metadata file?). Name the data files themselves."
        )


def open_checked(data: bytes | memoryview, where: str, open_file: Callable[[], Any]) -> Any:
    """The pyarrow.parquet.ParquetFile that `open_file` makes of a whole file's bytes, checked before and after.

    Before, so that messages tell what is no Parquet file; after, so that nothing can be asked of encrypted columns.

    Raises:
        CorruptFileError, UnsupportedFeatureError: as `checked_footer_length` and `check_unsigned`.
    """
    checked_footer_length(data, len(data), where)
    file = open_file()
    check_unsigned(data, file.metadata, where)
    return file


def _check_most(where: str, count: int, most: int, what: str) -> None:
    if count > most:
        raise UnsupportedFeatureError(
            f"{where}: the file has {count:,} {what}, the limit is {most:,}. Write the table as more files, or check "
            "this one."
        )


def _corrupt(where: str, what: str) -> CorruptFileError:
    return CorruptFileError(
        f"{where}: {what}. The file is damaged, incomplete or of another format; write it again or leave it out."
    )
