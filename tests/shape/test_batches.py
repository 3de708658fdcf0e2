"""Every row of a batch is the row of the table it came from: any schema, nulls, slices, joins, orders, formats."""

import math
import pickle
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.shape.columns import DTYPES, FLOATS, KINDS, Model, columns, numbers, scalar_columns
from torch_dataloader_utils.errors import NullValueError
from torch_dataloader_utils.shape.ragged import Ragged
from torch_dataloader_utils.shape.shapers import make_shaper
from torch_dataloader_utils.shape.tensor_batch import TensorBatch

FAST = settings(
    max_examples=effort(50), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


class RefusedError(Exception):
    """The model says that these nulls are an error."""


@dataclass(frozen=True)
class Policy:
    """A null policy as the user writes it, and the raw value that nulls become (None: see `filled`)."""

    written: Any
    raw: Any = None


def draw_policy(draw: Any, model: Model) -> Policy:
    written = draw(st.sampled_from(["fill", "mask", "fill", "mask", None, "error"]))
    if written != "fill" or model.kind == "object":
        return Policy(None if written == "fill" else written)
    raw = draw(numbers(model.element))
    return Policy(draw(st.sampled_from([("fill", raw), {"fill": raw}])), raw)


def filled(value: Any, model: Model, policy: Policy, depth: int, in_list: bool) -> Any:
    """One row (or what is nested in it) with its nulls replaced, or RefusedError."""
    if value is None:
        if policy.raw is not None:
            null: Any = policy.raw
        elif policy.written == "mask" and not in_list:
            null = 0
        elif policy.written in (None, "mask") and model.element in FLOATS:
            null = math.nan
        else:
            raise RefusedError
        for size in reversed(model.shape[depth:]):
            null = [null] * size
        return null
    if depth == len(model.shape):
        return value
    return [filled(inner, model, policy, depth + 1, in_list) for inner in value]


def validity(value: Any, shape: tuple[int, ...]) -> Any:
    """True where a number is valid, nested like the row."""
    if not shape:
        return value is not None
    inner = [None] * shape[0] if value is None else value
    return [validity(item, shape[1:]) for item in inner]


def expected(model: Model, policy: Policy, rows: list[Any]) -> tuple[list[Any], list[Any]]:
    """(rows, mask rows) of a batch, or RefusedError."""
    if model.kind == "object":
        if policy.written == "error" and None in rows:
            raise RefusedError
        return rows, [row is not None for row in rows]
    if model.kind == "list":
        if None in rows and policy.written in (None, "error"):
            raise RefusedError
        lists = [[filled(item, model, policy, 0, True) for item in row or []] for row in rows]
        return lists, [row is not None for row in rows]
    return [filled(row, model, policy, 0, False) for row in rows], [validity(row, model.shape) for row in rows]


def same(left: Any, right: Any) -> bool:
    """Equality in which NaN equals NaN."""
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    return left == right or (left != left and right != right)


def to_python(column: Any) -> list[Any]:
    """A batch's column as nested lists of raw numbers."""
    match column:
        case torch.Tensor():
            return column.tolist()
        case Ragged():
            return column.to_list()
        case np.ndarray():
            return (column.view(np.int64) if column.dtype.kind in "mM" else column).tolist()
        case _:
            return [to_python(row) if isinstance(row, np.ndarray) else row for row in column]


@st.composite
def tables(draw: Any, kind: Any) -> tuple[pa.RecordBatch, dict[str, Model]]:
    """One or two columns of one kind beside a column of any kind."""
    num_rows = draw(st.one_of(st.integers(6, 12), st.integers(0, 5)))
    drawn = [*draw(st.lists(kind(num_rows), min_size=1, max_size=2)), draw(columns(num_rows))]
    models = {f"c{index}": model for index, model in enumerate(drawn)}
    return pa.RecordBatch.from_arrays([m.array for m in models.values()], list(models)), models


@st.composite
def spans(draw: Any, num_rows: int) -> tuple[int, int]:
    """(start, stop), more often long than short."""
    start = draw(st.integers(0, min(2, num_rows)))
    return start, draw(st.one_of(st.integers(max(start, num_rows - 1), num_rows), st.integers(start, num_rows)))


@st.composite
def parts_of(draw: Any, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The batch as one, or its columns in any order as several batches of a few each."""
    names = draw(st.permutations(batch.schema.names))
    cuts = sorted(draw(st.sets(st.integers(1, len(names) - 1)))) if len(names) > 1 else []
    return [batch.select(names[start:stop]) for start, stop in pairwise([0, *cuts, len(names)])]


def drawn_blocks(data: Any, shaper: Any, batch: pa.RecordBatch, check: Any) -> tuple[list[Any], list[int]]:
    """Blocks of slices of the batch, sliced again, and the batch row behind every row of them."""
    blocks, rows = [], []
    for _ in range(data.draw(st.integers(1, 3))):
        start, stop = data.draw(spans(batch.num_rows))
        check(start, stop)
        block = shaper.block(data.draw(parts_of(batch.slice(start, stop - start))))
        first, last = data.draw(spans(stop - start))
        blocks.append(block.slice(first, last))
        rows += range(start + first, start + last)
        assert blocks[-1].num_rows == last - first
        assert blocks[-1].num_bytes >= 0
    return blocks, rows


def rearranged(data: Any, shaper: Any, blocks: list[Any], rows: list[int]) -> tuple[Any, list[int]]:
    """The blocks joined or gathered, and the batch row behind every row of the result."""
    if data.draw(st.booleans()) or not rows:
        return shaper.concat(blocks), rows
    order = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=12))
    return shaper.gather(blocks, np.array(order, dtype=np.int64)), [rows[index] for index in order]


@pytest.mark.parametrize("kind", KINDS)
@FAST
@given(data=st.data(), output_format=st.sampled_from(["torch", "numpy"]))
def test_tensor_and_array_batches_hold_the_rows_of_the_table(kind: Any, data: Any, output_format: str) -> None:
    batch, models = data.draw(tables(kind))
    policies = {name: draw_policy(data.draw, model) for name, model in models.items()}
    nulls = {name: policy.written for name, policy in policies.items() if policy.written is not None}
    shaper = pickle.loads(pickle.dumps(make_shaper(output_format, batch.schema, nulls=nulls)))

    def check(start: int, stop: int) -> None:
        for name, model in models.items():
            try:
                expected(model, policies[name], model.rows[start:stop])
            except RefusedError:
                with pytest.raises(NullValueError, match=f"column '{name}'"):
                    shaper.block([batch.slice(start, stop - start)])
                raise

    try:
        blocks, rows = drawn_blocks(data, shaper, batch, check)
    except RefusedError:
        return
    block, rows = rearranged(data, shaper, blocks, rows)
    batch_rows = data.draw(st.integers(1, 5))
    batches = list(block.split(batch_rows))
    assert [len(next(iter(b.values()))) for b in batches] == [
        min(batch_rows, len(rows) - start) for start in range(0, len(rows), batch_rows)
    ]
    for name, model in models.items():
        values, mask = expected(model, policies[name], [model.rows[row] for row in rows])
        whole = block.to_batch()
        assert same(to_python(whole[name]), values)
        assert same([row for b in batches for row in to_python(b[name])], values)
        if policies[name].written == "mask":
            assert same([row for b in batches for row in to_python(b[name + "_mask"])], mask)
        if output_format == "torch" and model.kind != "object":
            tensor = whole[name].values if model.kind == "list" else whole[name]
            assert tensor.dtype == DTYPES[model.element]
            assert tensor.shape[1:] == model.shape


@FAST
@given(data=st.data(), output_format=st.sampled_from(["arrow", "dict"]))
def test_arrow_and_python_batches_hold_the_rows_of_the_table(data: Any, output_format: str) -> None:
    pytest.importorskip("pandas", reason="Arrow makes Python objects of nanoseconds with pandas only")
    batch, _ = data.draw(tables(columns))
    shaper = pickle.loads(pickle.dumps(make_shaper(output_format, batch.schema)))
    blocks, rows = drawn_blocks(data, shaper, batch, lambda start, stop: None)
    block, rows = rearranged(data, shaper, blocks, rows)
    table_rows = pa.Table.from_batches([batch]).to_pylist()
    batches = list(block.split(data.draw(st.integers(1, 5))))
    if output_format == "dict":
        found = [dict(zip(b, row, strict=True)) for b in batches for row in zip(*b.values(), strict=True)]
    else:
        found = [row for b in batches for row in b.to_pylist()]
    assert found == [table_rows[row] for row in rows]


@FAST
@given(
    element=st.sampled_from(list(DTYPES)),
    num_rows=st.integers(0, 7),
    width=st.integers(1, 4),
    data=st.data(),
    output_format=st.sampled_from(["torch", "numpy"]),
)
def test_stacked_columns_are_the_columns_of_a_matrix(
    element: pa.DataType, num_rows: int, width: int, data: Any, output_format: str
) -> None:
    models = [data.draw(scalar_columns(num_rows, element)) for _ in range(width)]
    names = [f"c{index}" for index in range(width)]
    arrays = [
        model.array.dictionary_decode() if pa.types.is_dictionary(model.array.type) else model.array for model in models
    ]
    batch = pa.RecordBatch.from_arrays([*arrays, pa.array(range(num_rows), pa.int64())], [*names, "id"])
    shaper = make_shaper(output_format, batch.schema, stack={"x": names}, nulls=dict.fromkeys(names, "mask"))
    blocks, rows = drawn_blocks(data, shaper, batch, lambda start, stop: None)
    block, rows = rearranged(data, shaper, blocks, rows)
    batches = list(block.split(data.draw(st.integers(1, 4))))
    found = [row for b in batches for row in to_python(b["x"])]
    assert same(found, [[0 if m.rows[row] is None else m.rows[row] for m in models] for row in rows])
    found = [row for b in batches for row in to_python(b["x_mask"])]
    assert found == [[m.rows[row] is not None for m in models] for row in rows]
    assert [row for b in batches for row in to_python(b["id"])] == rows
    assert all(b["x"].shape == (len(b["id"]), width) for b in batches)


@pytest.mark.slow
@FAST
@given(table=tables(columns))
def test_a_pickled_batch_is_the_same_batch(table: Any) -> None:
    batch, models = table
    whole = make_shaper("torch", batch.schema, nulls="mask").block([batch]) if not _has_null_items(models) else None
    if whole is None:
        return
    for piece in whole.split(2):
        copy = pickle.loads(pickle.dumps(piece))
        assert type(copy) is TensorBatch
        assert copy.num_rows == piece.num_rows
        assert {name: to_python(column) for name, column in copy.items()}.keys() == piece.keys()
        assert all(same(to_python(copy[name]), to_python(piece[name])) for name in piece)


def _has_null_items(models: dict[str, Model]) -> bool:
    try:
        for model in models.values():
            expected(model, Policy("mask"), model.rows)
    except RefusedError:
        return True
    return False


def test_bools_of_a_byte_are_true_for_anything_but_zero() -> None:
    stored = pa.array([0, 1, 2, None, -1, 0], pa.int8())
    flags = pa.ExtensionArray.from_storage(pa.bool8(), stored)
    pairs = pa.FixedSizeListArray.from_arrays(pa.ExtensionArray.from_storage(pa.bool8(), stored.fill_null(0)), 2)
    batch = pa.record_batch({"flag": flags[1:5], "pair": pairs[1:3].take(pa.array([0, 1, 1, 0]))})
    shaped = make_shaper("torch", batch.schema, nulls={"flag": "mask"}).block([batch]).to_batch()
    assert shaped["flag"].tolist() == [True, True, False, True]
    assert shaped["flag_mask"].tolist() == [True, True, False, True]
    assert shaped["pair"].tolist() == [[True, False], [True, False], [True, False], [True, False]]
    assert all(shaped[name].dtype == torch.bool for name in shaped)


def test_bools_of_a_byte_are_not_copied() -> None:
    stored = pa.array(np.array([0, 1, 1], np.int8))
    batch = pa.record_batch({"flag": pa.ExtensionArray.from_storage(pa.bool8(), stored)})
    shaped = make_shaper("torch", batch.schema).block([batch]).to_batch()
    assert shaped["flag"].data_ptr() == stored.buffers()[1].address
