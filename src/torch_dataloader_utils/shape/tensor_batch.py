"""Give a batch to the trainer as a dict of columns that moves between devices as one: `TensorBatch`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
from torch import Tensor

from torch_dataloader_utils.errors import ConfigTypeError, of_type, which_column
from torch_dataloader_utils.shape.batch_tree import BatchTree, container
from torch_dataloader_utils.shape.gather import in_groups
from torch_dataloader_utils.shape.one_buffer import is_plain, move_as_one
from torch_dataloader_utils.shape.pickling import from_portable, portable
from torch_dataloader_utils.shape.ragged import Ragged
from torch_dataloader_utils.shape.reused_memory import new_tensor

BatchColumn = Tensor | Ragged | list[Any] | dict[str, Any]
"""Column of a batch: a Tensor of shape [rows, ...], ragged rows, one Python object a row, or a struct's columns."""

Kind = TypeVar("Kind", Ragged, list[Any])


@container
class TensorBatch(dict[str, Tensor]):
    """Batch of columns by name: a Tensor of shape [rows, ...], a `Ragged`, or a Python list of `rows` objects.

    To type checkers every column is a Tensor, as most columns are, so that `model(batch["x"])` needs no cast. Use
    `batch.ragged("tokens")` and `batch.objects("name")` for other columns: they return the right type. A struct is a
    dict of columns: `batch["user"]["age"]`.

    A batch is a dict, so code for dicts of tensors handles it (`DataLoader`, Accelerate, Lightning, the HF Trainer),
    also code that makes a new dict of the same type from items. Tensors are views of the row group that they were read
    from. You may write into a tensor. A tensor that you keep keeps its row group in memory (clone the tensor to keep it
    for long). Pickling writes only the rows of the batch, not the whole row group.
    """

    __slots__ = ("__weakref__", "_rows_without_columns")

    # Any: with `BatchColumn`, mypy would refuse a dict literal with columns of two kinds.
    def __init__(self, columns: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), *, num_rows: int = 0) -> None:
        """Make a batch of these columns. num_rows: number of rows, used only if the batch has no columns."""
        super().__init__(columns)
        self._rows_without_columns = num_rows

    if TYPE_CHECKING:  # at run time dict's own method, which costs no Python call

        def __setitem__(self, name: str, column: BatchColumn) -> None: ...

    def __missing__(self, name: object) -> NoReturn:
        raise KeyError(f"a batch has no column {name!r}; {which_column(name, self)}")

    def ragged(self, name: str) -> Ragged:
        """Return a ragged column, typed as `Ragged`.

        Raises:
            KeyError: the batch has no such column. ConfigTypeError: the column has tensors or objects.
        """
        return self._of_kind(name, Ragged, "ragged rows")

    def objects(self, name: str) -> list[Any]:
        """Return a column of Python objects, typed as a list: texts, nested lists, ...

        Raises:
            KeyError: the batch has no such column. ConfigTypeError: the column has numbers.
        """
        return self._of_kind(name, list, "Python objects")

    def _of_kind(self, name: str, kind: type[Kind], what: str) -> Kind:
        column: BatchColumn = self[name]
        if not isinstance(column, kind):
            raise ConfigTypeError(
                f"column {name!r} of the batch is {of_type(column)}, not {what}: take it as batch[{name!r}]."
            )
        return column

    @property
    def num_rows(self) -> int:
        """Number of rows of the first column; a batch without columns still knows its row count."""
        for column in self.values():
            return rows_of(column)
        return self._rows_without_columns

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> "TensorBatch":
        """Return the same rows with every tensor on `device`, also tensors in dicts, lists and tuples; objects stay.

        All dense tensors are moved by one copy, and are views of one tensor on the device. Use `non_blocking=True`
        after `pin_memory()` to overlap the copy with computing.
        """

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        if torch.device(device).type == "cpu":
            return self._with_parts(partial(_each, move))
        return self._move(move, _pageable)

    def pin_memory(self) -> "TensorBatch":
        """Return the same rows in page-locked memory, in one buffer. DataLoader(pin_memory=True) calls this."""
        return self._move(lambda tensor: tensor if tensor.is_pinned() else tensor.pin_memory(), _page_locked)

    def cut(self, rows: Sequence[int]) -> "Iterator[TensorBatch]":
        """Yield batches of `rows[0]`, `rows[1]`, ... rows, as views. The numbers must add up to `num_rows`."""
        if not self:
            yield from (TensorBatch(num_rows=count) for count in rows)
            return
        names, groups = tuple(self), in_groups(rows)
        group_rows = [sum(group) for group in groups]
        for group, *columns in zip(groups, *(_cut(column, group_rows) for column in self.values()), strict=True):
            for parts in zip(*(_cut(column, group) for column in columns), strict=True):
                yield TensorBatch(zip(names, parts, strict=True))

    def _move(self, move: Callable[[Tensor], Tensor], allocate: Callable[[int], Tensor]) -> "TensorBatch":
        """Move every tensor by `move`: all plain tensors at once, packed in memory from `allocate` if scattered."""

        def move_all(parts: list[Any]) -> list[Any]:
            plain = [number for number, part in enumerate(parts) if is_plain(part)]
            if len(plain) < 2:
                return _each(move, parts)
            moved = move_as_one([parts[number] for number in plain], move, allocate)
            together = dict(zip(plain, moved, strict=True))
            return [
                together[number] if number in together else move(part) if isinstance(part, Tensor) else part
                for number, part in enumerate(parts)
            ]

        return self._with_parts(move_all)

    def _with_parts(self, change: Callable[[list[Any]], list[Any]]) -> "TensorBatch":
        """Return the same batch with its parts replaced by `change(parts)`. See `BatchTree`."""
        tree = BatchTree.of(self)
        changed: TensorBatch = tree.filled(iter(change(tree.parts(self))))
        changed._rows_without_columns = self._rows_without_columns
        return changed

    def copy(self) -> "TensorBatch":
        """Return a new batch of the same column objects."""
        return TensorBatch(self, num_rows=self._rows_without_columns)

    __copy__ = copy

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (_changed(self, _portable), self._rows_without_columns)


def _each(move: Callable[[Tensor], Tensor], parts: list[Any]) -> list[Any]:
    return [move(part) if isinstance(part, Tensor) else part for part in parts]


def _pageable(num_bytes: int) -> Tensor:
    return new_tensor((num_bytes,), torch.uint8)


def _page_locked(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


def rows_of(column: Any) -> int:
    """Return the number of rows of a column; a struct has the rows of its first column."""
    return rows_of(next(iter(column.values()))) if isinstance(column, dict) and column else len(column)


def _cut(column: BatchColumn, rows: Sequence[int]) -> Sequence[BatchColumn]:
    if isinstance(column, Tensor):
        return torch.unsafe_split_with_sizes(column, rows)
    if isinstance(column, dict):
        parts = zip(*(_cut(inside, rows) for inside in column.values()), strict=True)
        return [dict(zip(column, part, strict=True)) for part in parts]
    borders = pairwise(accumulate(rows, initial=0))
    if isinstance(column, Ragged):
        return [column.narrow(start, stop) for start, stop in borders]
    return [column[start:stop] for start, stop in borders]


def _changed(columns: Mapping[str, object], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the columns, also of structs, with `change` applied to each column."""
    return {
        name: _changed(column, change) if type(column) is dict else change(column) for name, column in columns.items()
    }


def _portable(column: object) -> Any:
    return portable(column) if isinstance(column, Tensor) else column


def _rebuild(columns: dict[str, Any], num_rows: int) -> TensorBatch:
    return TensorBatch(_changed(columns, from_portable), num_rows=num_rows)
