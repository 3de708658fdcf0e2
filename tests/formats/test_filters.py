"""Which columns a filter needs, and which rows it keeps."""

import operator
import pickle
from datetime import UTC, datetime
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils._arrow.row_filter import filter_text, fit_filter, keep_mask
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError

NAMES = [f"c{i}" for i in range(23)]
DECIMALS = (
    pa.decimal128(4, 2),
    pa.decimal128(12, 2),
    pa.decimal128(38, 20),
    pa.decimal128(38, 38),
    pa.decimal256(60, 5),
)
WIDE = pa.schema([(name, pa.int64()) for name in NAMES])


@settings(max_examples=effort(50), deadline=None)
@given(st.sets(st.sampled_from(NAMES), min_size=1))
def test_exactly_the_named_columns_are_found(named: set[str]) -> None:
    row_filter = pc.scalar(True)
    for number, name in enumerate(sorted(named)):
        row_filter = (
            (row_filter | (pc.field(name) > number)) if number % 2 else (row_filter & pc.field(name).is_valid())
        )
    assert fit_filter(row_filter, WIDE).columns == tuple(name for name in NAMES if name in named)


def test_fields_of_structs_count_as_their_column() -> None:
    schema = pa.schema([("s", pa.struct([("x", pa.int64())])), ("x", pa.int64())])
    assert fit_filter(pc.field("s", "x") > 1, schema).columns == ("s",)
    assert fit_filter(pc.struct_field(pc.field("s"), [0]) > 1, schema).columns == ("s",)
    assert fit_filter(pc.scalar(True), schema).columns == ()


@pytest.mark.parametrize(
    ("row_filter", "message"),
    [
        (pc.field("nope") > 1, "nope"),
        (pc.field("c1") == "a", "does not fit"),
        (pc.field("c1") + 1, "gives int64"),
        (pc.field(0) > 1, "by position"),
    ],
)
def test_filters_that_cannot_work_are_refused(row_filter: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fit_filter(row_filter, WIDE)


@pytest.mark.parametrize("time_type", [pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.date32()])
def test_a_text_for_a_time_names_what_to_write(time_type: pa.DataType) -> None:
    with pytest.raises(ConfigError, match=r"does not fit the data.* in a shell write date\('2024-01-05'\)"):
        fit_filter(pc.field("t") >= "2024-01-05", pa.schema([("t", time_type)]))


TYPED = pa.schema(
    [
        ("naive", pa.timestamp("us")),
        ("zoned", pa.timestamp("us", "UTC")),
        ("berlin", pa.timestamp("ns", "Europe/Berlin")),
        ("s", pa.string()),
        ("n", pa.struct([("x", pa.int32())])),
        ("m", pa.struct([("x.y", pa.int32())])),
        ("a.b", pa.int8()),
        ("d", pa.decimal128(12, 2)),
        ("t", pa.bool_()),
    ]
)
NOON = datetime(2024, 1, 5, 12)


@pytest.mark.parametrize(
    ("row_filter", "message"),
    [
        (
            pc.field("zoned") > NOON,
            r"'zoned' is timestamp\[us, tz=UTC\].* tzinfo=timezone.utc.* in a shell write timestamp\(",
        ),
        (pc.field("naive") > NOON.replace(tzinfo=UTC), r"'naive' is timestamp\[us\]\. A column .* without one with"),
        (pc.field("berlin") < NOON, r"'berlin' is timestamp\[ns, tz=Europe/Berlin\]\. A column with a time zone"),
        (pc.field("naive") < pc.field("zoned"), r"'naive' is timestamp\[us\], column 'zoned' is timestamp\[us, tz"),
        (pc.field("zoned").isin([NOON]), r"'zoned' is timestamp\[us, tz=UTC\].* tzinfo=timezone.utc"),
        (pc.field("s") > 5, r"\(string, int8\); column 's' is string\. Compare text with text"),
        (pc.field("d") * 2 > 5, r"column 'd' is decimal128\(12, 2\)\. Compare decimals with a value"),
        (pc.field("t") == 1, r"column 't' is bool\. Compare booleans with True"),
        (pc.field("a.b") == "5", r"\(int8, string\); column 'a.b' is int8\. Compare text with text"),
        (pc.field("n", "x") > "5", r"column 'n' is struct<x: int32>\. Compare text with text"),
        (pc.field("n.x") > 5, r"write pc\.field\('n', 'x'\)"),
        (pc.field("m.x.y") > 5, r"write pc\.field\('m', 'x\.y'\)"),
        (pc.field("n", "y") > 5, r"column 'n' is struct<x: int32>, which has no field 'y'"),
        (pc.field("price (EUR)") > 5, r"no column is called 'price \(EUR\)'; the columns are"),
        (pc.field("n", "y (m)") > 5, r"has no field 'y \(m\)'"),
        (pc.field("zond") > NOON, r"no column is called 'zond'; did you mean 'zoned'\?"),
    ],
)
def test_what_would_fail_on_rows_is_refused_without_any(row_filter: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"does not fit the data.*{message}"):
        fit_filter(row_filter, TYPED)


def test_a_filter_that_is_no_expression_is_a_type_error() -> None:
    with pytest.raises(ConfigTypeError, match=r"pass a pyarrow expression.*filters_to_expression"):
        fit_filter([("c1", ">", 3)], WIDE)


def test_the_mask_is_in_row_order_over_many_pieces() -> None:
    # Acero works in pieces of 32,768 rows.
    values = np.random.default_rng(0).integers(0, 100, 200_000)
    mask = keep_mask(pc.field("v") < 50, pa.RecordBatch.from_arrays([pa.array(values)], names=["v"]))
    assert np.array_equal(mask.to_numpy(zero_copy_only=False), values < 50)


@settings(max_examples=effort(60))
@given(data=st.data(), data_type=st.sampled_from(DECIMALS), name=st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]))
def test_decimals_compare_exactly_with_integers(data: st.DataObject, data_type: pa.DataType, name: str) -> None:
    compare, field, most = getattr(operator, name), pc.field("s", "d"), 10**data_type.precision - 1
    unscaled = data.draw(st.lists(st.integers(-most, most) | st.integers(-9, 9) | st.none(), max_size=9))
    with localcontext(prec=80):
        values = [None if each is None else Decimal(each).scaleb(-data_type.scale) for each in unscaled]
    near = [int(each) for each in values if each is not None and abs(each) < 2**63]
    number = data.draw(st.integers(-(2**63), 2**63 - 1) | st.sampled_from([*near, 0, 99, -100]))
    if data.draw(st.booleans()):
        row_filter, expected = (
            compare(field, number),
            [each if each is None else compare(each, number) for each in values],
        )
    else:
        row_filter = compare(pc.scalar(number), field)
        expected = [each if each is None else compare(number, each) for each in values]
    inner = pa.StructArray.from_arrays([pa.array(values, data_type)], names=["d"])
    batch = pa.record_batch({"s": inner, "d": pa.array(range(len(values)), pa.int64())})
    fitted = fit_filter(row_filter & (pc.field("d") >= 0), batch.schema)
    assert fitted.columns == ("s", "d")
    assert keep_mask(fitted.expression, batch).to_pylist() == expected


def test_sets_of_numbers_find_the_decimals_that_they_have() -> None:
    values = [Decimal("5.50"), Decimal("5.00"), None, Decimal("99.99")]
    batch = pa.record_batch({"d": pa.array(values, pa.decimal128(4, 2))})
    for numbers, found in [
        (pa.array([5, 1000, 99]), [1]),
        ([Decimal("5.500"), Decimal("99.991")], [0]),
        (pa.array([None, 5]), [1, 2]),
        (pa.array([1000]), []),
    ]:
        row_filter = pc.field("d").isin(numbers)
        kept = keep_mask(fit_filter(row_filter, batch.schema).expression, batch).to_pylist()
        left = keep_mask(fit_filter(~row_filter, batch.schema).expression, batch).to_pylist()
        assert kept == [place in found for place in range(4)] == [not each for each in left]


def test_null_is_neither_true_nor_false() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1, None, 3])], names=["v"])
    assert keep_mask(pc.field("v") > 1, batch).to_pylist() == [False, None, True]


A = pc.field("a")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (A.isin([*range(10), 10, *range(20, 40)]), A.isin([*range(10), 11, *range(20, 40)])),
        (A == 0.1, pa.scalar(0.1, pa.float32()) == A),
        (A == b"a", A == "61"),
        (A / 2 > 1, A / 2.0 > 1),
        (pc.starts_with(A, b"\xff"), pc.starts_with(A, b"\xfe")),
    ],
    ids=["long isin", "type", "bytes", "whole float", "no text"],
)
def test_filters_that_pyarrow_prints_alike_have_other_texts(one: Any, other: Any) -> None:
    assert filter_text(one) != filter_text(other)
    assert filter_text(pickle.loads(pickle.dumps(one))) == filter_text(one)


@pytest.mark.parametrize("row_filter", [pc.field("a") > 5, (pc.field("a") == "x") | pc.field("b").is_null()])
def test_the_text_of_most_filters_is_the_one_that_pyarrow_prints(row_filter: Any) -> None:
    assert filter_text(row_filter) == str(row_filter)
    assert filter_text(None) == ""
