"""Arrow types that spell the same values in another way, as the plain ones that documents are taken from."""

import pyarrow as pa


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The list or string type for views of lists, views of strings and text in a dictionary; others as they are.

    list_view<int32>   list<int32>          string_view                  large_string
    list<int32>        list<int32>          dictionary<string, int32>    string
    """
    if pa.types.is_list_view(kind):
        return pa.list_(kind.value_field)
    if pa.types.is_large_list_view(kind):
        return pa.large_list(kind.value_field)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    return kind


def to_plain(column: pa.Array) -> pa.Array:
    """The same values and nulls in their `plain_type`; nothing is copied where it already is."""
    plain = plain_type(column.type)
    return column if plain == column.type else column.cast(plain)
