"""Convert Arrow columns to block columns, or into the matrix of a stack; check text and apply the null policy."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from torch_dataloader_utils._arrow.schema import is_utf8
from torch_dataloader_utils.errors import CorruptFileError, NullValueError, plural
from torch_dataloader_utils.shape.arrow_types import ListType, NumberType, ObjectType, element_of, numpy_dtype, raw_type
from torch_dataloader_utils.shape.columns import Column, Lists, Matrix, Objects, Rows
from torch_dataloader_utils.shape.raw_numbers import Bools, RawNumbers, plain, raw_lists, raw_numbers, validity
from torch_dataloader_utils.shape.reused_memory import new_tensor
from torch_dataloader_utils.shape.specs import ColumnSpec, Fill, Mask, Natural, Refuse, StackSpec


def check_text(name: str, array: pa.Array) -> None:
    """Raise CorruptFileError for text that no Python string can hold. Takes 2 to 15 % of the time of making strings.

    Raises:
        CorruptFileError: the column, or a value inside its values, holds text that is not UTF-8.
    """
    try:
        for text in _texts(array):
            text.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptFileError(
            f"column {name!r} holds text that is not UTF-8 ({error}). Write the file again, or leave the column out; "
            'output_format="arrow" gives bytes as they are.'
        ) from error


def _texts(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the text in a column, one array for each place in its type that holds text."""
    kind = array.type
    if is_utf8(kind) or pt.is_string_view(kind):
        yield array
    elif isinstance(kind, pa.BaseExtensionType):
        yield from _texts(array.storage)
    elif pt.is_dictionary(kind):
        yield from _texts(array.dictionary)
    elif pt.is_struct(kind) or pt.is_union(kind):
        for index in range(kind.num_fields):
            yield from _texts(array.field(index))
    elif pt.is_map(kind):
        yield from _texts(array.keys)
        yield from _texts(array.items)
    elif kind.num_fields and hasattr(array, "flatten"):  # lists of all kinds
        yield from _texts(array.flatten())


def convert_column(spec: ColumnSpec, array: pa.Array) -> tuple[Column, ...]:
    """Convert a column. Return the column, and its mask (True where valid) if the policy asks for a mask.

    The mask of numbers has the shape of the numbers. The mask of lists and objects is one bool a row.

    Raises:
        NullValueError: the column has nulls that the policy does not allow. CorruptFileError: a text is not UTF-8.
    """
    if spec.is_plain and array.null_count == 0 and not isinstance(spec.nulls, Mask):
        return (Rows(from_dlpack(array)),)
    match spec.kind:
        case NumberType() as kind:
            return _convert_numbers(spec, kind, array)
        case ListType(item=item):
            return _convert_lists(spec, item, array)
        case ObjectType():
            return _convert_objects(spec, array)


class StackBuilder:
    """Builder of a stack's matrix: columns are put into the matrix one by one as they come.

    Columns that lie in one buffer, in order and at even distances, are the matrix without a copy. Other columns are
    copied once: 8 to 11 times as fast as stacking tensors row by row, and faster still while a core has the column in
    its cache.
    """

    def __init__(self, spec: StackSpec, num_rows: int) -> None:
        self._spec = spec
        self._shape = (len(spec.columns), num_rows)
        self._dtype = _raw_dtype(spec.columns[0])
        self._in_place: list[pa.Array] = []
        self._copies: Tensor | None = None
        self._valid = np.ones(self._shape, np.bool_) if spec.has_mask else None
        self._whole: Tensor | None = None

    def put_whole(self, numbers: Tensor) -> None:
        """Put all columns of the stack, which have no nulls: [columns, rows]."""
        self._whole = numbers

    def put(self, place: int, array: pa.Array) -> None:
        """Put a column at this place of the stack.

        Raises:
            NullValueError: the column has nulls that its policy does not allow.
        """
        column = self._spec.columns[place]
        if not (column.is_plain and array.null_count == 0):
            numbers = raw_numbers(array)
            array = _filled(column, _nulls_become(column), numbers)
            if self._valid is not None and numbers.valid is not None:
                self._valid[place] = numbers.valid
        if place == len(self._in_place) and array.buffers()[1].parent is not None:
            self._in_place.append(array)
        else:
            self._copy(place, array)

    def columns(self) -> tuple[Column, ...]:
        """Return the matrix of all columns, and its mask of the same shape if any column's nulls are masked."""
        is_complete = len(self._in_place) == self._shape[0]
        numbers = _as_matrix(self._in_place, self._dtype) if is_complete else self._whole
        if numbers is None:
            numbers = self._room()
            for place, array in enumerate(self._in_place):
                self._copy(place, array)
        matrix = Matrix(_logical(numbers, self._spec.columns[0]))
        return (matrix,) if self._valid is None else (matrix, Matrix(torch.from_numpy(self._valid)))

    def _copy(self, place: int, array: pa.Array) -> None:
        self._room()[place].numpy()[...] = np.from_dlpack(array)

    def _room(self) -> Tensor:
        """Return memory for the matrix, allocated when the first column must be copied."""
        if self._copies is None:
            self._copies = new_tensor(self._shape, self._dtype)
        return self._copies


def _as_matrix(arrays: Sequence[pa.Array], dtype: torch.dtype) -> Tensor | None:
    """Return arrays of numbers as one tensor [arrays, rows] without a copy.

    Return None unless the arrays lie at even distances in one writable buffer.
    """
    buffers, rows = [array.buffers()[1] for array in arrays], len(arrays[0])
    wholes = {(buffer.parent.address, buffer.parent.size) for buffer in buffers}
    starts = [buffer.address + array.offset * dtype.itemsize for array, buffer in zip(arrays, buffers, strict=True)]
    pitches = {after - before for before, after in pairwise(starts)} or {rows * dtype.itemsize}
    whole, pitch = buffers[0].parent, min(pitches)
    if len(wholes) > 1 or len(pitches) > 1 or pitch % dtype.itemsize or not 0 < rows * dtype.itemsize <= pitch:
        return None
    if not whole.is_mutable:
        return None
    pitch //= dtype.itemsize
    numbers = torch.frombuffer(
        whole, dtype=dtype, count=pitch * (len(arrays) - 1) + rows, offset=starts[0] - whole.address
    )
    return numbers.as_strided((len(arrays), rows), (pitch, 1))


def _convert_numbers(spec: ColumnSpec, kind: NumberType, array: pa.Array) -> tuple[Column, ...]:
    numbers = raw_numbers(array)
    values = from_dlpack(_filled(spec, _nulls_become(spec), numbers))
    column = Rows(_shaped(_logical(values, spec), kind, len(array)))
    if not isinstance(spec.nulls, Mask):
        return (column,)
    return column, Rows(_shaped(_mask(numbers.valid, len(values)), kind, len(array)))


def _convert_lists(spec: ColumnSpec, item: NumberType, array: pa.Array) -> tuple[Column, ...]:
    lists = raw_lists(array)
    if lists.valid is not None and not isinstance(spec.nulls, Fill | Mask):
        raise _null_error(spec, lists.valid, "null list")
    values = from_dlpack(_filled(spec, _null_items_become(spec), lists.items))
    column = Lists(_shaped(_logical(values, spec), item, int(lists.offsets[-1])), torch.from_numpy(lists.offsets))
    return (column, Rows(_mask(lists.valid, len(array)))) if isinstance(spec.nulls, Mask) else (column,)


def _convert_objects(spec: ColumnSpec, array: pa.Array) -> tuple[Column, ...]:
    array = plain(array)
    check_text(spec.name, array)
    valid = validity(array)
    if valid is not None and isinstance(spec.nulls, Refuse):
        raise _null_error(spec, valid, "null")
    column = Objects(pa.chunked_array([array]), spec.nulls.value if isinstance(spec.nulls, Fill) else None)
    return (column, Rows(_mask(valid, len(array)))) if isinstance(spec.nulls, Mask) else (column,)


def _nulls_become(spec: ColumnSpec) -> float | None:
    """Return the raw number that replaces a null of this column; None if a null is an error."""
    match spec.nulls:
        case Fill(value=value):
            return value  # type: ignore[no-any-return]
        case Mask():
            return 0
        case Natural():
            return math.nan if pt.is_floating(element_of(spec.kind)) else None
        case Refuse():
            return None


def refuses_nulls(spec: ColumnSpec) -> bool:
    """Return whether a row that is null is an error."""
    match spec.kind:
        case NumberType():
            return _nulls_become(spec) is None
        case ListType():
            return not isinstance(spec.nulls, Fill | Mask)
        case ObjectType():
            return isinstance(spec.nulls, Refuse)


def counted_nulls_error(
    where: str, refused: Sequence[ColumnSpec], lists: Sequence[ColumnSpec], counts: Mapping[str, int], nulls: object
) -> NullValueError:
    """Return the error about columns that have nulls and refuse them.

    where: name of the data. lists: columns of lists that refuse nulls, which metadata does not count. counts: number of
    nulls of each column. nulls: `nulls=` of the caller.
    """
    seen = "; ".join(
        f"column {spec.name!r} ({spec.data_type}) has {plural(counts[spec.name], 'null')}" for spec in refused
    )
    whole = {
        **(nulls if isinstance(nulls, Mapping) else {}),
        **{spec.name: _harmless(spec) for spec in (*refused, *lists)},
    }
    to_be_safe = " (lists too: metadata does not count their nulls)" if lists else ""
    return NullValueError(
        f"{where}: {seen}. Tensors cannot hold nulls. Pass nulls={whole!r} with values of your choice{to_be_safe}, "
        'or "mask" for a bool tensor beside the column; or nulls="fill" for zeros in all columns; or leave rows with '
        "nulls out with filters=."
    )


def _harmless(spec: ColumnSpec) -> Any:
    """Return a policy that every column of this kind can have."""
    if isinstance(spec.kind, ObjectType):
        return "mask"
    element = element_of(spec.kind)
    return "fill", False if pt.is_boolean(element) else 0.0 if pt.is_floating(element) else 0


def _null_items_become(spec: ColumnSpec) -> float | None:
    """Return `_nulls_become` for items of lists. The mask of lists is one bool a list and cannot mark items."""
    if isinstance(spec.nulls, Mask):
        return math.nan if pt.is_floating(element_of(spec.kind)) else None
    return _nulls_become(spec)


def number_dtype(spec: ColumnSpec) -> torch.dtype:
    """Return the dtype of a column of numbers."""
    return torch.bool if pt.is_boolean(element_of(spec.kind)) else _raw_dtype(spec)


def _raw_dtype(spec: ColumnSpec) -> torch.dtype:
    return torch_dtype(numpy_dtype(raw_type(element_of(spec.kind))))


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return torch's dtype of the same numbers."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _filled(spec: ColumnSpec, replacement: float | None, numbers: RawNumbers) -> pa.Array:
    if numbers.valid is None:
        return numbers.values
    if replacement is None:
        raise _null_error(spec, numbers.valid, "null", " in lists" if isinstance(spec.kind, ListType) else "")
    return numbers.filled(replacement)


def _logical(values: Tensor, spec: ColumnSpec) -> Tensor:
    return values.view(torch.bool) if pt.is_boolean(element_of(spec.kind)) else values


def _shaped(values: Tensor, kind: NumberType, num_rows: int) -> Tensor:
    if not kind.shape:
        return values
    values = values.view(num_rows, *kind.shape)
    return values.permute(0, *(axis + 1 for axis in kind.permutation)) if kind.permutation else values


def _mask(valid: Bools | None, count: int) -> Tensor:
    return torch.from_numpy(np.ones(count, np.bool_) if valid is None else valid)


def _null_error(spec: ColumnSpec, valid: Bools, unit: str, place: str = "") -> NullValueError:
    nulls, total = int(valid.size - np.count_nonzero(valid)), valid.size
    # A mask is one bool a row and cannot mark the items of a list.
    or_mask = "" if place else ', or "mask" for a bool tensor beside it'
    if isinstance(spec.nulls, Refuse):
        advice = f'nulls= says "error" for it. Use nulls={{"{spec.name}": ("fill", value)}}{or_mask}'
    elif isinstance(spec.nulls, Mask):
        advice = (
            "A mask says which lists are null, not which items. Pass a dict as nulls=, with "
            f'"{spec.name}": ("fill", value)'
        )
    else:
        emptied = ", which makes null lists empty" if unit == "null list" else ""
        advice = f'Pass nulls={{"{spec.name}": ("fill", value)}}{emptied}{or_mask}'
    seen = f"{plural(nulls, unit)}{place} in {plural(total, 'value')}"
    return NullValueError(f"column {spec.name!r} ({spec.data_type}) has {seen}. {advice}.")
