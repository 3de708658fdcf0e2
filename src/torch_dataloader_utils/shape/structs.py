"""Take structs apart into their fields, which become columns of their own, and nest the fields again in batches.

    column user: struct<id: int64, geo: struct<lat: float>>     columns user.id, user.geo.lat
    batch                                                       {"user": {"id": tensor, "geo": {"lat": tensor}}}

So blocks, windows and slabs know no structs. A list of structs that hold only numbers becomes one list for each field;
a map counts as a list of structs of `key` and `value`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils._arrow.schema import FieldPath
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.shape.arrow_types import is_ragged
from torch_dataloader_utils.shape.column_blocks import Output, Places
from torch_dataloader_utils.shape.columns import Column
from torch_dataloader_utils.shape.dtypes import number_element
from torch_dataloader_utils.shape.raw_numbers import split_items, validity
from torch_dataloader_utils.shape.specs import MASK_SUFFIX


def leaf_types(data_type: pa.DataType) -> list[tuple[FieldPath, pa.DataType]]:
    """Return path and type of each column that a column of this type becomes: [((), data_type)] if it stays as it is.

    struct<a: int32, b: struct<c: string>>      a int32, b.c string
    list<struct<a: int32, b: float>>            a list<int32>, b list<float>
    map<int64, float>                           key list<int64>, value list<float>
    list<struct<a: string>>, map<string, int>   itself
    """
    if _is_struct(data_type):
        return [((field.name, *path), leaf) for field in data_type for path, leaf in leaf_types(field.type)]
    lists = _map_as_list(data_type) if pt.is_map(data_type) else data_type
    if is_ragged(lists):
        inner = leaf_types(lists.value_type)
        if all(path and _fits_list(leaf) for path, leaf in inner):
            kind = pa.large_list if pt.is_large_list(lists) else pa.list_
            return [(path, kind(leaf)) for path, leaf in inner]
    return [((), data_type)]


def leaf_arrays(array: pa.Array, data_type: pa.DataType) -> Iterator[pa.Array]:
    """Yield the columns that a column becomes, in the order of `leaf_types(data_type)`.

    A null struct has null fields.

    Args:
        data_type: Type of the column, or a struct with fewer fields.
    """
    if _is_struct(data_type):
        fields = _fields(array)
        for field in data_type:
            yield from leaf_arrays(fields[field.name], field.type)
        return
    if not leaf_types(data_type)[0][0]:
        yield array
        return
    lists = _lists_of_map(array) if pt.is_map(data_type) else array
    yield from split_items(lists, lambda items: leaf_arrays(items, items.type))


def with_fewer_fields(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return a column of structs with the fields of `data_type`, in their order."""
    if array.type == data_type or not _is_struct(data_type):
        return array
    fields, valid = _fields(array), validity(array)
    columns = [with_fewer_fields(fields[field.name], field.type) for field in data_type]
    mask = None if valid is None else pa.array(~valid)
    return pa.StructArray.from_arrays(columns, fields=list(data_type), mask=mask)


def _is_struct(data_type: pa.DataType) -> bool:
    """Return whether the type is a struct of fields with distinct names."""
    names = [field.name for field in data_type] if pt.is_struct(data_type) else []
    return bool(names) and len(set(names)) == len(names)


def _fits_list(leaf: pa.DataType) -> bool:
    has_lists = is_ragged(leaf) or isinstance(leaf, pa.BaseExtensionType)
    return number_element(leaf) is not None and not has_lists


def _fields(array: pa.StructArray) -> dict[str, pa.Array]:
    # Not `field`, which ignores nulls of the struct.
    return dict(zip([field.name for field in array.type], array.flatten(), strict=True))


def _map_as_list(data_type: pa.MapType) -> pa.DataType:
    return pa.list_(pa.struct([("key", data_type.key_type), ("value", data_type.item_type)]))


def _lists_of_map(array: pa.MapArray) -> pa.ListArray:
    data_type, (valid, offsets) = _map_as_list(array.type), array.buffers()[:2]
    pairs = pa.StructArray.from_arrays([array.keys, array.items], fields=list(data_type.value_type))
    return pa.Array.from_buffers(data_type, len(array), [valid, offsets], offset=array.offset, children=[pairs])


@dataclass(frozen=True, slots=True)
class NestedOutput:
    """Output whose batches nest columns by their paths.

    Attributes:
        output: Form of the columns and of the batch.
        paths: Path of each entry of a batch.
    """

    output: Output
    paths: tuple[FieldPath, ...]

    def values(self, columns: Sequence[Column], places: Places) -> Iterable[object]:
        """See Output."""
        return self.output.values(columns, places)

    def split(self, columns: Sequence[Column], places: Places, batch_rows: int) -> Iterator[Iterable[object]]:
        """See Output."""
        return self.output.split(columns, places, batch_rows)

    def batch(self, columns: Iterable[tuple[str, object]], num_rows: int) -> dict[str, Any]:
        """See Output."""
        nested: dict[str, Any] = {}
        for (_, column), path in zip(columns, self.paths, strict=False):  # a batch of no columns comes without rows
            inside = nested
            for name in path[:-1]:
                inside = inside.setdefault(name, {})
            inside[path[-1]] = column
        return self.output.batch(nested.items(), num_rows)


def nested_paths(names: Sequence[str], paths: Mapping[str, FieldPath]) -> tuple[FieldPath, ...]:
    """Return the path of each entry of a batch. The mask of a field lies beside the field.

    Args:
        names: Names of the entries: stacks, columns and masks.
        paths: Path of each column that is a field of a struct.

    Raises:
        ConfigError: an entry has the name of a struct.
    """
    found = tuple(_entry_path(name, paths) for name in names)
    counts = Counter(found)
    nodes = {path[:depth] for path in counts for depth in range(1, len(path))}
    for path, count in counts.items():
        if path in nodes or count > 1:
            raise ConfigError(
                f"two entries of a batch would be called {'.'.join(path)!r}: a struct, and a stack, mask or column. "
                "Rename the stack, or leave one of them out with columns=."
            )
    return found


def _entry_path(name: str, paths: Mapping[str, FieldPath]) -> FieldPath:
    column = name.removesuffix(MASK_SUFFIX)
    if name not in paths and column in paths:
        return (*paths[column][:-1], paths[column][-1] + MASK_SUFFIX)
    return paths.get(name, (name,))
