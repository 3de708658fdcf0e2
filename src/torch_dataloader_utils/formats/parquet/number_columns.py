"""Columns that the compiled decoder reads: one number, or one list of numbers, in each row.

Source: parquet-format, "Types" and "Logical Types".
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from torch_dataloader_utils import _engine
from torch_dataloader_utils._arrow.schema import all_nullable, leaf_ranges
from torch_dataloader_utils.formats.task_source import Conversion

_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}

# Numbers of types and losses, as the decoder takes them: see `NumberType` and `Loss` in engine.h.
_TYPES = {name: number for number, name in enumerate(("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"), 1)}
_DECIMAL, _LONG_DECIMAL = 11, 12
_LOSSES = {"round": 0, "exact": 1, "clip": 2}

# Digits of a decimal whose unscaled value fits 64 bits.
_DIGITS_OF_INT64 = 18

# Bytes of a decimal in memory, and the most in a file.
_DECIMAL_BYTES = 16

# Levels of a value that is not in a list: of the value itself and the structs around it.
_MOST_LEVELS = 3

# Metadata of fields whose values the decoder has converted.
_CONVERTED = {b"converted": b""}


class NumberColumn(NamedTuple):
    """Top-level column of one number a row, or of one list of numbers a row.

    leaf: Number of the column among the leaf columns. stored, width: Bytes of a value in the file, and in memory; a
    bit: 0, 1. levels: Definition level of a value that is there; 0 if none is null. Of lists, 1 if items may be null;
    whether lists may be null is in `field`.
    conversion: Conversion as the decoder takes it (`CONVERSION` in module.c); 0 for none.
    """

    leaf: int
    field: pa.Field
    stored: int
    width: int
    is_integer: bool
    levels: int
    is_list: bool
    conversion: int = 0

    def kind(self) -> tuple[bool, int, bool]:
        """Return the sort key of columns: columns of one kind lie side by side at even distances, as a matrix."""
        return self.is_list, self.value_bits, bool(pa.types.is_floating(self.value_type))

    @property
    def layout(self) -> tuple[int, int, bool, int, bool, int, int]:
        """Facts for the decoder: stored, width, is_integer, levels, list_is_optional, conversion, value_bits."""
        may_be_null = self.is_list and self.field.nullable
        return (
            self.stored,
            self.width,
            self.is_integer,
            self.levels,
            may_be_null,
            self.conversion,
            self.value_bits,
        )

    @property
    def value_type(self) -> pa.DataType:
        """Type of the values, or of the items of lists."""
        return _value_field(self.field).type

    @property
    def fixed_size(self) -> int:
        """Length of each list of a fixed-size list, as the field says; 0 for other columns."""
        return self.field.type.list_size if pa.types.is_fixed_size_list(self.field.type) else 0

    @property
    def value_bits(self) -> int:
        """Number of bits of a decoded value."""
        return 8 * self.width if self.stored else 1

    @property
    def value_dtype(self) -> str:
        """Numpy type of the decoded values; "" for bits and decimals."""
        if not self.stored or pa.types.is_decimal(self.value_type):
            return ""
        is_unsigned = pa.types.is_unsigned_integer(self.value_type)
        return f"{'f' if pa.types.is_floating(self.value_type) else 'u' if is_unsigned else 'i'}{self.width}"

    def converted(self, wanted: pa.DataType, conversion: Conversion) -> Self:
        """Return the column with its values converted, if the decoder can do it; else the column as it is.

        wanted: Type that the column has in the data set. Files with another type are converted to this type first.
        """
        to, is_clipped = _TYPES.get(_dtype_name(conversion.data_type), 0), conversion.loss == "clip"
        is_decimal = pa.types.is_decimal(self.value_type)
        is_other = self.value_type != conversion.data_type
        source = self.conversion & 255 if is_decimal else _TYPES.get(self.value_dtype, 0)
        has_type = all_nullable(self.field.type) == all_nullable(wanted)
        if not (source and to and has_type and is_other) or (
            is_clipped and not pa.types.is_floating(conversion.data_type)
        ):
            return self
        scale = self.value_type.scale if is_decimal else 0
        return self._replace(
            field=_with_values(self.field, conversion.data_type).with_metadata(_CONVERTED),
            width=conversion.data_type.bit_width // 8,
            conversion=source | to << 8 | scale << 16 | _LOSSES[conversion.loss] << 24,
        )


def is_converted(field: pa.Field) -> bool:
    """Return whether the decoder has converted the values of a column."""
    return bool(field.metadata == _CONVERTED)


def number_columns(metadata: Any, schema: pa.Schema) -> dict[str, NumberColumn]:
    """Return the columns of numbers that the decoder can read, by name.

    metadata: Footer of the file (pyarrow.parquet.FileMetaData). schema: Arrow schema of the file.
    """
    if not _engine.IS_BUILT:
        return {}
    found = {}
    for field, leaves in zip(schema, leaf_ranges(schema), strict=True):
        column = number_column(metadata, field, leaves)
        if column is not None:
            found[field.name] = column
    return found


def number_column(metadata: Any, field: pa.Field, leaves: Sequence[int]) -> NumberColumn | None:
    """Return a column, or a field inside structs, as the decoder can read it; None if it cannot.

    leaves: Numbers of its leaf columns.
    """
    if not _engine.IS_BUILT or len(leaves) != 1:
        return None
    column = metadata.schema.column(leaves[0])
    stored = _stored_type(column) if _is_plain(column, field) else None
    if stored is None or not _is_same(stored, _value_field(field).type):
        return None
    is_list, physical = bool(column.max_repetition_level), column.physical_type
    return NumberColumn(
        leaf=leaves[0],
        field=field,
        stored={"BOOLEAN": 0, "INT32": 4, "FLOAT": 4, "FIXED_LEN_BYTE_ARRAY": column.length}.get(physical, 8),
        width=max(1, stored.bit_width // 8),
        is_integer=physical in ("INT32", "INT64"),
        levels=int(_value_field(field).nullable) if is_list else column.max_definition_level,
        is_list=is_list,
        conversion=_decimal_code(stored) | _DECIMAL << 8 if pa.types.is_decimal(stored) else 0,
    )


def _is_plain(column: Any, field: pa.Field) -> bool:
    """Return whether the leaf of a field holds one value a row, or one list of values that are no lists or structs.

    Levels tell: a list has one level for each part that may be null, and one more. A value has one for itself and one
    for each struct around it, if they may be null.
    """
    repetition, definition = int(column.max_repetition_level), int(column.max_definition_level)
    if _is_list(field.type):
        return (repetition, definition) == (1, field.nullable + 1 + _value_field(field).nullable)
    return repetition == 0 and int(field.nullable) <= definition <= (_MOST_LEVELS if field.nullable else 0)


def _is_list(data_type: pa.DataType) -> bool:
    is_fixed = pa.types.is_fixed_size_list(data_type) and data_type.list_size > 0
    return bool(is_fixed or pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


def _value_field(field: pa.Field) -> pa.Field:
    return field.type.value_field if _is_list(field.type) else field


def _with_values(field: pa.Field, data_type: pa.DataType) -> pa.Field:
    """Return the field with values, or items of lists, of another type."""
    if not _is_list(field.type):
        return field.with_type(data_type)
    items = field.type.value_field.with_type(data_type)
    if pa.types.is_fixed_size_list(field.type):
        return field.with_type(pa.list_(items, field.type.list_size))
    return field.with_type(pa.large_list(items) if pa.types.is_large_list(field.type) else pa.list_(items))


def _decimal_code(data_type: pa.DataType) -> int:
    return _DECIMAL if data_type.precision <= _DIGITS_OF_INT64 else _LONG_DECIMAL


def _dtype_name(data_type: pa.DataType) -> str:
    """Return the name of the numpy type of numbers, such as "i4"; "" for bool."""
    return "" if pa.types.is_boolean(data_type) else np.dtype(data_type.to_pandas_dtype()).str[1:]


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
        case "INT32" | "INT64" | "FIXED_LEN_BYTE_ARRAY", "Decimal" if column.length <= _DECIMAL_BYTES:
            return pa.decimal128(logical["precision"], logical["scale"])
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
