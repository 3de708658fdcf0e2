"""Views and dictionaries of Arrow converted to the plain list and string types that documents are taken from."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._formats.arrow_schema import is_list


def plain_type(data_type: pa.DataType) -> pa.DataType:
    """The list or string type for views of lists, views of strings and text in a dictionary; others as they are.

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
    """Whether values of a plain type are lists of integers, of any length or of one."""
    return is_list(plain) and bool(pa.types.is_integer(plain.value_type))


def to_plain(column: pa.Array) -> pa.Array:
    """The same values and nulls in their `plain_type`; nothing is copied where it already is.

    Views of lists stay as they are, because `flatten` and `list_offsets` take them. A cast in pyarrow 26.0.1 would give
    one offset too few: the end of the last list would be whatever lies in memory there.
    """
    plain = plain_type(column.type)
    return column if plain == column.type or _is_list_view(column.type) else column.cast(plain)


def _is_list_view(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(data_type) or pa.types.is_large_list_view(data_type))


def list_offsets(column: pa.Array) -> npt.NDArray[np.int64]:
    """Where the lists of a column, or views of lists, begin in what `flatten` gives, and where the last ends; from 0.

    [[7, 8], null, [9]]      0 2 2 3
    """
    lengths = pc.list_value_length(column)
    offsets = np.zeros(len(column) + 1, dtype=np.int64)
    np.cumsum(lengths.fill_null(0) if lengths.null_count else lengths, out=offsets[1:])
    return offsets
