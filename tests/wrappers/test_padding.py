"""`pad_stack_1d` against a list oracle."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.wrappers import pad_stack_1d


@settings(max_examples=effort(80), deadline=None)
@given(
    st.lists(st.lists(st.integers(-5, 5), max_size=6), min_size=1, max_size=5),
    st.sampled_from(["left", "right"]),
    st.none() | st.integers(1, 8),
)
def test_rows_are_the_items_and_padding(rows, side, multiple):
    padded = pad_stack_1d([torch.tensor(row, dtype=torch.int32) for row in rows], -100, side, multiple)
    width = max(map(len, rows))
    width += -width % (multiple or 1)
    pads = [[-100] * (width - len(row)) for row in rows]
    assert padded.tolist() == [pad + row if side == "left" else row + pad for row, pad in zip(rows, pads, strict=True)]
    assert padded.dtype == torch.int32


def test_derivatives_go_through_padding():
    items = [torch.tensor([1.0, 2]), torch.tensor([3.0])]
    slopes = torch.func.grad(lambda x: (pad_stack_1d([x, items[1]], 0) * torch.tensor([[5, 6], [7, 8]])).sum())(
        items[0]
    )
    assert slopes.tolist() == [5, 6]


@pytest.mark.parametrize(
    ("items", "options", "message"),
    [
        ([], {}, "no items"),
        ([torch.zeros(2)], {"pad_to_multiple_of": 0}, "pad_to_multiple_of=0"),
        ([torch.zeros(2)], {"pad_to_multiple_of": -4}, "pad_to_multiple_of=-4"),
        ([torch.zeros(2)], {"padding_side": "top"}, '"left" or "right"'),
        ([torch.zeros(2), torch.zeros(1, 2)], {}, r"Item 1 has shape \(1, 2\)"),
    ],
)
def test_what_cannot_be_padded_is_refused(items, options, message):
    with pytest.raises(ConfigError, match=message):
        pad_stack_1d(items, 0, **options)


def test_a_mixture_of_dtypes_is_refused():
    with pytest.raises(ConfigTypeError, match=r"Item 1 is torch\.int64, item 0 is torch\.float32"):
        pad_stack_1d([torch.zeros(2), torch.zeros(2, dtype=torch.int64)], 0)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.uint8, -1),
        (torch.uint8, 256),
        (torch.int64, 0.5),
        (torch.int64, float("nan")),
        (torch.int64, float("inf")),
        (torch.bool, 2),
        (torch.float32, 1e300),
        (torch.float16, 70_000),
        (torch.bfloat16, 1e39),
    ],
)
def test_a_pad_value_that_the_dtype_would_change_is_refused(dtype, value):
    with pytest.raises(ConfigError, match=rf"{dtype}.*{re.escape(str(value))}|{value}.*{dtype}"):
        pad_stack_1d([torch.ones(1, dtype=dtype), torch.ones(2, dtype=dtype)], value)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.uint8, 255.0),
        (torch.int64, True),
        (torch.bool, 1),
        (torch.float32, 0.1),
        (torch.bfloat16, -100),
        (torch.float16, float("-inf")),
        (torch.float64, 1e300),
        (torch.complex64, 0.1),
    ],
)
def test_a_pad_value_may_be_rounded_by_a_float_type_only(dtype, value):
    padded = pad_stack_1d([torch.ones(1, dtype=dtype), torch.ones(2, dtype=dtype)], value)
    assert padded[0, 1] == torch.tensor(value, dtype=dtype)
    assert padded.dtype == dtype
