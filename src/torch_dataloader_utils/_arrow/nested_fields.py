"""Arrow types with other types inside them."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa


def is_list(kind: pa.DataType) -> bool:
    """Whether values are lists, of any length or of one."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def type_holds(kind: pa.DataType, is_kind: Callable[[pa.DataType], bool]) -> bool:
    """Whether `is_kind` is true of a type or of one inside it; an extension type counts as its storage."""
    if isinstance(kind, pa.BaseExtensionType):
        return type_holds(kind.storage_type, is_kind)
    return is_kind(kind) or any(type_holds(kind.field(i).type, is_kind) for i in range(kind.num_fields))


def with_change(field: pa.Field, change: Callable[[pa.Field], pa.Field]) -> pa.Field:
    """The field after `change`, which is also applied to the fields inside its type.

    Not to types that pyarrow cannot cast (run ends, list views), keys of maps (they have no nulls), and what is inside
    extension types.
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
    """The type with every field inside it nullable, as far as `with_change` goes."""
    return with_change(pa.field("", kind), lambda field: field.with_nullable(True)).type


def as_nullable(column: Any, wanted: Any) -> Any:
    """The column with the type `wanted`, which is `all_nullable` of its own type; not copied.

    Not a cast: pyarrow 26 makes damaged arrays from types that hold lists of nulls.
    """
    return pa.array(_Renamed(column, wanted))


class _Renamed:
    """An array with another type of the same layout, as `pyarrow.array` takes arrays of other libraries."""

    def __init__(self, column: Any, data_type: Any) -> None:
        self._column, self._type = column, data_type

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        _, memory = self._column.__arrow_c_array__()
        return self._type.__arrow_c_schema__(), memory
