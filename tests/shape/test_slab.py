"""A batch written to a slab and viewed again is the same batch."""

import pickle
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils._core.slab_codec import SlabPlace
from torch_dataloader_utils.errors import InternalError
from torch_dataloader_utils.shape.one_buffer import ALIGNMENT_BYTES
from torch_dataloader_utils.shape.ragged import Ragged
from torch_dataloader_utils.shape.slab import SlabLayout, TensorBatchCodec
from torch_dataloader_utils.shape.tensor_batch import TensorBatch

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.uint16,
    torch.uint64,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
)


@st.composite
def tensors(draw: Any, num_rows: int) -> torch.Tensor:
    """A tensor of any layout in memory: contiguous, a slice of a larger one, or column-major."""
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    dtype = draw(st.sampled_from(DTYPES))
    source = torch.arange((num_rows + 4) * max(1, torch.Size(shape).numel())).to(dtype)
    match draw(st.sampled_from(["plain", "slice", "column-major"])):
        case "plain":
            return source.view(num_rows + 4, *shape)[:num_rows].clone()
        case "slice":
            return source.view(num_rows + 4, *shape)[2 : num_rows + 2]
        case _ if len(shape) == 1:
            return source.view(*shape, num_rows + 4).t()[1 : num_rows + 1]
    return source.view(num_rows + 4, *shape)[:num_rows]


@st.composite
def batches(draw: Any) -> TensorBatch:
    num_rows = draw(st.integers(0, 40))
    columns: dict[str, Any] = {}
    for index in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["tensor", "tensor", "ragged", "list"]))
        if kind == "tensor":
            columns[f"c{index}"] = draw(tensors(num_rows))
        elif kind == "ragged":
            lengths = torch.tensor(
                draw(st.lists(st.integers(0, 3), min_size=num_rows, max_size=num_rows)), dtype=torch.int64
            )
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
            columns[f"c{index}"] = Ragged(torch.arange(int(offsets[-1])).float(), offsets)
        else:
            columns[f"c{index}"] = [str(row) for row in range(num_rows)]
    return TensorBatch(columns, num_rows=num_rows)


def is_same(left: Any, right: Any) -> bool:
    if isinstance(left, Ragged):
        return is_same(left.values, right.values) and is_same(left.offsets, right.offsets)
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and left.tolist() == right.tolist()
    return bool(left == right)


def round_trip(batch: Any, layout: SlabLayout | None = None) -> Any:
    """The batch after a slab full of other bytes, with layout and descriptor pickled."""
    buffers: list[torch.Tensor] = []

    def allocate(num_bytes: int) -> torch.Tensor:
        buffers.append(torch.full((num_bytes,), 0xAA, dtype=torch.uint8))
        return buffers[0]

    written = TensorBatchCodec().write(batch, allocate, layout)
    assert written is not None
    return TensorBatchCodec().view(*pickle.loads(pickle.dumps(written)), buffers)


def has_tensors(batch: TensorBatch) -> bool:
    return any(not isinstance(column, list) for column in batch.values())


@settings(max_examples=effort(100), deadline=None)
@given(first=batches(), second=batches(), container=st.sampled_from([TensorBatch, dict, list, tuple]))
def test_view_gives_back_what_was_written(first: TensorBatch, second: TensorBatch, container: Any) -> None:
    layout = SlabLayout.of(first)
    for batch, known in ((first, None), (first, layout), (second, layout)):
        if not has_tensors(batch):
            assert TensorBatchCodec().write(batch, lambda num_bytes: torch.empty(num_bytes), known) is None
            continue
        copy = round_trip(batch, known)
        assert list(copy) == list(batch)
        assert copy.num_rows == batch.num_rows
        assert all(is_same(copy[name], batch[name]) for name in batch)
        other = container(batch if container in (dict, TensorBatch) else batch.values())
        copy = round_trip(other, known)
        assert type(copy) is container
        for left, right in zip(*(b.values() if isinstance(b, dict) else b for b in (copy, other)), strict=True):
            assert is_same(left, right)


class Pair(NamedTuple):
    """A named tuple of the user's."""

    first: Any
    second: Any


def containers_of(members: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(members, max_size=3)
        | st.lists(members, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from(["a", "b", 3]), members, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b"]), members, max_size=2).map(TensorBatch)
        | st.builds(Pair, members, members)
    )


leaves = st.sampled_from(
    [
        torch.arange(3.0),
        torch.arange(3.0) + 1,
        torch.arange(6).view(3, 2),
        torch.zeros(0),
        Ragged(torch.arange(5), torch.tensor([0, 2, 2, 5])),
        "text",
        None,
        ["a"] * 3,
        [str(row) for row in range(100)],
    ]
)


trees = containers_of(st.recursive(leaves, containers_of))


def is_same_tree(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and is_same_tree(list(left.values()), list(right.values()))
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(is_same_tree, left, right))
    return is_same(left, right)


@settings(max_examples=effort(100), deadline=None)
@given(
    first=containers_of(st.recursive(leaves, containers_of)), second=containers_of(st.recursive(leaves, containers_of))
)
def test_containers_of_any_depth_come_back_as_they_were(first: Any, second: Any) -> None:
    layout = SlabLayout.of(first)
    for batch in (first, second):
        if TensorBatchCodec().write(batch, lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8)) is not None:
            assert is_same_tree(round_trip(batch, layout), batch)


def test_tensors_that_are_nested_in_a_batch_lie_in_the_slab() -> None:
    batch = {"inputs": {"ids": torch.arange(4), "more": [torch.ones(4)]}, "pair": Pair(torch.zeros(4), "text")}
    layout = SlabLayout.of(batch)
    assert layout.num_bytes == 3 * ALIGNMENT_BYTES
    assert layout.objects_of(batch) == ("text",)


def test_lists_of_an_object_a_row_are_not_looked_into() -> None:
    rows = [{"x": torch.zeros(1)} for _ in range(1000)]
    assert SlabLayout.of({"x": torch.zeros(1000), "rows": rows}).objects_of({"x": 0, "rows": rows}) == (rows,)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_nested_tensors_travel_beside_the_slab(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.arange(2.0), torch.arange(3.0)], layout=layout)
    batch = TensorBatch({"x": torch.zeros(2), "nested": nested})
    assert SlabLayout.of(batch).objects_of(batch) == (nested,)


def test_conjugates_and_negatives_arrive_with_their_values() -> None:
    numbers = torch.tensor([1 + 2j, 3 - 4j]).conj()
    batch = TensorBatch({"conj": numbers, "neg": numbers.imag, "plain": torch.ones(2)})
    copy = round_trip(batch)
    assert copy["conj"].tolist() == [1 - 2j, 3 + 4j]
    assert copy["neg"].tolist() == [-2, 4]


@settings(max_examples=effort(100), deadline=None)
@given(batch=batches(), data=st.data())
def test_a_run_is_cut_into_the_batches_that_it_was_made_of(batch: TensorBatch, data: Any) -> None:
    """Whatever groups its columns form, with lists and Python objects among them or not."""
    borders = sorted(data.draw(st.lists(st.integers(0, batch.num_rows), max_size=5)))
    rows = [stop - start for start, stop in pairwise([0, *borders, batch.num_rows])]
    buffers = [torch.full((1 << 16,), 0xAA, dtype=torch.uint8)]
    written = TensorBatchCodec().write(batch, lambda num_bytes: buffers[0][:num_bytes])
    if written is None:
        return
    pieces = list(TensorBatchCodec().cut(*written, buffers, rows))
    assert [piece.num_rows for piece in pieces] == rows
    for piece, wanted in zip(pieces, batch.cut(rows), strict=True):
        assert list(piece) == list(wanted)
        assert all(is_same(piece[name], wanted[name]) for name in wanted)


@st.composite
def lying(draw: Any, slabs: dict[int, torch.Tensor], num_rows: int) -> torch.Tensor:
    """A tensor in one of the slabs: a row, some columns or all of a matrix in it, or a slice of those."""
    slab = draw(st.sampled_from(list(slabs.values())))
    matrix = slab.view(draw(st.sampled_from([torch.uint8, torch.uint16, torch.int64]))).view(4, -1)
    match draw(st.sampled_from(["column", "matrix", "rows"])):
        case "column":
            column = draw(st.integers(0, 3))
            return matrix[column, draw(st.integers(0, 2)) :][:num_rows]
        case "matrix":
            return matrix[draw(st.integers(0, 2)) :].t()[draw(st.integers(0, 2)) :][:num_rows]
    return matrix.view(-1, 3 if matrix.shape[1] % 3 == 0 else 2)[2:][:num_rows]


@settings(max_examples=effort(200), deadline=None)
@given(batch=batches(), data=st.data())
def test_what_lies_in_slabs_is_referred_to_and_all_else_is_copied(batch: TensorBatch, data: Any) -> None:
    slabs = {number: torch.arange(4 * 48 * 8).to(torch.uint8) for number in (7, 9)}
    addresses = {slab.untyped_storage().data_ptr(): number for number, slab in slabs.items()}
    for index in range(data.draw(st.integers(0, 6))):
        batch[f"lying {index}"] = data.draw(lying(slabs, batch.num_rows))
    copied: list[torch.Tensor] = []

    def find(tensor: torch.Tensor) -> SlabPlace | None:
        number = addresses.get(tensor.untyped_storage().data_ptr())
        return None if number is None else SlabPlace(number, tensor.storage_offset() * tensor.itemsize)

    def allocate(num_bytes: int) -> torch.Tensor:
        copied.append(torch.full((num_bytes,), 0xAA, dtype=torch.uint8))
        return copied[0]

    written = TensorBatchCodec().refer(batch, find, allocate)
    if written is None:
        assert not has_tensors(batch)
        return
    layout, descriptor, spans = pickle.loads(pickle.dumps(written))
    buffers = [slabs[slab][start:stop] for slab, start, stop in spans] + copied
    came = TensorBatchCodec().view(layout, descriptor, buffers)
    assert list(came) == list(batch)
    for name, column in batch.items():
        assert is_same(came[name], column)
        if name.startswith("lying") and column.numel():
            assert came[name].data_ptr() == column.data_ptr()
    rows = [batch.num_rows // 2, batch.num_rows - batch.num_rows // 2]
    for piece, wanted in zip(TensorBatchCodec().cut(layout, descriptor, buffers, rows), batch.cut(rows), strict=True):
        assert all(is_same(piece[name], wanted[name]) for name in wanted)


@settings(max_examples=effort(50), deadline=None)
@given(batch=batches())
def test_tensors_lie_apart_and_aligned(batch: TensorBatch) -> None:
    layout = SlabLayout.of(batch)
    spans = [
        (group.offset + i * group.pitch_bytes, group.pitch_bytes)
        for group in layout.groups
        for i in range(len(group.parts))
    ]
    assert all(start % ALIGNMENT_BYTES == 0 for start, _ in spans)
    assert [start for start, _ in spans] == [sum(size for _, size in spans[:i]) for i in range(len(spans))]
    assert layout.num_bytes == sum(size for _, size in spans)


def test_views_share_the_slab_and_matrices_stay_column_major() -> None:
    batch = TensorBatch({"x": torch.arange(640.0).view(10, 64).t(), "y": torch.arange(64)})
    buffer = torch.zeros(SlabLayout.of(batch).num_bytes, dtype=torch.uint8)
    written = TensorBatchCodec().write(batch, lambda num_bytes: buffer)
    assert written is not None
    copy = TensorBatchCodec().view(*written, [buffer])
    assert copy["x"].stride() == (1, 64)
    assert copy["y"].untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()


def layout_after(batch: TensorBatch, layout: SlabLayout) -> SlabLayout:
    written = TensorBatchCodec().write(batch, lambda num_bytes: torch.zeros(num_bytes, dtype=torch.uint8), layout)
    assert written is not None
    return written[0]


def test_the_layout_of_an_earlier_batch_is_kept_while_it_fits() -> None:
    layout = SlabLayout.of(TensorBatch({"x": torch.zeros(8), "s": ["a"] * 8}))
    assert layout_after(TensorBatch({"x": torch.ones(8), "s": ["b"] * 8}), layout) is layout
    assert layout_after(TensorBatch({"x": torch.ones(7), "s": ["b"] * 7}), layout) != layout
    assert layout_after(TensorBatch({"x": torch.ones(8).int(), "s": ["b"] * 8}), layout) != layout
    assert layout_after(TensorBatch({"z": torch.ones(8), "s": ["b"] * 8}), layout) != layout
    assert layout_after(TensorBatch({"x": torch.ones(8), "s": torch.ones(8)}), layout) != layout


def test_a_layout_with_the_ragged_column_elsewhere_does_not_fit() -> None:
    ragged = Ragged(torch.arange(5), torch.tensor([0, 1, 2, 3, 5]))
    second = TensorBatch({"a": torch.arange(5), "b": ragged})
    copy = round_trip(second, SlabLayout.of(TensorBatch({"a": ragged, "b": torch.arange(5)})))
    assert is_same(copy["b"], ragged)
    assert is_same(copy["a"], second["a"])


def test_what_is_no_dense_tensor_travels_beside_the_slab() -> None:
    weights = torch.zeros(4, requires_grad=True)
    batch = TensorBatch({"x": torch.zeros(4), "sparse": torch.eye(4).to_sparse(), "w": weights})
    written = TensorBatchCodec().write(batch, lambda num_bytes: torch.zeros(num_bytes, dtype=torch.uint8))
    assert written is not None
    assert written[1][0] is batch["sparse"]
    assert written[1][1] is weights


@pytest.mark.parametrize("batch", [{}, {"s": ["a"]}, torch.zeros(3), "text", None, [1, 2]])
def test_batches_without_dense_tensors_are_left_to_others(batch: Any) -> None:
    assert TensorBatchCodec().write(batch, lambda num_bytes: torch.zeros(num_bytes, dtype=torch.uint8)) is None


def test_a_slab_that_is_too_small_is_refused_with_the_size_it_needs() -> None:
    with pytest.raises(InternalError, match=r"needs 64 bytes, its slab has 63"):
        TensorBatchCodec().write(TensorBatch({"x": torch.zeros(4)}), lambda _: torch.zeros(63, dtype=torch.uint8))
