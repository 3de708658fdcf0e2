"""The form of a batch: how its tensors and objects are nested in dicts, tuples and lists, which a transform may do."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor

from torch_dataloader_utils.shape.one_piece import as_stored
from torch_dataloader_utils.shape.ragged import Ragged

LEAF, RAGGED = 0, 1

_CONTAINERS: set[type] = {dict, tuple, list}

# Longer lists are columns of objects, one a row, and are not searched for tensors.
_MOST_MEMBERS = 64


class Form(NamedTuple):
    """How a batch is put together: its container, its names (of a dict) and the forms of its columns.

    `parts` gives the tensors and objects of a batch as one flat list, `filled` puts them together again. A column is
    one part (LEAF), two parts (RAGGED: values and offsets), or a container with a form of its own.

        {"x": tensor, "names": ["a", "b"]}      Form(dict, ("x", "names"), (LEAF, LEAF))
        (tensor, {"y": ragged})                 Form(tuple, (), (LEAF, Form(dict, ("y",), (RAGGED,))))
    """

    container: type[Any]
    names: tuple[Any, ...]
    columns: "tuple[int | Form, ...]"

    @classmethod
    def of(cls, batch: Any) -> "Form":
        """The form of a container."""
        is_dict = isinstance(batch, dict)
        columns = batch.values() if is_dict else batch
        return cls(type(batch), tuple(batch) if is_dict else (), tuple([_form_of(column) for column in columns]))

    def parts(self, batch: Any) -> list[Any]:
        """The parts of a batch of this form, in order; tensors with their values as stored (see `as_stored`)."""
        parts: list[Any] = []
        for column, form in zip(batch.values() if isinstance(batch, dict) else batch, self.columns, strict=True):
            if isinstance(form, Form):
                parts += form.parts(column)
            elif form == RAGGED:
                parts += (as_stored(column.values), column.offsets)
            else:
                parts.append(as_stored(column) if type(column) is Tensor else column)
        return parts

    def filled(self, parts: Iterator[Any]) -> Any:
        """A batch of this form from its parts, in order."""
        is_flat = not any(self.columns)
        columns = islice(parts, len(self.columns)) if is_flat else (_filled(column, parts) for column in self.columns)
        if issubclass(self.container, dict):
            return self.container(zip(self.names, columns, strict=True))
        return self.container(*columns) if hasattr(self.container, "_fields") else self.container(columns)


def container(kind: type[Any]) -> type[Any]:
    """A decorator: makes a subclass of dict, whose constructor takes items as dict's does, a container."""
    _CONTAINERS.add(kind)
    return kind


def is_container(value: Any) -> bool:
    """Whether the value is a dict, a list, a (named) tuple, or of a class decorated with `container`."""
    kind = type(value)
    return kind in _CONTAINERS or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def _form_of(column: Any) -> int | Form:
    if type(column) is Tensor:
        return LEAF
    if type(column) is Ragged:
        return RAGGED
    return Form.of(column) if is_container(column) and _holds_tensors(column) else LEAF


def _holds_tensors(column: Any) -> bool:
    if not is_container(column):
        return isinstance(column, (Tensor, Ragged))
    if isinstance(column, dict):
        return any(map(_holds_tensors, column.values()))
    return len(column) <= _MOST_MEMBERS and any(map(_holds_tensors, column))


def _filled(form: int | Form, parts: Iterator[Any]) -> Any:
    if isinstance(form, Form):
        return form.filled(parts)
    return Ragged(next(parts), next(parts)) if form == RAGGED else next(parts)
