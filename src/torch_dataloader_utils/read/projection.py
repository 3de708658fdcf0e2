"""A ReadSpec made definite: which columns to decode, to filter on, to deliver."""

import difflib
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.read.filters import filter_columns
from torch_dataloader_utils.read.spec import ReadSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Projection:
    """Fields are pyarrow Fields of the data set's schema.

    delivered: the output, in its order. filtered: what the row filter names. partitions: names of columns that
    come from the task. row_filter: the expression, or None.
    """

    delivered: tuple[Any, ...]
    filtered: tuple[Any, ...]
    partitions: frozenset[str]
    row_filter: Any

    @property
    def stored(self) -> tuple[Any, ...]:
        """What is decoded: delivered or filtered columns that lie in the files, each once."""
        fields = {field.name: field for field in (*self.delivered, *self.filtered)}
        return tuple(field for name, field in fields.items() if name not in self.partitions)

    def counting(self) -> "Projection":
        """The projection that counts rows: nothing delivered, so that only the filter's columns are read."""
        return Projection(delivered=(), filtered=self.filtered, partitions=self.partitions, row_filter=self.row_filter)


def project(spec: ReadSpec) -> Projection:
    """The projection of a spec, with every name checked against its schema.

    Raises:
        ConfigError: a column is not in the schema, or asked twice; a filter that does not fit the schema.
    """
    schema = pa.ipc.read_schema(pa.BufferReader(spec.schema))
    names = tuple(schema.names) if spec.columns is None else spec.columns
    for name in (*names, *spec.partition_columns):
        _check_known(name, schema)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"columns names {', '.join(twice)} more than once; name each column once.")
    filtered = () if spec.row_filter is None else filter_columns(spec.row_filter, schema)
    return Projection(
        delivered=tuple(schema.field(name) for name in names),
        filtered=tuple(schema.field(name) for name in filtered),
        partitions=frozenset(spec.partition_columns),
        row_filter=spec.row_filter,
    )


def _check_known(name: str, schema: Any) -> None:
    seen = schema.names.count(name)
    if seen == 1:
        return
    if seen:
        raise ConfigError(f"the schema has {seen} columns named {name}; which one is meant cannot be said.")
    near = difflib.get_close_matches(name, schema.names, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(schema.names[:50])}."
    raise ConfigError(f"no column is named {name}; {hint}")
