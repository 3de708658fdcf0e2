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
from torch_dataloader_utils.shape.gather import place_columns, split_columns

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
    dtypes=st.lists(st.sampled_from(DTYPES), min_size=1, max_size=4),
    run_columns=st.integers(0, 4),
    share=st.sampled_from([None, 0, 0.1, 0.6, 1, 2]),
    step=st.integers(1, 2),
    num_spans=st.none() | st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_rows_are_those_of_the_joined_parts(
    is_built: bool,
    part_rows: list[int],
    dtypes: list[torch.dtype],
    run_columns: int,
    share: float | None,
    step: int,
    num_spans: int | None,
    seed: int,
) -> None:
    """run_columns: columns of a run that lie at even distances; 0 for a column alone. share: None joins all rows."""
    rng = np.random.default_rng(seed)
    head = (run_columns,) if run_columns else ()
    runs = [
        [torch.from_numpy(rng.integers(0, 100, (*head, step * rows + 3))).to(dtype)[..., 3::step] for rows in part_rows]
        for dtype in dtypes
    ]
    spans = [(part, 0, rows) for part, rows in enumerate(part_rows)]
    if num_spans is not None:  # any rows of any parts
        chosen = rng.integers(0, len(part_rows), num_spans)
        limits = np.sort(rng.integers(0, np.take(part_rows, chosen)[:, None] + 1, (num_spans, 2)), axis=1)
        spans = [(part, first, last - first) for part, (first, last) in zip(chosen, limits, strict=True)]
    total = sum(rows for _, _, rows in spans)
    order = None if share is None else torch.from_numpy(rng.integers(0, max(total, 1), int(share * total)))
    num_rows = total if order is None else len(order)
    outs = [torch.zeros((*head, num_rows + 2), dtype=dtype)[..., :num_rows] for dtype in dtypes]
    with patch.object(_engine, "IS_BUILT", is_built):
        place_columns(runs, outs, order, None if num_spans is None else np.array(spans, np.int64))
    for parts, out in zip(runs, outs, strict=True):
        whole = torch.cat([parts[part][..., first : first + rows] for part, first, rows in spans], dim=-1)
        assert torch.equal(out, whole if order is None else whole[..., order])


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
        {"order": None, "part_rows": [5, -1]},
        {"order": None, "widths": [3]},
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any]) -> None:
    source, out = np.arange(9, dtype=np.int32), np.empty(9, np.int32)
    good: dict[str, Any] = {
        "parts": 2,
        "part_rows": [5, 4],
        "widths": [4],
        "order": [8, 0],
        "scratch": 44,
        "joins": True,
    }

    def call(options: dict[str, Any]) -> None:
        sides = [[source.ctypes.data, 0], [source.ctypes.data + 20, 0], [0, 0]][: options["parts"]]
        order = options["order"]
        _engine.gather(
            np.array(sides, np.int64),
            np.array(options["part_rows"], np.int64),
            np.array([[out.ctypes.data, 0, 1, width] for width in options["widths"]], np.int64),
            None if order is None else np.array(order, np.int64),
            np.empty(options["scratch"], np.uint8),
            options["joins"],
        )

    call(good)
    assert out[:2].tolist() == [8, 0]
    call(good | {"order": None, "scratch": 0})
    assert out.tolist() == source.tolist()
    with pytest.raises((ValueError, IndexError), match=r"do not (fit|exist)"):
        call(good | changes)


@needs_engine
def test_an_order_that_is_no_buffer_is_refused() -> None:
    nothing = np.empty(0, np.int64)
    with pytest.raises(TypeError):
        _engine.gather(nothing, np.zeros(1, np.int64), nothing, 3, np.empty(0, np.uint8), True)


@pytest.mark.parametrize(
    "other", [[torch.zeros(3)], [torch.zeros(2, dtype=torch.int32)], [torch.zeros(2), torch.zeros(1)]]
)
def test_columns_that_differ_are_refused(other: list[torch.Tensor]) -> None:
    outs = [torch.empty(2), torch.empty(2)]
    with pytest.raises(InternalError, match="differ"):
        place_columns([[torch.zeros(2)], other], outs, torch.tensor([1, 0]))


@pytest.mark.parametrize("span", [(0, -1, 2), (0, 1, 2), (0, 0, -2)])
def test_rows_past_a_part_are_refused(span: tuple[int, int, int]) -> None:
    with pytest.raises(InternalError, match="differ"):
        place_columns([[torch.zeros(2)]], [torch.empty(2)], None, np.array([span, (0, 0, 0)], np.int64))


@given(
    columns=st.integers(1, 5),
    rows=st.integers(0, 60),
    skipped=st.integers(0, 3),
    pitch=st.integers(0, 9),
    batch_rows=st.integers(1, 70),
)
def test_columns_are_cut_into_the_rows_of_batches(
    columns: int, rows: int, skipped: int, pitch: int, batch_rows: int
) -> None:
    numbers = torch.arange(columns * (rows + skipped + pitch)).view(columns, -1)[:, skipped : skipped + rows]
    batches = list(split_columns(numbers, batch_rows))
    wanted = numbers.split(batch_rows, dim=1) if rows else ()
    assert [len(batch) for batch in batches] == [columns] * len(wanted)
    assert all(torch.equal(torch.stack(batch), part) for batch, part in zip(batches, wanted, strict=True))
    assert all(batch[0].data_ptr() == part.data_ptr() for batch, part in zip(batches, wanted, strict=True))


@needs_engine
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32, torch.int64])
@pytest.mark.parametrize("first", [0, 1, 9])
def test_columns_that_are_written_past_the_caches_have_the_same_rows(dtype: torch.dtype, first: int) -> None:
    """first: place of the first row in `out`: whole lines of a core's cache begin after it."""
    rng = np.random.default_rng(first)
    parts = [torch.from_numpy(rng.integers(0, 100, (2, rows))).to(dtype) for rows in (90_001, 70_003)]
    order = torch.from_numpy(rng.permutation(160_004)[:150_001])
    out = torch.full((2, first + len(order) + 1), 7, dtype=dtype)
    place_columns([parts], [out[:, first:-1]], order)
    torch.testing.assert_close(out[:, first:-1], torch.cat(parts, dim=1)[:, order], rtol=0, atol=0)
    assert (out[:, :first] == 7).all()
    assert (out[:, -1] == 7).all()
