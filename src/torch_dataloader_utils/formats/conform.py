"""Conversion of a file's columns to the data set's schema: order, types, missing columns."""

from typing import Any

import pyarrow as pa

from torch_dataloader_utils._arrow.batches import MAX_OFFSET
from torch_dataloader_utils._arrow.number_batch import NumberBatch
from torch_dataloader_utils._arrow.schema import all_nullable, as_nullable, is_binary, is_list, is_utf8
from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils.errors import SchemaError


def conform(task: RowGroupTask, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of `schema` from the batch, in the schema's types and order.

    A column that the file lacks is null in all rows, as in pyarrow.dataset. Types are cast if every value stays the
    same. Values are checked where the types alone do not decide (int64 to int32: one large number is an error). A cast
    that changes values or their meaning is refused: float64 to float32, text to numbers, local time to UTC.

    Raises:
        SchemaError: the types do not fit, or a column has nulls although its field is not nullable.
    """
    if isinstance(batch, NumberBatch):
        if batch.schema.equals(schema):
            return NumberBatch(schema, batch.num_rows, batch.runs, batch.memory)
        batch = batch.to_arrow()
    if len(schema) == 0:
        return batch.select([])
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    if batch.schema.equals(schema):
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    arrays = [_conform_column(task, batch, field) for field in schema]
    # An array differs in type from its field only for text of more than 2 GiB.
    fields = [field.with_type(array.type) for field, array in zip(schema, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _conform_column(task: RowGroupTask, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    index = batch.schema.get_field_index(field.name)
    column = pa.nulls(batch.num_rows, field.type) if index < 0 else batch.column(index)
    if not field.nullable and column.null_count:
        raise SchemaError(
            f"{task.where}: column {field.name} has {column.null_count} nulls (or is not in the file), and the "
            "schema says it has none. Correct the file, or make the field nullable."
        )
    if column.type == field.type or _must_stay_large(column, field.type):
        return column
    if all_nullable(column.type) == field.type:
        return as_nullable(column, field.type)
    if not is_harmless(column.type, field.type):
        raise _misfit(task, field, column.type, "they are different kinds of values")
    try:
        return _cast(column, field.type)
    except pa.ArrowException as error:
        raise _misfit(task, field, column.type, str(error)) from error


def constant(value: Any, field: pa.Field, num_rows: int) -> pa.Array:
    """Return a column that holds `value` in all rows, in the field's type."""
    if pa.types.is_dictionary(field.type):
        indices = pa.repeat(pa.scalar(None if value is None else 0, field.type.index_type), num_rows)
        values = pa.array([] if value is None else [value], field.type.value_type)
        return pa.DictionaryArray.from_arrays(indices, values)
    return pa.repeat(pa.scalar(value, field.type), num_rows)


def is_harmless(seen: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a safe cast between these types either keeps every value or raises."""
    types = pa.types
    if seen == wanted or types.is_null(seen):
        return True
    if isinstance(seen, pa.BaseExtensionType) or isinstance(wanted, pa.BaseExtensionType):
        return is_harmless(getattr(seen, "storage_type", seen), getattr(wanted, "storage_type", wanted))
    if types.is_dictionary(seen) or types.is_dictionary(wanted):
        return is_harmless(_decoded_type(seen), _decoded_type(wanted))
    if is_list(wanted):
        return is_list(seen) and is_harmless(seen.value_type, wanted.value_type)
    if types.is_struct(wanted):
        return types.is_struct(seen) and _structs_fit(seen, wanted)
    if types.is_map(wanted):
        return (
            types.is_map(seen)
            and is_harmless(seen.key_type, wanted.key_type)
            and is_harmless(seen.item_type, wanted.item_type)
        )
    return _scalars_fit(seen, wanted)


def _decoded_type(data_type: pa.DataType) -> pa.DataType:
    return data_type.value_type if pa.types.is_dictionary(data_type) else data_type


def _scalars_fit(seen: pa.DataType, wanted: pa.DataType) -> bool:
    types = pa.types
    if types.is_integer(seen):
        return bool(types.is_integer(wanted) or types.is_floating(wanted) or types.is_decimal(wanted))
    if types.is_floating(seen):
        return bool(types.is_floating(wanted) and wanted.bit_width >= seen.bit_width)
    if types.is_timestamp(seen):
        return bool(types.is_timestamp(wanted)) and (seen.tz is None) == (wanted.tz is None)
    if types.is_date(seen):
        return bool(types.is_date(wanted) or (types.is_timestamp(wanted) and wanted.tz is None))
    kinds = (types.is_decimal, types.is_time, types.is_duration, _is_text, _is_bytes)
    return any(kind(seen) and kind(wanted) for kind in kinds) or (_is_bytes(seen) and _is_text(wanted))


def _structs_fit(seen: pa.DataType, wanted: pa.DataType) -> bool:
    # Every supported pyarrow casts structs by name and in the same order.
    return [f.name for f in seen] == [f.name for f in wanted] and all(
        is_harmless(a.type, b.type) for a, b in zip(seen, wanted, strict=True)
    )


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if isinstance(wanted, pa.BaseExtensionType):
        return wanted.wrap_array(_cast(column, wanted.storage_type))
    if pa.types.is_dictionary(column.type) and not pa.types.is_dictionary(wanted):
        column = column.dictionary_decode()
    return column.cast(wanted)


def _misfit(task: RowGroupTask, field: pa.Field, seen: pa.DataType, why: str) -> SchemaError:
    return SchemaError(
        f"{task.where}: column {field.name} is {seen} in the file and {field.type} in the data set's schema ({why}). "
        "Write the file with the schema's type, or leave the column out."
    )


def _must_stay_large(column: pa.Array, wanted: pa.DataType) -> bool:
    # A row group gave more than 2 GiB of text (see `contiguous`), which cannot be cast back.
    types = pa.types
    is_large_form = (types.is_large_string(column.type) and types.is_string(wanted)) or (
        types.is_large_binary(column.type) and types.is_binary(wanted)
    )
    return bool(is_large_form) and column.nbytes > MAX_OFFSET


def _is_text(data_type: pa.DataType) -> bool:
    return is_utf8(data_type) or bool(pa.types.is_string_view(data_type))


def _is_bytes(data_type: pa.DataType) -> bool:
    return is_binary(data_type) or any(
        is_kind(data_type) for is_kind in (pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    )
