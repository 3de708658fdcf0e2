"""Rows of different lengths as two tensors, all values in one and where each row begins in the other; padding them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from torch_dataloader_utils._core.arguments import check_integer
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.units import ranges
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.shape.gather import gather_lists
from torch_dataloader_utils.shape.one_buffer import is_plain
from torch_dataloader_utils.shape.pickling import from_portable, portable, signed, unsigned

# As what numpy sees numbers of so many bytes: it does not know all of torch's dtypes.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def suits_numpy(numbers: Tensor) -> bool:
    """Whether numpy may do torch's work on a tensor, because its bits in memory are all that there is to it.

    Plain tensors (see `is_plain`) of real numbers do, unless torch keeps them negated, with a flag, or must see each
    operation: where there are tangents, under a compiler, and within `torch.func`.
    """
    if torch.compiler.is_compiling() or not is_plain(numbers) or numbers.dtype.itemsize not in _BITS:
        return False
    tangent = unpack_dual(numbers).tangent  # type: ignore[no-untyped-call]
    return not numbers.is_complex() and not numbers.is_neg() and tangent is None and _gives_memory(numbers)


def fill(tensor: Tensor, number: Tensor) -> None:
    """Write one number, a tensor [1] of the same dtype, everywhere."""
    if suits_numpy(tensor):
        _bits(tensor).numpy().fill(_bits(number).item())
    else:
        tensor.copy_(number)


def copy_rows(source: Tensor, rows: Int64s | slice, target: Tensor, places: Int64s) -> None:
    """Row places[i] of the target becomes row i of source[rows], for all i; both of one dtype, and `suits_numpy`."""
    _bits(target).numpy()[places] = _bits(source).numpy()[rows]


def _gives_memory(numbers: Tensor) -> bool:
    """Whether the results of operations have memory; within `torch.func.grad` they are wrappers that have none."""
    try:
        return numbers.detach().data_ptr() != 0 or numbers.numel() == 0
    except RuntimeError:
        return False


def _bits(numbers: Tensor) -> Tensor:
    return numbers.view(_BITS[numbers.dtype.itemsize])


def filled(like: Tensor, shape: Sequence[int], value: float, *, name: str) -> Tensor:
    """A tensor of this shape and the other's dtype and device, with the value everywhere; floats may round it.

    name: what the user calls the value.

    Raises:
        ConfigTypeError: the value is no number.
        ConfigError: the dtype does not hold the value, or there is no memory for the shape.
    """
    try:
        _check_kept(value, like.dtype, name)
        # Two, for torch makes infinity of a number that is too large for a half-precision tensor of one.
        number, tensor = like.new_full((2,), value)[:1], like.new_empty(tuple(shape))
    except TypeError as error:
        raise ConfigTypeError(f"{name} is {of_type(value)}: pass a number.") from error
    except (RuntimeError, OverflowError) as error:
        raise ConfigError(
            f"A tensor {list(shape)} of {like.dtype} filled with {name}={value} cannot be: {error}"
        ) from error
    fill(tensor, number)
    return tensor


def _check_kept(value: float, dtype: torch.dtype, name: str) -> None:
    """ConfigError where torch would fill with another number: wrapped around, or cut to a whole one."""
    # Floats may round, and torch itself refuses what is beyond them.
    if dtype.is_floating_point or dtype.is_complex:
        return
    least, most = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not (least <= value <= most and value == int(value)):
        raise ConfigError(
            f"{name}={value} does not fit {dtype}, which holds whole numbers from {least} to {most}. Pass one of them, "
            "or convert the values."
        )


def longest_row(offsets: Tensor) -> int:
    """How many values the longest row has; 0 where there are no rows."""
    if suits_numpy(offsets):
        return int(np.diff(offsets.numpy()).max(initial=0))
    return int(offsets.diff().max()) if len(offsets) > 1 else 0


def value_mask(offsets: Tensor, width: int, side: str) -> Tensor:
    """Bool [rows, width], True where a row that is padded to `width` has a value."""
    if suits_numpy(offsets):
        lengths = np.diff(offsets.numpy())[:, None]
        return torch.from_numpy(_has_value(np.arange(width), lengths, width, side))
    mask: Tensor = _has_value(torch.arange(width, device=offsets.device), offsets.diff()[:, None], width, side)
    return mask


def pad(values: Tensor, offsets: Tensor, padding_value: float, width: int, side: str) -> Tensor:
    """Shape [rows, width, ...]: see `Ragged.to_padded`."""
    padded = filled(values, (len(offsets) - 1, width, *values.shape[1:]), padding_value, name="padding_value")
    if suits_numpy(values) and suits_numpy(offsets):
        _copy_by_numpy(values, offsets, padded, side)
        return padded
    if len(values) == 0:
        return padded
    lengths = offsets.diff()[:, None]
    begins = offsets[:-1, None] - (width - lengths.clamp(max=width) if side == "left" else 0)
    # Where there is no value another one is taken, and left out again: so no shape depends on the lengths.
    taken = (begins + torch.arange(width, device=offsets.device)).clamp(0, len(values) - 1)
    rows = signed(values).index_select(0, taken.flatten()).view(*taken.shape, *values.shape[1:])
    mask = value_mask(offsets, width, side)
    mask = mask.view(*mask.shape, *(1 for _ in values.shape[1:]))
    return unsigned(torch.where(mask, rows, signed(padded)), values.dtype)


def _copy_by_numpy(values: Tensor, offsets: Tensor, padded: Tensor, side: str) -> None:
    starts, width = offsets.numpy(), padded.shape[1]
    lengths = np.diff(starts)
    kept = np.minimum(lengths, width)
    begins = np.arange(len(lengths)) * width + (width - kept if side == "left" else 0)
    taken = slice(starts[-1]) if (kept == lengths).all() else ranges(starts[:-1], kept)
    copy_rows(values, taken, padded.flatten(0, 1), ranges(begins, kept))


def _has_value(place: Any, lengths: Any, width: int, side: str) -> Any:
    return place < lengths if side == "right" else place >= width - lengths


class Ragged:
    """A list column: row i is `values[offsets[i]:offsets[i + 1]]`.

    values: shape [total, ...], any dtype. offsets: int64, shape [rows + 1], offsets[0] == 0, offsets[-1] == total.

        rows [[7, 8], [], [9]]      values [7, 8, 9]      offsets [0, 2, 2, 3]

    The two tensors are views of the row group they were read from. The constructor does not check them.
    """

    __slots__ = ("__weakref__", "offsets", "values")

    def __init__(self, values: Tensor, offsets: Tensor) -> None:
        self.values = values
        self.offsets = offsets

    def __len__(self) -> int:
        return self.offsets.shape[0] - 1

    @overload
    def __getitem__(self, rows: int) -> Tensor: ...

    @overload
    def __getitem__(self, rows: slice | Tensor) -> "Ragged": ...

    def __getitem__(self, rows: int | slice | Tensor) -> "Tensor | Ragged":
        """One row (a view), a slice of rows (a Ragged of views), or the rows at an int64 or bool tensor (copied).

        The tensor may be on the CPU where the rows are on a device.

        Raises:
            IndexError: a row that does not exist (but rows named by a tensor on a GPU are not looked at: one that does
                not exist ends in CUDA's own error, after which the process cannot use the GPU); or a mask that is
                not one of all rows.
        """
        if isinstance(rows, Tensor):
            index = self._index(rows).to(self.offsets.device, torch.int64)
            return Ragged(*gather_lists(self.values, self.offsets, torch.where(index < 0, index + len(self), index)))
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step != 1:
                longest = len(self) + 1  # a longer step gives the same rows, and need not fit into int64
                count = len(range(start, stop, step))
                return self[start + torch.arange(count) * max(-longest, min(step, longest))]
            return self.narrow(start, max(start, stop))
        if not -len(self) <= rows < len(self):
            raise IndexError(f"row {rows} of {len(self)}")
        first, last = self.offsets[rows % len(self) :][:2].tolist()
        return self.values[first:last]

    def _index(self, rows: Tensor) -> Tensor:
        """The numbers of the rows that an int64 or bool tensor names, negative ones as they are."""
        if rows.dtype == torch.bool:
            if rows.shape != (len(self),):
                raise IndexError(f"a mask of shape {tuple(rows.shape)} for {len(self)} rows")
            return rows.nonzero().squeeze(1)
        if rows.is_cpu and rows.numel():
            least, most = map(int, rows.aminmax())
            if least < -len(self) or most >= len(self):
                raise IndexError(f"row {least if least < -len(self) else most} of {len(self)}")
        return rows

    def narrow(self, start: int, stop: int) -> "Ragged":
        """Rows [start, stop): values are a view, offsets are counted from 0 again and new.

        The last offset of some rows is the first of the next: as views, whoever changes one would change the other.
        """
        offsets = self.offsets[start : stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        return Ragged(self.values[first:last], offsets - first)

    def __repr__(self) -> str:
        values = tuple(self.values.shape)
        return f"Ragged({len(self)} rows, values {values} {self.values.dtype}, {self.values.device})"

    @property
    def lengths(self) -> Tensor:
        """How many values each row has, int64, shape [rows]."""
        return self.offsets.diff()

    @property
    def nbytes(self) -> int:
        """Bytes of both tensors."""
        return self.values.nbytes + self.offsets.nbytes

    def to_padded(self, padding_value: float = 0, *, max_length: int | None = None, side: str = "right") -> Tensor:
        """Shape [rows, length, ...]: every row filled up with `padding_value`.

        length is that of the longest row, or `max_length`; with `max_length` longer rows keep their first
        `max_length` values. `side` says where the padding goes: "right" (values first) or "left".

            [[7, 8], [], [9]]      right: [[7, 8], [0, 0], [9, 0]]      left: [[7, 8], [0, 0], [0, 9]]

        Raises:
            ConfigError: side or max_length makes no sense, or the dtype does not hold `padding_value`.
            ConfigTypeError: max_length is no whole number.
        """
        if side not in ("right", "left"):
            raise ConfigError(f'to_padded: side={side!r}; it is "right" (values first) or "left" (padding first)')
        if max_length is not None:
            max_length = check_integer("to_padded: max_length", max_length, least=0)
        width = longest_row(self.offsets) if max_length is None else max_length
        return pad(self.values, self.offsets, padding_value, width, side)

    def to_nested(self) -> Tensor:
        """A nested tensor of layout torch.jagged over the same memory."""
        nested: Tensor = torch.nested.nested_tensor_from_jagged(self.values, self.offsets)
        return nested

    def to_list(self) -> list[Any]:
        """Nested Python lists, one a row."""
        values, offsets = self.values.tolist(), self.offsets.tolist()
        return [values[first:last] for first, last in pairwise(offsets)]

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> "Ragged":
        """The same rows on `device`."""
        return Ragged(
            self.values.to(device, non_blocking=non_blocking), self.offsets.to(device, non_blocking=non_blocking)
        )

    def pin_memory(self) -> "Ragged":
        """The same rows in page-locked memory; DataLoader(pin_memory=True) calls this."""
        return Ragged(self.values.pin_memory(), self.offsets.pin_memory())

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (portable(self.values), portable(self.offsets))


def _rebuild(values: Any, offsets: Tensor) -> Ragged:
    return Ragged(from_portable(values), offsets)
