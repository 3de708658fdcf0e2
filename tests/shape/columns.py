"""Random Arrow columns, with what a batch must hold of them said in plain Python."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from hypothesis import strategies as st

INTEGERS = {
    pa.int8(): torch.int8,
    pa.int16(): torch.int16,
    pa.int32(): torch.int32,
    pa.int64(): torch.int64,
    pa.uint8(): torch.uint8,
    pa.uint16(): torch.uint16,
    pa.uint32(): torch.uint32,
    pa.uint64(): torch.uint64,
}
FLOATS = {pa.float16(): torch.float16, pa.float32(): torch.float32, pa.float64(): torch.float64}
TEMPORAL = {
    pa.date32(): torch.int32,
    pa.time32("s"): torch.int32,
    pa.time64("us"): torch.int64,
    pa.timestamp("us"): torch.int64,
    pa.timestamp("ns", "UTC"): torch.int64,
    pa.duration("ms"): torch.int64,
}
DTYPES = {**INTEGERS, **FLOATS, **TEMPORAL, pa.bool_(): torch.bool}
OBJECTS = (
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.decimal128(9, 2),
    pa.struct([("a", pa.int32()), ("b", pa.string())]),
    pa.map_(pa.string(), pa.int32()),
    pa.list_(pa.string()),
    pa.list_(pa.list_(pa.int32())),
    pa.list_(pa.string(), 2),
    pa.null(),
)


@dataclass(frozen=True, kw_only=True)
class Model:
    """One column: the Arrow array and its rows in Python.

    rows: numbers as raw integers, floats or bools, nested as the batch nests them; None for null.
    element: the Arrow type of one number, None for Python objects. kind: "number", "list" or "object".
    shape: shape of the numbers of one row (one item, for lists).
    """

    array: pa.Array
    rows: list[Any]
    kind: str
    element: pa.DataType | None = None
    shape: tuple[int, ...] = ()


def numbers(element: pa.DataType) -> st.SearchStrategy[Any]:
    """Raw numbers of an element type."""
    if element in FLOATS:
        return st.floats(width=element.bit_width, allow_nan=False)
    if pa.types.is_boolean(element):
        return st.booleans()
    if pa.types.is_time(element):
        return st.integers(0, 86_399)
    if element in TEMPORAL:
        return st.integers(-100_000, 100_000)
    info = np.iinfo(str(element))  # not to_pandas_dtype(), which needs pandas
    return st.integers(int(info.min), int(info.max))


def build(rows: list[Any], wrap: Any, element: pa.DataType) -> pa.Array:
    """The array of type wrap(element): built from raw integers where the element is a date or a time."""
    if element in TEMPORAL:
        raw = pa.int32() if element.bit_width == 32 else pa.int64()
        return pa.array(rows, wrap(raw)).cast(wrap(element))
    return pa.array(rows, wrap(element))


def _maybe(values: st.SearchStrategy[Any], has_nulls: bool) -> st.SearchStrategy[Any]:
    return st.one_of(values, values, st.none()) if has_nulls else values


@st.composite
def scalar_columns(draw: Any, num_rows: int, element: pa.DataType | None = None) -> Model:
    """One number a row, sometimes dictionary-encoded."""
    element = element or draw(st.sampled_from(list(DTYPES)))
    values = _maybe(numbers(element), draw(st.booleans()))
    rows = draw(st.lists(values, min_size=num_rows, max_size=num_rows))
    array = build(rows, lambda leaf: leaf, element)
    if pa.types.is_integer(element) and draw(st.booleans()):
        array = array.dictionary_encode()
    return Model(array=array, rows=rows, kind="number", element=element)


@st.composite
def fixed_columns(draw: Any, num_rows: int) -> Model:
    """Fixed-size lists, nested once or twice, with null rows and null numbers."""
    element = draw(st.sampled_from(list(DTYPES)))
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))
    leaf = _maybe(numbers(element), draw(st.booleans()))
    values, has_nulls = leaf, draw(st.booleans())
    for size in reversed(shape):
        values = _maybe(st.lists(values, min_size=size, max_size=size), has_nulls)
    rows = draw(st.lists(values, min_size=num_rows, max_size=num_rows))

    def wrap(leaf: pa.DataType) -> pa.DataType:
        for size in reversed(shape):
            leaf = pa.list_(leaf, size)
        return leaf

    return Model(array=build(rows, wrap, element), rows=rows, kind="number", element=element, shape=shape)


@st.composite
def tensor_columns(draw: Any, num_rows: int) -> Model:
    """fixed_shape_tensor columns with a permutation."""
    shape = draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))
    permutation = draw(st.permutations(range(len(shape))))
    flat = draw(
        st.lists(
            st.lists(numbers(pa.int32()), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))),
            min_size=num_rows,
            max_size=num_rows,
        )
    )
    arrow = pa.fixed_shape_tensor(pa.int32(), shape, permutation=permutation)
    storage = pa.array(flat, arrow.storage_type)
    rows = [np.array(row).reshape(shape).transpose(permutation).tolist() for row in flat]
    shape_out = tuple(shape[axis] for axis in permutation)
    array = pa.ExtensionArray.from_storage(arrow, storage)
    return Model(array=array, rows=rows, kind="number", element=pa.int32(), shape=shape_out)


@st.composite
def list_columns(draw: Any, num_rows: int) -> Model:
    """Lists of numbers or of fixed-size lists, with null rows and null items."""
    element = draw(st.sampled_from(list(DTYPES)))
    shape = draw(st.sampled_from([(), (2,)]))
    item = _maybe(numbers(element), draw(st.booleans()))
    if shape:
        item = st.lists(item, min_size=2, max_size=2)
    rows = draw(st.lists(_maybe(st.lists(item, max_size=4), draw(st.booleans())), min_size=num_rows, max_size=num_rows))
    outer = draw(st.sampled_from([pa.list_, pa.large_list]))

    def wrap(leaf: pa.DataType) -> pa.DataType:
        return outer(pa.list_(leaf, 2) if shape else leaf)

    return Model(array=build(rows, wrap, element), rows=rows, kind="list", element=element, shape=shape)


@st.composite
def object_columns(draw: Any, num_rows: int) -> Model:
    """Strings, bytes, decimals, structs, maps, lists of strings, lists of lists, and strings by dictionary."""
    arrow = draw(st.sampled_from(OBJECTS))
    has_nulls = draw(st.booleans())
    rows = draw(st.lists(_maybe(_objects(arrow), has_nulls), min_size=num_rows, max_size=num_rows))
    array = pa.array(rows, arrow)
    if pa.types.is_string(arrow) and draw(st.booleans()):
        array = array.dictionary_encode()
    return Model(array=array, rows=array.to_pylist(), kind="object")


def _objects(arrow: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_null(arrow):
        return st.none()
    if pa.types.is_string(arrow) or pa.types.is_large_string(arrow):
        return st.text(max_size=3)
    if pa.types.is_binary(arrow):
        return st.binary(max_size=3)
    if pa.types.is_decimal(arrow):
        return st.decimals(-999, 999, places=2)
    if pa.types.is_struct(arrow):
        return st.fixed_dictionaries({"a": numbers(pa.int32()), "b": st.text(max_size=2)})
    if pa.types.is_map(arrow):
        return st.lists(st.tuples(st.text(max_size=2), numbers(pa.int32())), max_size=2)
    if pa.types.is_integer(arrow):
        return numbers(arrow)
    if pa.types.is_fixed_size_list(arrow):
        return st.lists(_objects(arrow.value_type), min_size=2, max_size=2)
    return st.lists(_objects(arrow.value_type), max_size=3)


KINDS = (scalar_columns, fixed_columns, tensor_columns, list_columns, object_columns)


def columns(num_rows: int) -> st.SearchStrategy[Model]:
    """Any column of `num_rows` rows, sometimes in run ends."""
    plain = st.one_of([kind(num_rows) for kind in KINDS])
    return st.one_of(plain, plain, plain.map(in_runs))


def in_runs(model: Model) -> Model:
    """The same column in run ends, each row a run of its own but the last: that one ends beyond the rows.

    Tensors stay as they are: pyarrow does not join their runs.
    """
    if isinstance(model.array, pa.ExtensionArray):
        return model
    ends = np.arange(1, len(model.array) + 1, dtype=np.int32)
    ends[-1:] += 3
    runs = pa.RunEndEncodedArray.from_arrays(pa.array(ends), model.array)
    return replace(model, array=runs.slice(0, len(model.array)))
