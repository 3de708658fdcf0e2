"""Columns to decode, to filter on and to deliver, from a ReadSpec."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._arrow.row_filter import fit_filter
from torch_dataloader_utils._arrow.schema import FieldPath, decode_schema, field_at, field_paths, nested_path
from torch_dataloader_utils._core.metadata_columns import FILE, POSITION, metadata_columns
from torch_dataloader_utils._core.option_values import Holdout
from torch_dataloader_utils._runtime.recent import Recent
from torch_dataloader_utils._store import StoreAccess
from torch_dataloader_utils.errors import ConfigError, which_column
from torch_dataloader_utils.formats.checks import repeated_names
from torch_dataloader_utils.formats.parquet.number_columns import is_converted
from torch_dataloader_utils.formats.task_source import NO_CHANGES, Changes
from torch_dataloader_utils.tables.holdout import check_by
from torch_dataloader_utils.tables.metadata_columns import with_metadata_columns

# Largest size that fits a string column's 32-bit offsets; real row groups are 0.1 to 1 GB.
MAX_ROW_GROUP_BYTES = (2 << 30) - 1

# Sets of columns that come together: one or two, of each kind of file.
_MOST_SCHEMAS = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadSpec:
    """Rows and columns that a reader delivers; frozen and picklable.

    schema: The data set's full Arrow schema as IPC bytes, partition columns included, as an Inventory holds it.
    columns: Names of the delivered columns in order, metadata columns too; () delivers row counts alone; None is all
        columns of the schema.
    row_filter: A pyarrow.compute.Expression over any columns of the schema, delivered or not; rows are dropped if it is
        false or null.
    partition_columns: Columns that no file holds; their values come with the task.
    access: Access to the files' store; unused for local files.
    page_checksums: Whether pages that carry a CRC-32 (Parquet) are checked against it. Files without checksums cost
        nothing; docs/design/0004-read.md has the measured cost for files with checksums.
    is_compiled: Whether columns of plain numbers are decoded by the compiled decoder, where it is built.
    max_row_group_bytes: Decoded size above which a row group is refused instead of read.
    holdout: Part of the rows to deliver, None for all rows.
    changes: Changes of columns that the reader may make: `read_columns` and `read_together` deliver columns with or
        without them.
    """

    schema: bytes
    columns: tuple[str, ...] | None = None
    row_filter: pc.Expression | None = None
    partition_columns: tuple[str, ...] = ()
    access: StoreAccess = field(default_factory=StoreAccess)
    page_checksums: bool = True
    is_compiled: bool = True
    max_row_group_bytes: int = MAX_ROW_GROUP_BYTES
    holdout: Holdout | None = None
    changes: Changes = NO_CHANGES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Projection:
    """Columns of one read.

    stored: Schema that is decoded: all delivered and filtered columns that lie in the files.
    delivered: Names of the output, in order. filtered: Names in the row filter and the holdout.
    made: Fields, delivered or filtered, that no file holds: partition columns, and `_file` and `_pos`.
    row_filter: The expression, or None. holdout: Part to deliver, or None.
    known: Names of all columns of the data set, if all are delivered; else None.
    changes: Changes of columns that may come. leaves: Paths of leaves of structs that may come in place of their
        columns, by name.
    """

    stored: pa.Schema
    delivered: tuple[str, ...]
    filtered: tuple[str, ...]
    made: tuple[pa.Field, ...]
    row_filter: pc.Expression | None
    holdout: Holdout | None
    known: frozenset[str] | None
    changes: Changes
    leaves: Mapping[str, FieldPath]
    _schemas: Recent[tuple[str, ...], pa.Schema] = field(default_factory=lambda: Recent(_MOST_SCHEMAS), init=False)
    _of_parts: Recent[int, tuple[pa.Schema, tuple[pa.Schema, Sequence[str]]]] = field(
        default_factory=lambda: Recent(_MOST_SCHEMAS), init=False
    )

    @property
    def chooses_by_value(self) -> bool:
        """Whether values of columns say which rows are delivered."""
        return self.row_filter is not None or (self.holdout is not None and self.holdout.by is not None)

    def fields_of(self, part: pa.Schema) -> tuple[pa.Schema, Sequence[str]]:
        """Return the schema of the columns and leaves of a part, in converted types, and the names of the columns.

        Row groups of one kind come with one object.
        """
        known = self._of_parts.find(id(part))
        if known is None or known[0] is not part:
            columns = part.names
            if any(self.changes):
                columns = [self.leaves.get(name, (name,))[0] for name in columns]
                fields = pa.schema(map(self._changed_field, part))
            else:
                fields = self.fields(columns)
            known = part, (fields, columns)
            self._of_parts.keep(id(part), known)
        return known[1]

    def _changed_field(self, found: pa.Field) -> pa.Field:
        path = self.leaves.get(found.name, (found.name,))
        wanted = field_at(self.stored.field(path[0]), path).with_name(found.name)
        is_encoded = found.name in self.changes.dictionaries and found.type == pa.dictionary(pa.int32(), wanted.type)
        return wanted.with_type(found.type) if is_converted(found) or is_encoded else wanted

    def fields(self, names: Sequence[str]) -> pa.Schema:
        """Return the schema of these stored columns."""
        # The usual case for small row groups. To list the names of thousands of columns for each of many parts is slow.
        if len(names) == len(self.stored) and names == self.stored.names:
            return self.stored
        return self._schemas.get(tuple(names), lambda key: pa.schema([self.stored.field(name) for name in key]))


def project(spec: ReadSpec) -> Projection:
    """Return the projection of a spec, with every name checked against its schema.

    Raises:
        ConfigError: a column is not in the schema or is asked for twice, or the filter does not fit the schema.
    """
    of_data = decode_schema(spec.schema)
    schema = with_metadata_columns(of_data, spec.columns or ())
    names = tuple(schema.names) if spec.columns is None else spec.columns
    # Names are counted once: to search for each of thousands of columns takes seconds.
    known = Counter(schema.names)
    for name in (*names, *spec.partition_columns):
        if known[name] != 1:
            raise _unknown(name, schema)
    twice = sorted(repeated_names(names))
    if twice:
        raise ConfigError(f"columns names {', '.join(twice)} more than once; name each column once.")
    row_filter, filtered = fit_filter(spec.row_filter, of_data)
    if spec.holdout is not None and spec.holdout.by is not None:
        path = nested_path(schema, spec.holdout.by)
        if not path or known[path[0]] != 1:
            raise ConfigError(f"Holdout.by: {_unknown(path[0] if path else spec.holdout.by, schema)}")
        check_by(spec.holdout.by, field_at(schema.field(path[0]), path).type)
        filtered = tuple(dict.fromkeys((*filtered, path[0])))
    fields = {name: schema.field(name) for name in (*names, *filtered)}
    places = {FILE, POSITION}.intersection(metadata_columns(names, frozenset(of_data.names)))
    made = places.union(spec.partition_columns)
    return Projection(
        stored=pa.schema([field for name, field in fields.items() if name not in made]),
        delivered=names,
        filtered=filtered,
        made=tuple(field for name, field in fields.items() if name in made),
        row_filter=row_filter,
        holdout=spec.holdout,
        known=frozenset(of_data.names) if set(of_data.names) <= set(names) else None,
        leaves={name: path for leaves in spec.changes.leaves.values() for name, path in leaves.items()},
        changes=spec.changes,
    )


def _unknown(name: str, schema: pa.Schema) -> ConfigError:
    seen = schema.names.count(name)
    if seen:
        return ConfigError(
            f"the schema has {seen} columns named {name}; it is not clear which one is meant. Rename them in the "
            "files, or do not ask for them."
        )
    names = map(".".join, field_paths(schema)) if "." in name else schema.names
    return ConfigError(f"no column is named {name}; {which_column(name, names)}")
