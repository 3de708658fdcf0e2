"""Ragged rows against plain Python lists."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad

from tests.effort import effort
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.shape.padding import PadRagged
from torch_dataloader_utils.shape.ragged import Ragged
from torch_dataloader_utils.shape.tensor_batch import TensorBatch

ROWS = st.lists(st.lists(st.integers(-9, 9), max_size=4), max_size=6)


def ragged(rows: list[list[int]], dtype: torch.dtype = torch.int64) -> Ragged:
    offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    return Ragged(torch.tensor([value for row in rows for value in row], dtype=dtype), offsets)


@settings(max_examples=effort(60), deadline=None)
@given(rows=ROWS, data=st.data())
def test_rows_slices_and_index_tensors_select_as_lists_do(rows: list[list[int]], data: Any) -> None:
    column = ragged(rows)
    assert len(column) == len(rows)
    assert column.to_list() == rows
    assert column.lengths.tolist() == [len(row) for row in rows]
    assert [column[i].tolist() for i in range(-len(rows), len(rows))] == rows + rows
    part = data.draw(st.slices(len(rows)))
    assert column[part].to_list() == rows[part]
    assert column[part].offsets[0] == 0
    if rows:
        order = data.draw(st.lists(st.integers(-len(rows), len(rows) - 1), max_size=8))
        assert column[torch.tensor(order, dtype=torch.int64)].to_list() == [rows[i] for i in order]
        keep = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
        assert column[torch.tensor(keep)].to_list() == [row for row, kept in zip(rows, keep, strict=True) if kept]


def test_a_slice_with_a_step_that_takes_nothing_is_empty() -> None:
    column = ragged([[1], [2, 3], []])
    assert column[1:0:2].to_list() == []
    assert column[0:2:-1].to_list() == []
    assert column[2::-5].to_list() == [[]]


@settings(max_examples=effort(60), deadline=None)
@given(rows=ROWS, padding=st.integers(-3, 3), max_length=st.one_of(st.none(), st.integers(0, 6)), data=st.data())
def test_padding_fills_every_row_to_one_length(rows: Any, padding: int, max_length: int | None, data: Any) -> None:
    side = data.draw(st.sampled_from(["right", "left"]))
    width = max_length if max_length is not None else max(map(len, rows), default=0)
    cut = [row[:width] for row in rows]
    fill = [[padding] * (width - len(row)) for row in cut]
    wanted = [row + pad if side == "right" else pad + row for row, pad in zip(cut, fill, strict=True)]
    padded = ragged(rows).to_padded(padding, max_length=max_length, side=side)
    assert padded.shape == (len(rows), width)
    assert padded.tolist() == wanted
    followed = ragged(rows, torch.float32)
    followed.values.requires_grad_()
    assert followed.to_padded(padding, max_length=max_length, side=side).tolist() == wanted


def test_nested_tensor_has_the_same_rows_and_memory() -> None:
    column = ragged([[1, 2], [], [3]], torch.float32)
    nested = column.to_nested()
    assert [row.tolist() for row in nested.unbind()] == [[1, 2], [], [3]]
    assert nested.values().data_ptr() == column.values.data_ptr()


def test_uint16_values_index_and_pad() -> None:
    column = Ragged(torch.tensor([1, 2, 65535], dtype=torch.uint16), torch.tensor([0, 1, 3]))
    assert column[torch.tensor([1, 0])].to_list() == [[2, 65535], [1]]
    assert column.to_padded().tolist() == [[1, 0], [2, 65535]]


@pytest.mark.parametrize("row", [3, -4])
def test_a_row_that_does_not_exist_is_an_index_error(row: int) -> None:
    with pytest.raises(IndexError):
        ragged([[1], [2], [3]])[row]


def test_values_whose_sign_is_to_be_changed_pad() -> None:
    imaginary = torch.complex(torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])).conj().imag
    assert Ragged(imaginary, torch.tensor([0, 1, 3])).to_padded().tolist() == [[-1, 0], [-2, -3]]


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)  # torch's own, for dual levels
def test_derivatives_go_through_padding() -> None:
    values, tangents, offsets = torch.tensor([1.0, 2, 3]), torch.tensor([4.0, 5, 6]), torch.tensor([0, 1, 3])
    wanted = [[4, 0], [5, 6]]
    with forward_ad.dual_level():
        padded = Ragged(forward_ad.make_dual(values, tangents), offsets).to_padded()
        assert forward_ad.unpack_dual(padded).tangent.tolist() == wanted
    values.requires_grad_()
    Ragged(values, offsets).to_padded().backward(torch.tensor([[4.0, 7], [5, 6]]))
    assert values.grad is not None
    assert values.grad.tolist() == tangents.tolist()


def pads(values: torch.Tensor) -> torch.Tensor:
    return Ragged(values, torch.tensor([0, 2, 2, 3])).to_padded(7, side="left")


def pads_with_mask(values: torch.Tensor) -> torch.Tensor:
    batch = PadRagged()(TensorBatch({"x": Ragged(values, torch.tensor([0, 2, 2, 3]))}))
    return torch.where(batch["x_mask"], batch["x"], 7)


def takes_rows(values: torch.Tensor) -> torch.Tensor:
    return Ragged(values, torch.tensor([0, 2, 2, 3]))[torch.tensor([2, 0, 0])].values


@pytest.mark.parametrize("change", [pads, pads_with_mask, takes_rows])
def test_functions_of_torch_go_through_ragged_rows(change: Any) -> None:
    values = torch.tensor([1.0, 2, 3])
    wanted = change(values)
    weights = torch.arange(float(wanted.numel())).view(wanted.shape)
    slopes = [change(one).sub(change(torch.zeros(3))).mul(weights).sum().item() for one in torch.eye(3)]
    assert torch.func.grad(lambda x: (change(x) * weights).sum())(values).tolist() == slopes
    assert torch.func.vmap(change)(torch.stack([values, values])).tolist() == [wanted.tolist()] * 2
    assert torch.func.functionalize(change)(values).tolist() == wanted.tolist()
    factor = torch.func.grad(lambda x: (change(values) * x).sum())(torch.ones(()))
    assert factor == wanted.sum()
    values.requires_grad_()
    (change(values) * weights).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == slopes


def test_rows_of_all_lengths_pad_in_one_call_of_vmap() -> None:
    values, offsets = torch.arange(6).view(2, 3), torch.tensor([[0, 1, 3], [0, 3, 3]])
    padded = torch.func.vmap(lambda x, at: Ragged(x, at).to_padded(9, max_length=2))(values, offsets)
    assert padded.tolist() == [[[0, 9], [1, 2]], [[3, 4], [9, 9]]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_padding_to_a_length_is_compiled_as_one_graph(dtype: torch.dtype) -> None:
    column = ragged([[1, 0], [], [1]], dtype)
    compiled = torch.compile(
        lambda values, offsets: Ragged(values, offsets).to_padded(1, max_length=2), backend="eager", fullgraph=True
    )
    assert compiled(column.values, column.offsets).tolist() == [[1, 0], [1, 1], [1, 1]]


@pytest.mark.parametrize("longest", [np.uint8(2), torch.tensor(2)])
def test_the_length_may_be_any_whole_number(longest: Any) -> None:
    assert ragged([[1], [2, 3, 4]]).to_padded(max_length=longest, side="left").tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize("options", [{"side": "up"}, {"max_length": -1}, {"max_length": 2.5}, {"max_length": 2**70}])
def test_padding_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, ConfigTypeError), match=next(iter(options))):
        ragged([[1]]).to_padded(**options)


@pytest.mark.parametrize(
    ("dtype", "padding"),
    [(torch.uint8, -1), (torch.uint16, -100), (torch.int8, 300), (torch.int32, 0.5), (torch.uint8, float("nan"))],
)
def test_padding_that_the_values_do_not_hold_is_refused(dtype: torch.dtype, padding: float) -> None:
    column = Ragged(torch.tensor([1, 2, 3], dtype=dtype), torch.tensor([0, 1, 3]))
    with pytest.raises(ConfigError, match=rf"padding_value={padding}"):
        column.to_padded(padding)
    with pytest.raises(ConfigError, match=rf"padding_value={padding}"):
        PadRagged(padding_value=padding)(TensorBatch({"x": column}))


def test_to_the_device_it_is_on_moves_nothing() -> None:
    column = ragged([[1], [2, 3]])
    assert column.to("cpu").values.data_ptr() == column.values.data_ptr()
    assert column.to(torch.device("meta")).values.is_meta
    assert repr(column) == "Ragged(2 rows, values (3,) torch.int64, cpu)"


@pytest.mark.parametrize(("start", "stop"), [(0, 2), (1, 3), (0, 3)])
def test_rows_that_were_cut_share_no_offset(start, stop):
    """The last offset of some rows is the first of the next, which may be in another process."""
    whole = Ragged(torch.arange(6), torch.tensor([0, 0, 4, 6]))
    part = whole.narrow(start, stop)
    part.offsets.add_(100)
    assert whole.offsets.tolist() == [0, 0, 4, 6]
