"""Initial defaults of fields: from JSON to values that Arrow takes.

Source: Iceberg spec, "Default values" and "JSON single-value serialization".
"""

from collections.abc import Iterable, Mapping
from datetime import time
from typing import Any
from uuid import UUID

import pyarrow as pa

from torch_dataloader_utils._core.table_file import field_id, stored_field_id
from torch_dataloader_utils.errors import CorruptFileError, UnsupportedFeatureError


def initial_defaults(fields: Iterable[pa.Field], stored: Mapping[int, Any]) -> tuple[tuple[int, Any], ...]:
    """Return (field id, value) of the fields, and of fields inside them, that have an initial default.

    fields: Arrow fields with ids. stored: JSON by field id.

    Raises:
        CorruptFileError: a default that is not a value of the field's type.
        UnsupportedFeatureError: a default inside of a type that Arrow makes no values of (lists of UUIDs).
    """
    found: dict[int, Any] = {}
    pending = list(fields) if stored else []
    while pending:
        field = pending.pop()
        pending += [field.type.field(index) for index in range(field.type.num_fields)]
        number = stored_field_id(field)  # None for the entries of a map
        if number is not None and number in stored:
            found[number] = _checked(field, stored[number], stored)
    return tuple(sorted(found.items()))


def _checked(field: pa.Field, default: Any, stored: Mapping[int, Any]) -> Any:
    try:
        value = _value(field.type, default, stored)
        pa.scalar(value, getattr(field.type, "storage_type", field.type))
    except NotImplementedError as error:  # Arrow's error is also a TypeError or ValueError
        raise UnsupportedFeatureError(
            f"field {field.name} (id {field_id(field)}) has an initial default of type {field.type}, and pyarrow "
            f"{pa.__version__} makes no values of this type. Leave the column out."
        ) from error
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, pa.ArrowException) as error:
        raise CorruptFileError(
            f"the table's metadata give field {field.name} (id {field_id(field)}) an initial default that is not "
            f"{field.type}. Leave the column out, or correct the table."
        ) from error
    return value


def _value(kind: pa.DataType, default: Any, stored: Mapping[int, Any]) -> Any:
    types = pa.types
    if default is None:
        return None
    if types.is_struct(kind):
        return {each.name: _of_struct(each, default, stored) for each in kind}
    if types.is_list(kind):
        return [_value(kind.value_type, each, stored) for each in default]
    if types.is_map(kind):
        keys = [_value(kind.key_type, each, stored) for each in default["keys"]]
        return list(zip(keys, [_value(kind.item_type, each, stored) for each in default["values"]], strict=True))
    if isinstance(kind, pa.BaseExtensionType):
        return UUID(default).bytes
    if types.is_binary(kind) or types.is_fixed_size_binary(kind):
        return bytes.fromhex(default)
    if types.is_time(kind):
        return time.fromisoformat(default)
    if types.is_temporal(kind) or types.is_decimal(kind):
        moment = pa.scalar(str(default)).cast(kind)
        # Python's times have no nanoseconds.
        return moment.value if types.is_timestamp(kind) else moment.as_py()
    return default


def _of_struct(field: pa.Field, default: Mapping[str, Any], stored: Mapping[int, Any]) -> Any:
    """Return the value of a field in the default of the struct around it, or else the field's own default."""
    number = field_id(field)
    return _value(field.type, default.get(str(number), stored.get(number)), stored)
