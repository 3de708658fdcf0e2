"""One ORC stripe, decoded.

Source: ORC specification v1, "File Tail" and "Stripes"; pyarrow.orc.ORCFile.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyarrow import orc

from torch_dataloader_utils.read.checks import (
    FOREIGN,
    check_all_decoded,
    check_decoded_size,
    check_unique,
    repeated_names,
)
from torch_dataloader_utils.read.contiguous import rows_only
from torch_dataloader_utils.read.file_cache import FileCache
from torch_dataloader_utils.read.one_stripe import KnownTail
from torch_dataloader_utils.read.source import TaskSource

_tails: FileCache[KnownTail] = FileCache()


def decode_orc(source: TaskSource, fields: Sequence[Any]) -> Any:
    """The rows of one stripe, columns `fields` as far as the file has them, in the file's types and order.

    A remote stripe is fetched whole, in one range (`task.byte_offset`, `byte_length`): its streams lie side by side,
    and would be dozens of requests. To count rows without columns one column is decoded, since a stripe without
    columns decodes to no rows.

    Raises:
        UnsupportedFeatureError, SchemaError, CorruptFileError, FileChangedError; and whatever pyarrow raises.
    """
    task = source.task
    names, batch = _from_known_tail(source, fields) or _from_file(source, fields)
    check_all_decoded(task, names, batch)
    check_decoded_size(task, batch.nbytes, source.max_row_group_bytes)
    return batch if names else rows_only(batch.num_rows)


def orc_schema(source: TaskSource) -> Any:
    """The file's own Arrow schema, with ORC's type attributes as metadata."""
    with source.open(lambda: [source.tail_span()]) as file:
        return orc.ORCFile(file).schema


def _from_known_tail(source: TaskSource, fields: Sequence[Any]) -> tuple[list[str], Any] | None:
    """The columns and their names, from the stripe alone.

    None if the file's tail is not known, or the stripe is not read alone. Also if it does not decode, so that what the
    error says is about the file.
    """
    tail = _tails.find(source.key)
    file = None if tail is None else tail.stripe_alone(source)
    if tail is None or file is None:
        return None
    with suppress(*FOREIGN):
        return _decoded(source, orc.ORCFile(file), tail.schema, 0, fields)
    return None


def _from_file(source: TaskSource, fields: Sequence[Any]) -> tuple[list[str], Any]:
    """The same from the file, whose tail is known then."""
    task = source.task
    with source.open(lambda: [source.tail_span(), (task.byte_offset, task.byte_length)]) as file:
        stripes = orc.ORCFile(file)
        schema = stripes.schema
        decoded = _decoded(source, stripes, schema, task.ordinal, fields)
    if stripes.nstripes > 1:  # kept only now that the file is known to have been the planned one to the end
        _tails.keep(source.key, lambda: _known_tail(stripes, schema))
    return decoded


def _known_tail(stripes: Any, schema: Any) -> tuple[KnownTail, int]:
    encoded = bytes(stripes.reader.serialized_file_tail())
    return KnownTail(schema, encoded), len(encoded)


def _decoded(
    source: TaskSource, stripes: Any, schema: Any, ordinal: int, fields: Sequence[Any]
) -> tuple[list[str], Any]:
    known = set(schema.names)
    names = [field.name for field in fields if field.name in known]
    check_unique(source.task, repeated_names(schema.names), names)
    return names, stripes.read_stripe(ordinal, columns=names or _cheapest(schema))


def _cheapest(schema: Any) -> list[str]:
    flat = [field.name for field in schema if pa.types.is_primitive(field.type)]
    return flat[:1] or schema.names[:1]
