"""`dtypes=`: numbers of another type are the values that Python gets, or an error that names the value."""

import math
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, SchemaError
from torch_dataloader_utils.shape.casting import converted
from torch_dataloader_utils.shape.dtypes import NumberTarget, check_dtypes
from torch_dataloader_utils.shape.prepare import prepared_shaper

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")
_LOSSES = ("round", "exact", "clip")


@st.composite
def numbers(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    """Draw a type of numbers, and values of the type, some null."""
    kind = draw(st.sampled_from(["integer", "float", "decimal", "bool"]))
    if kind == "integer":
        name = draw(st.sampled_from(_INTEGERS))
        bounds = np.iinfo(name)
        values = st.integers(int(bounds.min), int(bounds.max)) | st.integers(-130 if bounds.min else 0, 127).filter(
            lambda value: value >= bounds.min
        )
        data_type = pa.type_for_alias(name)
    elif kind == "float":
        width = draw(st.sampled_from([32, 64]))
        values = st.floats(width=width) | st.integers(-300, 300).map(float)
        data_type = pa.float32() if width == 32 else pa.float64()
    elif kind == "bool":
        values, data_type = st.booleans(), pa.bool_()
    else:
        digits = draw(st.integers(1, 38))
        scale = draw(st.integers(0, digits))
        data_type = draw(st.sampled_from([pa.decimal128, pa.decimal256]))(digits, scale)
        all_digits = Context(prec=digits)
        values = st.integers(-(10**digits) + 1, 10**digits - 1).map(
            lambda value: Decimal(value).scaleb(-scale, all_digits)
        )
    return data_type, draw(st.lists(st.none() | values, max_size=6))


def _expected(value: Any, data_type: pa.DataType, target: NumberTarget) -> Any:
    """Return the value in the target's type; raises ValueError if the type does not hold it."""
    if target.name in _FLOATS:
        if target.loss == "exact" and pa.types.is_integer(data_type):
            digits = np.finfo(target.name).nmant + 1
            if data_type.bit_width > digits and abs(value) > 2**digits:
                raise ValueError
        with np.errstate(over="ignore"):
            number = np.float64(value).astype(target.name) if not isinstance(value, int) else _float(value, target.name)
        if math.isfinite(value) and not np.isfinite(number) and target.loss != "clip":
            raise ValueError
        return number
    lowest, highest = (0, 1) if target.name == "bool" else (np.iinfo(target.name).min, np.iinfo(target.name).max)
    if isinstance(value, Decimal):
        value = int(value.scaleb(data_type.scale))
        if target.loss == "clip":  # integers of decimals are int64 first
            value = min(max(value, -(2**63)), 2**63 - 1)
    if isinstance(value, float):
        if target.loss == "clip":
            value = 0 if math.isnan(value) else min(max(value, float(lowest)), float(highest))
        if not math.isfinite(value) or (value != int(value) and target.loss != "clip"):
            raise ValueError
        value = min(int(value), int(highest)) if target.loss == "clip" else int(value)
    if not lowest <= value <= highest and target.loss != "clip":
        raise ValueError
    return min(max(int(value), int(lowest)), int(highest))


def _float(value: int, name: str) -> Any:
    return np.array([value], np.uint64 if value >= 2**63 else np.int64).astype(name)[0]


@settings(max_examples=effort(400))
@given(numbers(), st.sampled_from([*_INTEGERS, *_FLOATS, "bool"]), st.sampled_from(_LOSSES), st.integers(0, 2))
def test_every_number_is_as_python_has_it_or_an_error_names_it(
    drawn: tuple[pa.DataType, list[Any]], name: str, loss: Any, skipped: int
) -> None:
    data_type, values = drawn
    target = NumberTarget(name=name, loss=loss)
    array = pa.array(values, data_type).slice(skipped)
    values = array.to_pylist()
    expected = []
    for value in values:
        try:
            expected.append(None if value is None else _expected(value, data_type, target))
        except ValueError:
            with pytest.raises(SchemaError, match=r"column 'x' \(.*\) has .*, which .* does not hold"):
                converted("x", array, target)
            return
    result = converted("x", array, target)
    assert result.type == target.data_type
    assert len(result) == len(values)
    for got, want in zip(result.to_pylist(), expected, strict=True):
        if isinstance(want, np.floating) and pa.types.is_decimal(data_type) and data_type.precision > 15:
            assert got == pytest.approx(float(want), rel=2.0**-9 if name == "float16" else 2.0**-22, nan_ok=True)
        else:
            assert got == want or (got is not None and got != got and want != want), (got, want)


@settings(max_examples=effort(100))
@example(unscaled=[1234567890, -(10**17), 2**53, -(2**63)], data_type=pa.decimal128(38, 10))
@given(
    unscaled=st.lists(st.builds(lambda whole, zeros: whole << zeros, st.integers(-511, 511), st.integers(0, 49)))
    | st.lists(st.integers(-(2**53), 2**53)),
    data_type=st.builds(pa.decimal128, st.just(18), st.integers(0, 18))
    | st.builds(pa.decimal128, st.just(38), st.integers(0, 22))
    | st.builds(pa.decimal256, st.just(60), st.integers(0, 22)),
)
def test_decimals_whose_unscaled_integers_a_float_holds_are_the_nearest_floats(
    unscaled: list[int], data_type: pa.DataType
) -> None:
    values = [Decimal(value).scaleb(-data_type.scale) for value in unscaled]
    array = pa.array(values, data_type)
    assert converted("x", array, NumberTarget(name="float64")).to_pylist() == [float(value) for value in values]


def test_the_error_names_a_time_that_python_does_not_hold() -> None:
    array = pa.array([-(2**62)], pa.int64()).cast(pa.timestamp("us"))
    with pytest.raises(
        SchemaError, match=r"column 'x' \(timestamp\[us\]\) has -4611686018427387904, which int8 does not"
    ):
        converted("x", array, NumberTarget(name="int8"))


@pytest.mark.parametrize("kind", [lambda item: pa.list_(item), lambda item: pa.list_(item, 2), pa.large_list])
def test_numbers_in_lists_are_converted_and_nulls_stay(kind: Any) -> None:
    rows = [[1.5, 2.0], None, [None, 4.0], [5.0, 6.0]]
    array = pa.array(rows, kind(pa.float64())).slice(1)
    result = converted("x", array, NumberTarget(name="float32"))
    assert result.type == kind(pa.float32())
    assert result.to_pylist() == rows[1:]


def test_tensor_columns_and_bool8_are_converted() -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12, dtype=np.float64).reshape(2, 2, 3))
    result = converted("x", tensors, NumberTarget(name="float16"))
    assert result.to_numpy_ndarray().tolist() == tensors.to_numpy_ndarray().tolist()
    bools = pa.bool8().wrap_array(pa.array([1, 0, None], pa.int8()))
    assert converted("x", bools, NumberTarget(name="float32")).to_pylist() == [1.0, 0.0, None]


@pytest.mark.parametrize(
    ("given_type", "name"),
    [
        ("float32", "float32"),
        (torch.float32, "float32"),
        (np.float32, "float32"),
        (np.dtype("i2"), "int16"),
        (pa.float16(), "float16"),
        (float, "float64"),
        (bool, "bool"),
    ],
)
def test_types_of_all_libraries_are_taken(given_type: Any, name: str) -> None:
    assert check_dtypes("dtypes", given_type) == {"*": NumberTarget(name=name, loss="exact")}
    assert check_dtypes("dtypes", {"x": given_type}) == {"x": NumberTarget(name=name)}
    assert check_dtypes("dtypes", {"x": ("clip", given_type)}) == {"x": NumberTarget(name=name, loss="clip")}


SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("x", pa.float64()),
        ("y", pa.float32()),
        ("k", pa.int8()),
        ("flag", pa.bool_()),
        ("price", pa.decimal128(10, 2)),
        ("when", pa.timestamp("us")),
        ("name", pa.string()),
        ("words", pa.list_(pa.string())),
    ]
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtypes": {"prise": "float32"}}, "names 'prise', which is neither a column of batches nor a stack; did you"),
        ({"dtypes": {"zz": "float32"}}, "'zz', which is neither a column of batches nor a stack; the columns are 'id'"),
        ({"dtypes": {"name": "int32"}}, "column 'name' is string, which holds no numbers; encode= makes numbers"),
        ({"stack": {"m": ["x", "id"]}}, r"\('x' double, 'id' int64\), and no type holds all.*dtypes={'m': \"float32\""),
        ({"stack": {"m": ["x", "when"]}}, r"no type holds all their values. Pass dtypes={'m': \"float32\"}"),
        ({"stack": {"m": ["x", "name"]}}, "column 'name' is string; only columns of one number a row stack. Leave it"),
        ({"stack": {"m": ["x", "name"]}, "dtypes": {"m": "float32"}}, "'name' is string, .*take it out of the stack"),
    ],
)
def test_options_that_do_not_fit_say_what_to_pass(options: dict[str, Any], message: str) -> None:
    if "dtypes" in options:
        options["dtypes"] = check_dtypes("dtypes", options["dtypes"])
    with pytest.raises(ConfigError, match=message):
        prepared_shaper("torch", SCHEMA, **options)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (
            "bfloat16",
            ConfigError,
            'Arrow and numpy have no bfloat16. Pass "float32", and convert batches on the device',
        ),
        (torch.bfloat16, ConfigError, "no bfloat16"),
        ("float", ConfigError, r"dtypes={'\*': 'float'} is no number type; types are bool, uint8"),
        ({"x": "string"}, ConfigError, "dtypes={'x': 'string'} is no number type"),
        ({"x": None}, ConfigError, "dtypes={'x': None} is no number type"),
        ({"x": ("unsafe", "int8")}, ConfigError, r"is no number type.*\(\"clip\", type\) for values"),
        (["float32"], ConfigError, "is no number type"),
        ({1: "float32"}, ConfigTypeError, "keys are names of columns and stacks"),
        (str, ConfigError, "is no number type"),
        (pa.string(), ConfigError, "is no number type"),
    ],
)
def test_values_that_are_no_types_are_refused(value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_dtypes("dtypes", value)


@pytest.mark.parametrize(
    ("columns", "dtype"),
    [
        (["x", "y"], torch.float64),
        (["y", "k"], torch.float32),
        (["k", "flag"], torch.int8),
        (["x", "price"], torch.float64),
    ],
)
def test_a_stack_has_the_smallest_type_that_holds_all_values(columns: list[str], dtype: torch.dtype) -> None:
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    _, shaper = prepared_shaper("torch", schema, stack={"m": columns})
    rows = pa.RecordBatch.from_pylist([{name: _one(SCHEMA.field(name).type) for name in columns}], schema=schema)
    assert shaper.block([rows]).to_batch()["m"].dtype == dtype
    assert shaper.block([rows]).to_batch()["m"].tolist() == [[1, 1]]


def _one(data_type: pa.DataType) -> Any:
    return Decimal(1) if pa.types.is_decimal(data_type) else pa.scalar(1).cast(data_type).as_py()


def test_a_type_for_all_columns_leaves_what_is_no_number() -> None:
    rows = pa.RecordBatch.from_pylist(
        [{field.name: None for field in SCHEMA} | {"id": 7, "x": 0.1, "k": 3, "flag": True, "price": Decimal("1.5")}],
        schema=SCHEMA,
    )
    _, shaper = prepared_shaper(
        "torch", SCHEMA, dtypes=check_dtypes("dtypes", {"*": "float32", "k": torch.int64}), nulls={"when": ("fill", 0)}
    )
    batch = shaper.block([rows]).to_batch()
    found = {name: column.dtype for name, column in batch.items() if isinstance(column, torch.Tensor)}
    assert found == {
        **dict.fromkeys(["id", "x", "y", "price"], torch.float32),
        "k": torch.int64,
        "flag": torch.bool,
        "when": torch.int64,
    }
    assert math.isnan(batch["y"][0])
    large = rows.set_column(0, "id", pa.array([2**24 + 1]))
    with pytest.raises(
        SchemaError,
        match=r"has 16777217, which float32 does not hold without rounding\. "
        r"Pass dtypes={\"\*\": \"float32\", 'id': \"int64\"}",
    ):
        shaper.block([large])


@pytest.mark.parametrize(
    ("value", "data_type", "wanted", "advice"),
    [
        (2**63, pa.uint64(), "int64", "uint64"),
        (2**40, pa.int64(), "int8", "int64"),
        (2**53 + 1, pa.int64(), "int32", "int64"),
        (0.5, pa.float32(), "uint8", "float64"),
    ],
)
def test_the_advice_names_a_type_that_holds_the_value(
    value: float, data_type: pa.DataType, wanted: str, advice: str
) -> None:
    rows = pa.record_batch([pa.array([value], data_type), pa.array([[value]], pa.list_(data_type))], names=["x", "y"])
    for name in ("x", "y"):
        refused, taken = (check_dtypes("dtypes", {name: each}) for each in (wanted, advice))
        with pytest.raises(SchemaError, match=rf"Pass dtypes={{'{name}': \"{advice}\"}}, or"):
            prepared_shaper("torch", rows.schema, dtypes=refused)[1].block([rows])
        prepared_shaper("torch", rows.schema, dtypes=taken)[1].block([rows])


@settings(max_examples=effort(60))
@given(st.data(), st.integers(0, 5))
def test_stacks_are_the_converted_columns_in_any_order_of_arrival(data: st.DataObject, rows: int) -> None:
    kinds = {"a": pa.float64(), "b": pa.float32(), "c": pa.int64(), "d": pa.float16()}
    values = st.none() | st.integers(-9, 9).map(float)
    columns = {name: data.draw(st.lists(values, min_size=rows, max_size=rows)) for name in kinds}
    schema = pa.schema(list(kinds.items()))
    arrays = [pa.array(column, pa.float64()).cast(kinds[name]) for name, column in columns.items()]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    order = data.draw(st.permutations(list(kinds)))
    _, shaper = prepared_shaper(
        "torch", schema, stack={"m": list(kinds)}, dtypes=check_dtypes("dtypes", {"m": "float32"}), nulls={"c": "mask"}
    )
    blocks = [shaper.block([batch.select([name]) for name in order]) for _ in range(2)]
    wanted = [[-0.5 if each is None else each for each in row] for row in zip(*columns.values(), strict=True)]
    mask = [[each is not None for each in row] for row in zip(*columns.values(), strict=True)]
    found = shaper.concat(blocks).to_batch()
    matrix = found["m"].clone()
    matrix[:, 2][~found["m_mask"][:, 2]] = -0.5
    assert matrix.nan_to_num(-0.5).tolist() == wanted * 2
    assert found["m_mask"].tolist() == mask * 2
