"""Take batches apart and put them together: the tree of a batch says how dicts, tuples and lists are nested."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from torch_dataloader_utils.shape.one_buffer import as_stored
from torch_dataloader_utils.shape.ragged import Ragged

LEAF, RAGGED = 0, 1

Container = TypeVar("Container", bound=dict[str, Any])

_CONTAINERS: set[type] = {dict, tuple, list}

# Longer lists are columns of objects (one object a row), and are not searched for tensors.
_MOST_MEMBERS = 64


class BatchTree(NamedTuple):
    """Tree of a batch: its container, its names (of a dict) and the trees of its columns.

    `parts` returns the tensors and objects of a batch as one flat list, and `filled` puts the parts together again. A
    column is one part (LEAF), two parts (RAGGED: values and offsets), or a container with its own tree.

        {"x": tensor, "names": ["a", "b"]}      BatchTree(dict, ("x", "names"), (LEAF, LEAF))
        (tensor, {"y": ragged})                 BatchTree(tuple, (), (LEAF, BatchTree(dict, ("y",), (RAGGED,))))
    """

    container: type[Any]
    names: tuple[Any, ...]
    columns: "tuple[int | BatchTree, ...]"

    @classmethod
    def of(cls, batch: Any) -> "BatchTree":
        """Return the tree of a container."""
        is_dict = isinstance(batch, dict)
        columns = batch.values() if is_dict else batch
        return cls(type(batch), tuple(batch) if is_dict else (), tuple([_tree_of(column) for column in columns]))

    def parts(self, batch: Any) -> list[Any]:
        """Return the parts of a batch with this tree, in order. Tensors are stored with their values: `as_stored`."""
        parts: list[Any] = []
        for column, tree in zip(batch.values() if isinstance(batch, dict) else batch, self.columns, strict=True):
            if isinstance(tree, BatchTree):
                parts += tree.parts(column)
            elif tree == RAGGED:
                parts += (as_stored(column.values), column.offsets)
            else:
                parts.append(as_stored(column) if type(column) is Tensor else column)
        return parts

    def filled(self, parts: Iterator[object]) -> Any:
        """Return a batch with this tree, made from its parts in order."""
        is_flat = not any(self.columns)
        columns = islice(parts, len(self.columns)) if is_flat else (_filled(column, parts) for column in self.columns)
        if issubclass(self.container, dict):
            return self.container(zip(self.names, columns, strict=True))
        return self.container(*columns) if hasattr(self.container, "_fields") else self.container(columns)


def container(kind: type[Container]) -> type[Container]:
    """Make a subclass of dict a container; a decorator. The constructor of the class takes items as dict's does."""
    _CONTAINERS.add(kind)
    return kind


def is_container(value: object) -> bool:
    """Return whether the value is a dict, a list, a (named) tuple, or of a class decorated with `container`."""
    kind = type(value)
    return kind in _CONTAINERS or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def _tree_of(column: object) -> int | BatchTree:
    if type(column) is Tensor:
        return LEAF
    if type(column) is Ragged:
        return RAGGED
    return BatchTree.of(column) if is_container(column) and _holds_tensors(column) else LEAF


def _holds_tensors(column: Any) -> bool:
    if not is_container(column):
        return isinstance(column, (Tensor, Ragged))
    if isinstance(column, dict):
        return any(map(_holds_tensors, column.values()))
    return len(column) <= _MOST_MEMBERS and any(map(_holds_tensors, column))


def _filled(tree: int | BatchTree, parts: Iterator[Any]) -> Any:
    if isinstance(tree, BatchTree):
        return tree.filled(parts)
    return Ragged(next(parts), next(parts)) if tree == RAGGED else next(parts)
