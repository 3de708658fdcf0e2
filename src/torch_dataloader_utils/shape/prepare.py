"""Make the shaper of a data set: columns are prepared before they are shaped.

    structs   become columns of their fields (`structs`); batches nest the fields again
    encode    text becomes numbers (`encode`)
    dtypes    numbers become numbers of another type (`dtypes`, `casting`); decimals become floats

Begin with `prepared_shaper`. Nulls, stacks, masks and slabs work with the prepared columns as if the files stored them.
"""

import logging
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import NamedTuple

import pyarrow as pa

from torch_dataloader_utils._arrow.number_batch import NumberBatch
from torch_dataloader_utils._arrow.schema import FieldPath, nested_path
from torch_dataloader_utils._core.block import Block, Shaper
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._runtime.recent import Recent
from torch_dataloader_utils._runtime.reused_memory import RecycledMemory
from torch_dataloader_utils.shape.arrow_types import Numbers, ObjectType, classify
from torch_dataloader_utils.shape.casting import Room, converted
from torch_dataloader_utils.shape.dtypes import NumberTarget, find_targets, number_element, target_of, with_number_type
from torch_dataloader_utils.shape.encode import Bytes, Encoder, encoded, encoded_schema, is_hashed
from torch_dataloader_utils.shape.reused_memory import new_tensor
from torch_dataloader_utils.shape.shapers import OutputFormat, make_shaper
from torch_dataloader_utils.shape.specs import stack_members
from torch_dataloader_utils.shape.structs import leaf_arrays, leaf_types, with_fewer_fields

_log = logging.getLogger(__name__)

_MOST_NAMES = 100
# Sets of columns that come together; see `tables.projection`.
_MOST_SCHEMAS = 16


def prepared_shaper(
    output_format: OutputFormat,
    schema: pa.Schema,
    *,
    stack: Mapping[str, Sequence[str]] | None = None,
    nulls: object = None,
    encode: Mapping[str, Encoder] | None = None,
    dtypes: Mapping[str, NumberTarget] | None = None,
) -> tuple[pa.Schema, Shaper]:
    """Return the schema of the prepared columns, and the shaper of record batches to batches of these columns.

    Args:
        schema: Columns to deliver, in order; structs have the fields to deliver.
        dtypes: See `dtypes.check_dtypes`.

    Raises:
        ConfigError: an option does not fit the schema, the output format or another option.
    """
    has_tensors = output_format not in ("arrow", "dict")
    structs = {each.name: StructColumn(each.type) for each in schema if pa.types.is_struct(each.type)}
    paths: dict[str, FieldPath] = {}
    if has_tensors:
        schema, structs, paths = _taken_apart(schema)
    schema = encoded_schema(schema, encode)
    members = stack_members(stack, schema.names)
    targets = find_targets(schema, dtypes or {}, members, encoded=tuple(encode or ()), has_tensors=has_tensors)
    prepared = pa.schema([_with_target(each, targets.get(each.name)) for each in schema])
    shaper: Shaper = make_shaper(output_format, prepared, stack=stack, nulls=nulls, paths=paths)
    if structs or encode or targets:
        places = _places(members, prepared, targets)
        targets |= {
            name: target_of(number_element(prepared.field(name).type)) for name in places if name not in targets
        }
        shaper = PreparingShaper(shaper, structs=structs, encoders=encode or {}, targets=targets, places=places)
    return prepared, shaper


class Place(NamedTuple):
    """Place of a column in a matrix: name of the stack, number of the column, and number of columns."""

    stack: str
    column: int
    columns: int


def _places(
    stack: Mapping[str, Sequence[str]], prepared: pa.Schema, targets: Mapping[str, NumberTarget]
) -> dict[str, Place]:
    """Return the places of columns that are converted into their matrix: all columns of stacks with a conversion."""
    return {
        name: Place(matrix, number, len(names))
        for matrix, names in stack.items()
        if any(name in targets for name in names)
        and not pa.types.is_boolean(number_element(prepared.field(names[0]).type))
        for number, name in enumerate(names)
    }


def _taken_apart(schema: pa.Schema) -> tuple[pa.Schema, dict[str, "StructColumn"], dict[str, FieldPath]]:
    """Return the schema of the fields of structs, the columns to take apart, and the path of each field in batches.

    A field has a dotted name. The name of a column wins: if it is taken, the field's name ends with more dots.
    """
    fields: list[pa.Field] = []
    structs: dict[str, StructColumn] = {}
    paths: dict[str, FieldPath] = {}
    taken = set(schema.names)
    for column in schema:
        leaves = leaf_types(column.type)
        if not leaves[0][0]:
            fields.append(column)
            continue
        names = []
        for path, data_type in leaves:
            name = ".".join((column.name, *path))
            while name in taken:
                name += "."
            taken.add(name)
            names.append(name)
            fields.append(pa.field(name, data_type))
            paths[name] = (column.name, *path)
        structs[column.name] = StructColumn(column.type, tuple(names))
    return pa.schema(fields), structs, paths


def _with_target(column: pa.Field, target: NumberTarget | None) -> pa.Field:
    return column if target is None else column.with_type(with_number_type(column.type, target.data_type))


def log_objects(selected: pa.Schema, prepared: pa.Schema) -> None:
    """Log the columns that tensor batches hold as lists of Python objects, once in a process; see `objects_note`."""
    note = objects_note(selected, prepared)
    if note:
        _log_once(note)


@cache
def _log_once(note: str) -> None:
    _log.warning(note)


def objects_note(selected: pa.Schema, prepared: pa.Schema) -> str:
    """Return a note about columns that tensor batches hold as lists of Python objects; "" if there are none.

    Args:
        selected: Columns to deliver. prepared: The same columns as `prepared_shaper` returned them.
    """
    objects = [column for column in prepared if isinstance(classify(column.type), ObjectType)]
    if not objects:
        return ""
    paths = _taken_apart(selected)[2]
    without_tensors = {column.name for column in objects}
    tensors = [name for name in prepared.names if name not in without_tensors]
    # Lists of structs are chosen as a whole.
    others = dict.fromkeys(name if nested_path(selected, name) else paths[name][0] for name in tensors)
    encoders = ", ".join(f'"{column.name}": Hash(buckets=1_000_000)' for column in objects if is_hashed(column.type))
    shown = ", ".join(f"{column.name!r} ({column.type})" for column in objects)
    # Objects of JSON may have thousands of keys: nobody pastes so many names.
    without = f"Without these columns: columns={list(others)}. " if 0 < len(others) <= _MOST_NAMES else ""
    return (
        f"Batches hold lists of Python objects, not tensors, for {shown}. "
        + (f"For tensors of text pass encode={{{encoders}}}, or Vocabulary or Bytes. " if encoders else "")
        + f"{without}With columns= that names them, this note is not shown."
    )


@dataclass(frozen=True, slots=True)
class StructColumn:
    """Column of structs, maps or lists of structs.

    Attributes:
        data_type: Type with the fields to deliver; files may have more fields.
        leaves: Names of the columns that the column becomes; () if it stays one column.
    """

    data_type: pa.DataType
    leaves: tuple[str, ...] = ()

    def paths(self, name: str) -> list[FieldPath]:
        """Return the path of each leaf of a column; none if the column stays one column, or has lists of structs."""
        found = leaf_types(self.data_type) if self.leaves else []
        return (
            [(name, *path) for path, _ in found] if all(_is_inside(self.data_type, path) for path, _ in found) else []
        )

    def columns(self, name: str, array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
        """Yield name and rows of each column that the column becomes."""
        if not self.leaves:
            yield name, with_fewer_fields(array, self.data_type)
            return
        yield from zip(self.leaves, leaf_arrays(array, self.data_type), strict=True)


def _is_inside(data_type: pa.DataType, path: FieldPath) -> bool:
    """Return whether a path leads through structs alone."""
    for name in path:
        if not pa.types.is_struct(data_type):
            return False
        data_type = data_type.field(name).type
    return True


@dataclass(frozen=True, slots=True)
class PreparingShaper:
    """Shaper that prepares columns, and then uses `shaper`. Implements `_core.block.Shaper`.

    Attributes:
        places: Places of columns in matrices; they are converted there, which saves a copy. See `StackBuilder`.
    """

    shaper: Shaper
    structs: Mapping[str, StructColumn]
    encoders: Mapping[str, Encoder]
    targets: Mapping[str, NumberTarget]
    places: Mapping[str, Place]
    _seen: Recent[int, tuple[pa.Schema, bool]] = field(
        default_factory=lambda: Recent(_MOST_SCHEMAS), init=False, repr=False, compare=False
    )

    @property
    def conversions(self) -> dict[str, NumberTarget]:
        """Conversions of stored columns that a reader may do, by name."""
        return {name: target for name, target in self.targets.items() if name not in self.encoders}

    @property
    def dictionaries(self) -> frozenset[str]:
        """Names of columns whose values are encoded one by one: dictionary-encoded text has fewer of them."""
        return frozenset(name for name, encoder in self.encoders.items() if not isinstance(encoder, Bytes))

    @property
    def leaves(self) -> dict[str, dict[str, FieldPath]]:
        """Name and path of each leaf of columns of structs: a reader may deliver leaves in place of the columns."""
        paths = {name: struct.paths(name) for name, struct in self.structs.items()}
        return {name: dict(zip(self.structs[name].leaves, each, strict=True)) for name, each in paths.items() if each}

    def use_memory(self, memory: RecycledMemory) -> None:
        """See Shaper."""
        self.shaper.use_memory(memory)

    def with_copied_columns(self, least_bytes: int) -> "PreparingShaper":
        """See Shaper."""
        return replace(self, shaper=self.shaper.with_copied_columns(least_bytes))

    def block(self, parts: Iterable[pa.RecordBatch]) -> Block:
        """Return the block of the prepared rows.

        Raises:
            SchemaError: a type of `dtypes=` does not hold a value; and the errors of `shaper`.
        """
        return self.shaper.block(map(partial(self._prepared, {}), parts))

    def _prepared(self, matrices: dict[str, Numbers], part: pa.RecordBatch) -> pa.RecordBatch:
        if isinstance(part, NumberBatch) and self._is_prepared(part.schema):
            return part
        names, columns = [], []
        stored_columns = part.columns
        for stored, column in zip(part.schema.names, stored_columns, strict=True):
            for name, array in self._columns(stored, column):
                if name in self.encoders:
                    array = encoded(array, self.encoders[name])
                if name in self.targets:
                    array = converted(name, array, self.targets[name], self._room(matrices, name, len(array)))
                names.append(name)
                columns.append(array)
        if all(map(operator.is_, columns, stored_columns)) and names == part.schema.names:
            return part
        return pa.RecordBatch.from_arrays(columns, names)

    def _is_prepared(self, schema: pa.Schema) -> bool:
        """Return whether the reader has converted all columns of a part."""
        known = self._seen.find(id(schema))
        if known is None or known[0] is not schema:
            is_prepared = all(
                field.name not in self.encoders
                and (field.name not in self.targets or self.targets[field.name].data_type == field.type)
                for field in schema
            )
            known = self._seen.keep(id(schema), (schema, is_prepared))
        return known[1]

    def _room(self, matrices: dict[str, Numbers], name: str, num_rows: int) -> Room | None:
        """Return the memory of a column in its matrix, which the first column makes; None for other columns."""
        place = self.places.get(name)
        if place is None or not num_rows:
            return None
        matrix = matrices.get(place.stack)
        if matrix is None:
            matrix = new_tensor((place.columns, num_rows), self.targets[name].torch_type).numpy()
            matrices[place.stack] = matrix
        column = matrix[place.column]
        return Room(column, pa.py_buffer(matrix).slice(place.column * column.nbytes, column.nbytes))

    def _columns(self, name: str, array: pa.Array) -> Iterable[tuple[str, pa.Array]]:
        struct = self.structs.get(name)
        return [(name, array)] if struct is None else struct.columns(name, array)

    def concat(self, blocks: Sequence[Block], spans: Int64s | None = None) -> Block:
        """See Shaper."""
        return self.shaper.concat(blocks, spans)

    def gather(self, blocks: Sequence[Block], order: Int64s) -> Block:
        """See Shaper."""
        return self.shaper.gather(blocks, order)
