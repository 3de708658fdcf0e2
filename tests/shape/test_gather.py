"""Columns gathered in another order, by compiled code and by numpy, are the same rows."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.engine import needs_engine
from torch_dataloader_utils import _engine
from torch_dataloader_utils.errors import InternalError
from torch_dataloader_utils.shape.gather import Gatherer

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.int64,
    torch.float64,
)


@pytest.mark.parametrize("is_built", [pytest.param(True, marks=needs_engine), False])
@given(
    part_rows=st.lists(st.integers(0, 50), min_size=1, max_size=4),
    dtype=st.sampled_from(DTYPES),
    num_columns=st.integers(1, 5),
    share=st.sampled_from([0, 0.1, 0.6, 1, 2]),
    step=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_rows_are_those_of_the_joined_parts(
    is_built: bool, part_rows: list[int], dtype: torch.dtype, num_columns: int, share: float, step: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    columns = [
        [torch.from_numpy(rng.integers(0, 100, step * rows)).to(dtype)[::step] for rows in part_rows]
        for _ in range(num_columns)
    ]
    total = sum(part_rows)
    order = torch.from_numpy(rng.integers(0, max(total, 1), int(share * total)))
    outs = [torch.empty(len(order), dtype=dtype) for _ in columns]
    numpy_lacks_it = dtype == torch.bfloat16
    if numpy_lacks_it and not is_built:
        return
    with patch.object(_engine, "IS_BUILT", is_built):
        Gatherer(order).columns(columns, outs)
    for parts, out in zip(columns, outs, strict=True):
        assert torch.equal(out, torch.cat(parts)[order])


@needs_engine
@pytest.mark.parametrize(
    "changes",
    [
        {"parts": 3},
        {"part_rows": [5, -1]},
        {"part_rows": [1 << 40, 4]},
        {"part_rows": []},
        {"widths": [3]},
        {"widths": [0]},
        {"widths": [4, 4]},
        {"scratch": 43},
        {"scratch": 7},
        {"scratch": 0},
        {"joins": False},
        {"order": [9]},
        {"order": [0, -1]},
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any]) -> None:
    source, out = np.arange(9, dtype=np.int32), np.empty(2, np.int32)
    good: dict[str, Any] = {
        "parts": 2,
        "part_rows": [5, 4],
        "widths": [4],
        "order": [8, 0],
        "scratch": 44,
        "joins": True,
    }

    def call(options: dict[str, Any]) -> None:
        addresses = [source.ctypes.data, source.ctypes.data + 20, 0][: options["parts"]]
        _engine.gather(
            np.array(addresses, np.uint64),
            np.array(options["part_rows"], np.int64),
            np.array([out.ctypes.data], np.uint64),
            np.array(options["widths"], np.int64),
            np.array(options["order"], np.int64),
            np.empty(options["scratch"], np.uint8),
            options["joins"],
        )

    call(good)
    assert out.tolist() == [8, 0]
    with pytest.raises((ValueError, IndexError), match=r"do not (fit|exist)"):
        call(good | changes)


@needs_engine
@pytest.mark.parametrize(
    "other", [[torch.zeros(3)], [torch.zeros(2, dtype=torch.int32)], [torch.zeros(2), torch.zeros(1)]]
)
def test_columns_that_differ_are_refused(other: list[torch.Tensor]) -> None:
    outs = [torch.empty(2), torch.empty(2)]
    with pytest.raises(InternalError, match="differ"):
        Gatherer(torch.tensor([1, 0])).columns([[torch.zeros(2)], other], outs)
