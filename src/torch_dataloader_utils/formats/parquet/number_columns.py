"""Columns that the compiled decoder reads: one number, or one list of numbers, in each row.

Source: parquet-format, "Types" and "Logical Types".
"""

import json
from typing import Any, NamedTuple

import pyarrow as pa

from torch_dataloader_utils import _engine
from torch_dataloader_utils._arrow.schema import leaf_ranges

_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


class NumberColumn(NamedTuple):
    """Top-level column of one number a row, or of one list of numbers a row.

    leaf: Number of the column among the leaf columns. stored, width: Bytes of a value in the file, and in memory; a
    bit: 0, 1. is_optional: Whether values, or items of lists, may be null. Whether lists may be null is in `field`.
    """

    leaf: int
    field: pa.Field
    stored: int
    width: int
    is_integer: bool
    is_optional: bool
    is_list: bool

    def kind(self) -> tuple[bool, int, int, bool]:
        """Return the sort key of columns: columns of one kind lie side by side at even distances, as a matrix."""
        return self.is_list, self.stored, self.width, self.is_integer

    @property
    def layout(self) -> tuple[int, int, bool, bool, bool, int]:
        """Facts for the decoder: stored, width, is_integer, is_optional, whether lists may be null, bits of a value."""
        may_be_null = self.is_list and self.field.nullable
        return self.stored, self.width, self.is_integer, self.is_optional, may_be_null, self.value_bits

    @property
    def fixed_size(self) -> int:
        """Length of each list of a fixed-size list, as the field says; 0 for other columns."""
        return self.field.type.list_size if pa.types.is_fixed_size_list(self.field.type) else 0

    @property
    def value_bits(self) -> int:
        """Number of bits of a decoded value."""
        return 8 * self.width if self.stored else 1


def number_columns(metadata: Any, schema: pa.Schema) -> dict[str, NumberColumn]:
    """Return the columns of numbers that the decoder can read, by name.

    metadata: Footer of the file (pyarrow.parquet.FileMetaData). schema: Arrow schema of the file.
    """
    if not _engine.IS_BUILT:
        return {}
    found = {}
    for field, leaves in zip(schema, leaf_ranges(schema), strict=True):
        if len(leaves) != 1:
            continue
        column = metadata.schema.column(leaves[0])
        stored = _stored_type(column) if _is_plain(column, field) else None
        if stored is None or not _is_same(stored, _value_field(field).type):
            continue
        found[field.name] = NumberColumn(
            leaf=leaves[0],
            field=field,
            stored={"BOOLEAN": 0, "INT32": 4, "FLOAT": 4, "FIXED_LEN_BYTE_ARRAY": 2}.get(column.physical_type, 8),
            width=max(1, stored.bit_width // 8),
            is_integer=column.physical_type in ("INT32", "INT64"),
            is_optional=_value_field(field).nullable,
            is_list=bool(column.max_repetition_level),
        )
    return found


def _is_plain(column: Any, field: pa.Field) -> bool:
    """Return whether the leaf of a field holds one value a row, or one list of values that are no lists or structs.

    Levels tell: a list has one level for each part that may be null, and one more.
    """
    of_values = 1 + _value_field(field).nullable if _is_list(field.type) else 0
    levels = (int(_is_list(field.type)), field.nullable + of_values)
    return (column.max_repetition_level, column.max_definition_level) == levels


def _is_list(data_type: pa.DataType) -> bool:
    is_fixed = pa.types.is_fixed_size_list(data_type) and data_type.list_size > 0
    return bool(is_fixed or pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


def _value_field(field: pa.Field) -> pa.Field:
    return field.type.value_field if _is_list(field.type) else field


def _stored_type(column: Any) -> pa.DataType | None:
    """Return the Arrow type that a column's values have without a conversion; None if they need a conversion."""
    logical = json.loads(column.logical_type.to_json())
    kind, unit = logical["Type"], _UNITS.get(logical.get("timeUnit", ""))
    match column.physical_type, kind:
        case "BOOLEAN", "None":
            return pa.bool_()
        case "FLOAT", "None":
            return pa.float32()
        case "DOUBLE", "None":
            return pa.float64()
        case "FIXED_LEN_BYTE_ARRAY", "Float16":
            return pa.float16()
        case "INT32", "None":
            return pa.int32()
        case "INT64", "None":
            return pa.int64()
        case "INT32" | "INT64", "Int":
            name = f"{'' if logical['isSigned'] else 'u'}int{logical['bitWidth']}"
            is_wide = logical["bitWidth"] == 64
            return pa.type_for_alias(name) if is_wide == (column.physical_type == "INT64") else None
        case "INT32", "Date":
            return pa.date32()
        case "INT32", "Time" if unit == "ms":
            return pa.time32("ms")
        case "INT64", "Time" if unit in ("us", "ns"):
            return pa.time64(unit)
        case "INT64", "Timestamp" if unit is not None:
            return pa.timestamp(unit)
    return None


def _is_same(stored: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_timestamp(stored) and pa.types.is_timestamp(wanted):
        return bool(stored.unit == wanted.unit)
    return bool(stored == wanted)
