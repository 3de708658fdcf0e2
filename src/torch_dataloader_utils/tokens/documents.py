"""Documents of a data file, one row group (Parquet) or stripe (ORC) at a time, as flat tokens and offsets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc
import pyarrow.parquet as pq

from torch_dataloader_utils.errors import CorruptFileError, NullValueError, RowCountError, SchemaError

# Texts of one batch to the token lists of each.
Tokenizer = Callable[[list[str]], Sequence[Sequence[int]]]
FileFormat = Literal["parquet", "orc"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DocumentBatch:
    """Document i is tokens[offsets[i]:offsets[i + 1]]; `null_count` rows were left out before."""

    tokens: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]
    null_count: int


class DataFile:
    """An open Parquet or ORC file that gives one column, group by group."""

    def __init__(self, path: str, file_format: FileFormat, storage_options: dict[str, Any] | None = None) -> None:
        self.path = path
        self.format = file_format
        self._stream = fsspec.open(path, "rb", **(storage_options or {})).open()
        try:
            # Checksums of pages are not looked at by default, and a flipped bit would become another token.
            self._data: Any = (
                pq.ParquetFile(self._stream, page_checksum_verification=True)
                if file_format == "parquet"
                else orc.ORCFile(self._stream)
            )
        except (pa.ArrowException, OSError) as error:
            self.close()
            raise CorruptFileError(f"{path} cannot be opened as {file_format}: {error}.") from error

    @property
    def group_bytes(self) -> list[int]:
        """About how many bytes each group unpacks to; ORC tells only the size of the file."""
        if self.format == "parquet":
            metadata = self._data.metadata
            return [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]
        stripes = self._data.nstripes
        return [self._stream.seek(0, 2) // stripes] * stripes if stripes else []

    def read_column(self, group: int, column: str) -> pa.Array:
        """The column of one group as one array.

        Raises:
            SchemaError: the file has no such column.
            CorruptFileError: the group does not decode.
            RowCountError: another number of rows than the Parquet footer says.
        """
        is_parquet = self.format == "parquet"
        names = (self._data.schema_arrow if is_parquet else self._data.schema).names
        if column not in names:
            raise SchemaError(f"{self.path} has no column {column!r}; it has {names}.")
        try:
            if is_parquet:
                data = self._data.read_row_group(group, columns=[column], use_threads=False)
            else:
                data = self._data.read_stripe(group, columns=[column])
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise CorruptFileError(f"{self.path} group {group} does not decode: {error}.") from error
        planned = self._data.metadata.row_group(group).num_rows if is_parquet else data.num_rows
        if data.num_rows != planned:
            raise RowCountError(f"{self.path} group {group} gave {data.num_rows} of {planned} rows. Write it again.")
        values = data.column(column)
        return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def split_documents(column: pa.Array, tokenizer: Tokenizer | None, *, skips_nulls: bool, where: str) -> DocumentBatch:
    """The documents of a list column of integers, or of a text column through `tokenizer`.

    Raises:
        SchemaError: neither lists of integers, nor text with a tokenizer.
        NullValueError: a null token, or a null document without `skips_nulls`.
    """
    null_count = column.null_count
    if null_count and not skips_nulls:
        raise NullValueError(f"{where} has {null_count} null documents. Pass skips_nulls=True to leave them out.")
    present = column.drop_null()
    if tokenizer is not None:
        tokens, offsets = _tokenize(present, tokenizer, where)
    else:
        tokens, offsets = _flatten(present, where)
    return DocumentBatch(tokens=tokens, offsets=offsets, null_count=null_count)


def _flatten(column: pa.Array, where: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not is_list or not pa.types.is_integer(kind.value_type):
        raise SchemaError(f"{where} has the type {kind}; lists of integers are needed, or text and a tokenizer.")
    tokens = column.flatten()
    if tokens.null_count:
        raise NullValueError(f"{where} has {tokens.null_count} null tokens. A corpus has no null: clean the column.")
    offsets = np.zeros(len(column) + 1, dtype=np.int64)
    np.cumsum(pc.list_value_length(column).to_numpy(zero_copy_only=False), out=offsets[1:])
    return tokens.to_numpy(zero_copy_only=False), offsets


def _tokenize(column: pa.Array, tokenizer: Tokenizer, where: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise SchemaError(f"{where} has the type {column.type}; a tokenizer needs text.")
    texts = column.to_pylist()
    lists = tokenizer(texts) if texts else []
    if len(lists) != len(texts):
        raise SchemaError(f"The tokenizer gave {len(lists)} token lists for the {len(texts)} texts of {where}.")
    offsets = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([len(tokens) for tokens in lists], out=offsets[1:])
    pieces = [np.asarray(tokens, dtype=np.int64) for tokens in lists]
    return (np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)), offsets
