"""Checksums of columns: any order of summing gives them, and no change of a value or of its row keeps them."""

import itertools
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.rewrite.tables import rows
from torch_dataloader_utils.rewrite.checksums import add_sums, sum_columns
from torch_dataloader_utils.rewrite.order import RowOrder
from torch_dataloader_utils.rewrite.spill import plain_rows, plain_schema

COUNT = 40
WORDS = RowOrder(seed=1, outputs=1).words(0, COUNT)


def batch(count: int = COUNT) -> pa.RecordBatch:
    (found,) = rows(0, count).to_batches()
    return plain_rows(found, plain_schema(found.schema))


@settings(max_examples=effort(60))
@given(order=st.permutations(range(COUNT)), cuts=st.sets(st.integers(0, COUNT), max_size=4))
def test_sums_do_not_depend_on_the_order_and_the_parts_in_which_rows_come(order: list[int], cuts: set[int]) -> None:
    whole, nulls = sum_columns(batch(), WORDS)
    sums, seen = [0] * len(whole), set()
    edges = [0, *sorted(cuts), COUNT]
    for start, stop in itertools.pairwise(edges):
        taken = order[start:stop]
        found, fields = sum_columns(batch().take(pa.array(taken, pa.int64())), WORDS[taken])
        sums = add_sums(sums, found)
        seen |= fields
    assert (sums, seen) == (whole, nulls)


def nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda each: pa.list_(each, 2)),
        inner.map(lambda each: pa.struct([("x", each), ("y", pa.null()), ("z", pa.int16())])),
        st.builds(pa.map_, st.sampled_from([pa.int32(), pa.string()]), inner),
    )


LEAVES = st.sampled_from([pa.null(), pa.null(), pa.int8(), pa.string(), pa.bool_(), pa.decimal128(20, 2)])
NESTED = nested(st.recursive(LEAVES, nested, max_leaves=3))


def values_of(kind: pa.DataType, rng: random.Random, *, may_be_null: bool = True) -> object:
    if pa.types.is_null(kind) or (may_be_null and rng.random() < 0.3):
        return None
    if pa.types.is_struct(kind):
        return {field.name: values_of(field.type, rng) for field in kind}
    if pa.types.is_nested(kind):
        count = kind.list_size if pa.types.is_fixed_size_list(kind) else rng.randrange(4)
        if not pa.types.is_map(kind):
            return [values_of(kind.value_type, rng) for _ in range(count)]
        keys = [values_of(kind.key_type, rng, may_be_null=False) for _ in range(count)]
        return [(key, values_of(kind.item_type, rng)) for key in keys]
    number = rng.randrange(100)
    return str(number) if pa.types.is_string(kind) else number % 2 == 0 if pa.types.is_boolean(kind) else number


@settings(max_examples=effort(100))
@example(kind=pa.map_(pa.int32(), pa.list_(pa.null())), seed=1)
@example(kind=pa.large_list(pa.map_(pa.string(), pa.large_list(pa.null()))), seed=1)
@given(kind=NESTED, seed=st.integers(0, 2**32 - 1))
def test_sums_of_nested_values_do_not_depend_on_how_arrays_hold_them(kind: pa.DataType, seed: int) -> None:
    rng = random.Random(seed)
    column = pa.array([values_of(kind, rng) for _ in range(COUNT)], kind)
    (whole,), nulls = sum_columns(pa.record_batch({"a": column}), WORDS)
    edges = sorted({0, COUNT, *rng.choices(range(COUNT), k=3)})
    slices = [column.slice(start, stop - start) for start, stop in itertools.pairwise(edges)]
    order = rng.sample(range(COUNT), COUNT)
    halves = [np.array(order[:15]), np.array(order[15:])]
    for parts, words in [
        (slices, np.split(WORDS, edges[1:-1])),
        ([pa.array(each.to_pylist(), kind) for each in slices], np.split(WORDS, edges[1:-1])),
        ([pa.concat_arrays(slices)], [WORDS]),
        ([column.take(pa.array(half)) for half in halves], [WORDS[half] for half in halves]),
    ]:
        found = [sum_columns(pa.record_batch({"a": part}), of) for part, of in zip(parts, words, strict=True)]
        assert sum(sums[0] for sums, _ in found) % 2**64 == whole
        assert set().union(*(fields for _, fields in found)) == nulls


@pytest.mark.parametrize("name", [each for each in batch().schema.names if each != "nothing"])
def test_a_value_that_changes_its_row_or_becomes_null_changes_the_sum_of_its_column_alone(name: str) -> None:
    before, _ = sum_columns(batch(), WORDS)
    place = batch().schema.get_field_index(name)
    values = batch().column(name).to_pylist()
    swapped = next(i for i in range(1, COUNT) if values[i] != values[0])
    other = [values[swapped], *values[1:swapped], values[0], *values[swapped + 1 :]]
    gone = (
        [*values[:swapped], None, *values[swapped + 1 :]] if values[swapped] is not None else values[:-1] + values[:1]
    )
    for changed in (other, gone):
        column = pa.array(changed, batch().schema.field(name).type)
        after, _ = sum_columns(batch().set_column(place, batch().schema.field(name), column), WORDS)
        assert [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new] == [place]


def test_items_that_change_places_in_their_list_and_the_highest_bit_of_a_number_change_a_sum() -> None:
    def total(values: object, kind: pa.DataType) -> int:
        return sum_columns(pa.record_batch({"a": pa.array(values, kind)}), WORDS[:2])[0][0]

    assert total([[1, 2], [3]], pa.list_(pa.int64())) != total([[2, 1], [3]], pa.list_(pa.int64()))
    assert total([[1], [2, 3]], pa.list_(pa.int64())) != total([[1, 2], [3]], pa.list_(pa.int64()))
    assert total([[], None], pa.list_(pa.int64())) != total([None, []], pa.list_(pa.int64()))
    assert total([0.0, 1.0], pa.float64()) != total([-0.0, 1.0], pa.float64())
    for length in (255, 256, 5_000):
        text = "a" * length
        sums = {total(values, pa.string()) for values in ([text, "b"], ["b", text], [text + "b", ""], ["b" + text, ""])}
        assert len(sums) == 4
        assert total([None, text], pa.string()) != total(["", text], pa.string())
        sliced = pa.record_batch({"a": pa.array(["x" * 300, text, "b", "y"])}).slice(1, 2)
        assert sum_columns(sliced, WORDS[:2])[0][0] == total([text, "b"], pa.string())


def test_fields_with_nulls_are_found_inside_columns_and_slices_count_their_own_rows() -> None:
    _, nulls = sum_columns(batch(), WORDS)
    names = {batch().schema.names[place[0]] for place in nulls}
    assert names == {"small", "word", "city", "items", "gaps", "where", "nothing"}
    inner = pa.array([{"x": 1, "y": [1, None]}, {"x": 2, "y": []}])
    assert sum_columns(pa.record_batch({"a": inner}), WORDS[:2])[1] == {(0, 1, 0)}
    sliced = sum_columns(batch().slice(7, 20), WORDS[7:27])
    assert sliced == sum_columns(batch().take(pa.array(np.arange(7, 27))), WORDS[7:27])
