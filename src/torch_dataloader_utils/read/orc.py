"""One ORC stripe, decoded.

Source: ORC specification v1, "File Tail" and "Stripes"; pyarrow.orc.ORCFile.
"""

from collections.abc import Sequence

import pyarrow as pa
from pyarrow import orc

from torch_dataloader_utils._formats.arrow_schema import field_paths
from torch_dataloader_utils._formats.record_batches import rows_only
from torch_dataloader_utils.read.checks import (
    check_all_decoded,
    check_decoded_size,
    check_unique,
    repeated_names,
)
from torch_dataloader_utils.read.source import TaskSource


def decode_orc(source: TaskSource, fields: Sequence[pa.Field]) -> pa.RecordBatch:
    """The rows of one stripe, columns `fields` as far as the file has them, in the file's types and order.

    A remote stripe is fetched whole, in one range (`task.byte_offset`, `byte_length`): its streams lie side by side,
    and would be dozens of requests. To count rows without columns one column is decoded, since a stripe without
    columns decodes to no rows.

    Raises:
        UnsupportedFeatureError, SchemaError, CorruptFileError, FileChangedError; and whatever pyarrow raises.
    """
    task = source.task
    with source.open(lambda: [source.tail_span(), (task.byte_offset, task.byte_length)]) as file:
        stripes = orc.ORCFile(file)
        names, batch = _decoded(source, stripes, fields)
    check_all_decoded(task, names, batch)
    check_decoded_size(task, batch.nbytes, source.max_row_group_bytes)
    return batch if names else rows_only(batch.num_rows)


def orc_schema(source: TaskSource) -> pa.Schema:
    """The file's own Arrow schema, with ORC's type attributes as metadata."""
    with source.open(lambda: [source.tail_span()]) as file:
        return orc.ORCFile(file).schema


def _decoded(source: TaskSource, stripes: orc.ORCFile, fields: Sequence[pa.Field]) -> tuple[list[str], pa.RecordBatch]:
    """The columns of the task's stripe, and their names."""
    schema = stripes.schema
    known = set(schema.names)
    names = [field.name for field in fields if field.name in known]
    check_unique(source.task, repeated_names(schema.names), names)
    chosen = names or _cheapest(schema)
    if all(name and "." not in name for path in field_paths(schema) for name in path):
        return names, stripes.read_stripe(source.task.ordinal, columns=chosen)
    # pyarrow takes names for paths: a column "a.b" for field `b` of a struct `a`. Of some others it ends the process.
    return names, stripes.read_stripe(source.task.ordinal).select(chosen)


def _cheapest(schema: pa.Schema) -> list[str]:
    flat = [field.name for field in schema if pa.types.is_primitive(field.type)]
    return flat[:1] or schema.names[:1]
