"""Types of Arrow with other fields inside of them."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa


def is_list(kind: pa.DataType) -> bool:
    """Whether values are lists, of any length or of one."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def with_change(field: pa.Field, change: Callable[[pa.Field], pa.Field]) -> pa.Field:
    """The field after `change`, which is also made of the fields inside of its type.

    Not of what pyarrow cannot cast (run ends, lists that are views), of keys of maps, which have no nulls, and of
    extension types, which say themselves what they are made of.
    """
    kind = field.type
    inner = [with_change(kind.field(i), change) for i in range(kind.num_fields)]
    if pa.types.is_dictionary(kind):
        values = with_change(pa.field("", kind.value_type), change).type
        kind = pa.dictionary(kind.index_type, values, kind.ordered)
    elif pa.types.is_list(kind):
        kind = pa.list_(*inner)
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(*inner)
    elif pa.types.is_fixed_size_list(kind):
        kind = pa.list_(*inner, kind.list_size)
    elif pa.types.is_struct(kind):
        kind = pa.struct(inner)
    elif pa.types.is_map(kind) and not (item := with_change(kind.item_field, change)).equals(kind.item_field):
        kind = pa.map_(kind.key_type, item, kind.keys_sorted)
    return change(field.with_type(kind))


def all_nullable(kind: pa.DataType) -> pa.DataType:
    """The type with every field inside of it nullable, as far as `with_change` goes."""
    return with_change(pa.field("", kind), lambda field: field.with_nullable(True)).type


def as_nullable(column: Any, wanted: Any) -> Any:
    """The column as of type `wanted`, which is `all_nullable` of its own: the same memory under another name.

    A cast would do, but makes damaged arrays of what holds lists of nulls (pyarrow 26).
    """
    return pa.array(_Renamed(column, wanted))


class _Renamed:
    """What `pyarrow.array` takes for an array of another library: its memory, and a type that we name."""

    def __init__(self, column: Any, data_type: Any) -> None:
        self._column, self._type = column, data_type

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        _, memory = self._column.__arrow_c_array__()
        return self._type.__arrow_c_schema__(), memory
