"""Documents of a list column: all tokens as one array, and where documents begin and end."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._arrow.schema import is_list
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils.errors import NullValueError


def plain_type(data_type: pa.DataType) -> pa.DataType:
    """Return the list or string type for views of lists, views of strings and text in a dictionary; others unchanged.

    list_view<int32>   list<int32>          string_view                  large_string
    list<int32>        list<int32>          dictionary<string, int32>    string
    """
    if pa.types.is_list_view(data_type):
        return pa.list_(data_type.value_field)
    if pa.types.is_large_list_view(data_type):
        return pa.large_list(data_type.value_field)
    if pa.types.is_string_view(data_type):
        return pa.large_string()
    if pa.types.is_dictionary(data_type):
        return plain_type(data_type.value_type)
    return data_type


def is_integer_list(plain: pa.DataType) -> bool:
    """Return whether values of a plain type are lists of integers, of any length or of a fixed length."""
    return is_list(plain) and bool(pa.types.is_integer(plain.value_type))


def to_plain(column: pa.Array) -> pa.Array:
    """Return the same values and nulls in their `plain_type`; nothing is copied where the type is plain already.

    Views of lists stay, because `flatten` and `list_offsets` accept them. A cast in pyarrow 26.0.1 would give one
    offset too few: the end of the last list would be random memory.
    """
    plain = plain_type(column.type)
    is_list_view = pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type)
    return column if plain == column.type or is_list_view else column.cast(plain)


def list_offsets(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return where lists, or views of lists, begin in the result of `flatten`, and where the last ends; from 0.

    [[7, 8], null, [9]]      0 2 2 3
    """
    lengths = pc.list_value_length(column)
    offsets = np.zeros(len(column) + 1, dtype=np.int64)
    np.cumsum(lengths.fill_null(0) if lengths.null_count else lengths, out=offsets[1:])
    return offsets


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Documents:
    """Documents of a column as arrays.

    values: All tokens. offsets: int64 [documents + 1], from 0; document d is values[offsets[d]:offsets[d + 1]].
    """

    values: npt.NDArray[Any]
    offsets: Int64s

    @property
    def lengths(self) -> Int64s:
        """Number of tokens of each document, int64 [documents]."""
        return np.diff(self.offsets)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Integer type of the column."""
        return self.values.dtype


def list_documents(column: pa.Array, where: str) -> Documents:
    """Return the documents of a list column; null lists are empty documents.

    Args:
        column: Lists of integers, or views of lists of integers.
        where: Name of the row group, for the message.

    Raises:
        NullValueError: a null among the tokens.
    """
    column = to_plain(column)
    tokens = column.flatten()
    if tokens.null_count:
        raise NullValueError(
            f"{where} has {tokens.null_count} null tokens of {len(tokens)}. No token can stand for them: clean the "
            "column, or filter the rows with nulls out."
        )
    return Documents(values=tokens.to_numpy(zero_copy_only=False), offsets=list_offsets(column))
