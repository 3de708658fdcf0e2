"""Hold rows of different lengths in two tensors, the values and the start of each row, and pad the rows."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from torch_dataloader_utils._core.arguments import check_choice, check_integer
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.units import ranges
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.shape.gather import gather_lists
from torch_dataloader_utils.shape.one_buffer import is_plain
from torch_dataloader_utils.shape.pickling import from_portable, portable, signed, unsigned

# Dtypes as which numpy sees numbers of so many bytes: numpy does not know all of torch's dtypes.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def suits_numpy(numbers: Tensor) -> bool:
    """Return whether numpy may do torch's work on a tensor, because the tensor is nothing but its bits in memory.

    This holds for plain tensors (see `is_plain`) of real numbers, unless torch stores a tensor negated with a flag, or
    must see each operation: with tangents, under a compiler, and within `torch.func`.
    """
    if torch.compiler.is_compiling() or not is_plain(numbers) or numbers.dtype.itemsize not in _BITS:
        return False
    tangent = unpack_dual(numbers).tangent  # type: ignore[no-untyped-call]
    return not numbers.is_complex() and not numbers.is_neg() and tangent is None and _gives_memory(numbers)


def fill(tensor: Tensor, number: Tensor) -> None:
    """Fill a tensor with one number. number: tensor [1] of the same dtype."""
    if suits_numpy(tensor):
        _bits(tensor).numpy().fill(_bits(number).item())
    else:
        tensor.copy_(number)


def copy_rows(source: Tensor, rows: Int64s | slice, target: Tensor, places: Int64s) -> None:
    """Copy row i of source[rows] to row places[i] of the target, for all i. Both have one dtype and `suits_numpy`."""
    _bits(target).numpy()[places] = _bits(source).numpy()[rows]


def _gives_memory(numbers: Tensor) -> bool:
    """Return whether results of operations have memory; within `torch.func.grad` results are wrappers without it."""
    try:
        return numbers.detach().data_ptr() != 0 or numbers.numel() == 0
    except RuntimeError:
        return False


def _bits(numbers: Tensor) -> Tensor:
    return numbers.view(_BITS[numbers.dtype.itemsize])


def filled(like: Tensor, shape: Sequence[int], value: float, *, name: str) -> Tensor:
    """Return a tensor of this shape, and of the dtype and device of `like`, filled with the value. Floats may round.

    name: name of the value's option, for messages.

    Raises:
        ConfigTypeError: the value is not a number.
        ConfigError: the dtype cannot hold the value, or the memory is too small for the shape.
    """
    try:
        _check_kept(value, like.dtype, name)
        # Two numbers: in a half-precision tensor of one number, torch turns a number that is too large into infinity.
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
    """Raise ConfigError if torch would fill with another number: wrapped around, or cut to a whole number."""
    # Floats may round, and torch itself refuses numbers beyond their range.
    if dtype.is_floating_point or dtype.is_complex:
        return
    least, most = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not (least <= value <= most and value == int(value)):
        raise ConfigError(
            f"{name}={value} does not fit {dtype}, which holds whole numbers from {least} to {most}. Pass a number in "
            "this range, or convert the values."
        )


def longest_row(offsets: Tensor) -> int:
    """Return the number of values in the longest row; 0 without rows."""
    if suits_numpy(offsets):
        return int(np.diff(offsets.numpy()).max(initial=0))
    return int(offsets.diff().max()) if len(offsets) > 1 else 0


def value_mask(offsets: Tensor, width: int, side: str) -> Tensor:
    """Return bool [rows, width], True at the values of rows that are padded to `width`."""
    if suits_numpy(offsets):
        lengths = np.diff(offsets.numpy())[:, None]
        return torch.from_numpy(_has_value(np.arange(width), lengths, width, side))
    mask: Tensor = _has_value(torch.arange(width, device=offsets.device), offsets.diff()[:, None], width, side)
    return mask


def pad(values: Tensor, offsets: Tensor, padding_value: float, width: int, side: str) -> Tensor:
    """Return padded rows, shape [rows, width, ...]. See `Ragged.to_padded`."""
    padded = filled(values, (len(offsets) - 1, width, *values.shape[1:]), padding_value, name="padding_value")
    if suits_numpy(values) and suits_numpy(offsets):
        _copy_by_numpy(values, offsets, padded, side)
        return padded
    if len(values) == 0:
        return padded
    lengths = offsets.diff()[:, None]
    begins = offsets[:-1, None] - (width - lengths.clamp(max=width) if side == "left" else 0)
    # Padding takes some other value and masks it again: so no shape depends on the lengths.
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
    """List column: row i is `values[offsets[i]:offsets[i + 1]]`.

    values: shape [total, ...], any dtype. offsets: int64, shape [rows + 1], offsets[0] == 0, offsets[-1] == total.

        rows [[7, 8], [], [9]]      values [7, 8, 9]      offsets [0, 2, 2, 3]

    `offsets` has one entry more than there are rows, as `EmbeddingBag(..., include_last_offset=True)` wants.

    The two tensors are views of the row group that they were read from. The constructor does not check the tensors.
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
        """Return one row (a view), a slice of rows (a Ragged of views), or rows at an int64 or bool tensor (copied).

        The tensor may be on the CPU while the rows are on a device.

        Raises:
            IndexError: a row does not exist, or a mask does not have one entry for each row. Numbers in a tensor on a
                GPU are not checked: a row that does not exist ends in CUDA's own error, and the process cannot use the
                GPU after it.
        """
        if isinstance(rows, Tensor):
            index = self._index(rows).to(self.offsets.device, torch.int64)
            return Ragged(*gather_lists(self.values, self.offsets, torch.where(index < 0, index + len(self), index)))
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step != 1:
                longest = len(self) + 1  # a longer step gives the same rows, and may not fit into int64
                count = len(range(start, stop, step))
                return self[start + torch.arange(count) * max(-longest, min(step, longest))]
            return self.narrow(start, max(start, stop))
        if not -len(self) <= rows < len(self):
            raise IndexError(f"row {rows} of {len(self)}")
        first, last = self.offsets[rows % len(self) :][:2].tolist()
        return self.values[first:last]

    def _index(self, rows: Tensor) -> Tensor:
        """Return the row numbers of an int64 or bool tensor; negative numbers stay as they are."""
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
        """Return rows [start, stop): a view of the values, and new offsets from 0.

        Offsets are new because the last offset of some rows is the first offset of the next rows: a change of a view
        would change both.
        """
        offsets = self.offsets[start : stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        return Ragged(self.values[first:last], offsets - first)

    def __repr__(self) -> str:
        values = tuple(self.values.shape)
        return f"Ragged({len(self)} rows, values {values} {self.values.dtype}, {self.values.device})"

    @property
    def lengths(self) -> Tensor:
        """Number of values in each row, int64 [rows]."""
        return self.offsets.diff()

    @property
    def nbytes(self) -> int:
        """Bytes of both tensors."""
        return self.values.nbytes + self.offsets.nbytes

    def to_padded(self, padding_value: float = 0, *, max_length: int | None = None, side: str = "right") -> Tensor:
        """Return a dense tensor, shape [rows, length, ...], with every row filled up with `padding_value`.

        The length is the length of the longest row, or `max_length`; with `max_length` longer rows keep their first
        `max_length` values. `side` is the side of the padding: "right" (values first) or "left".

            [[7, 8], [], [9]]      right: [[7, 8], [0, 0], [9, 0]]      left: [[7, 8], [0, 0], [0, 9]]

        Raises:
            ConfigError: `side` or `max_length` is out of range, or the dtype cannot hold `padding_value`.
            ConfigTypeError: `max_length` is not a whole number.
        """
        check_choice("side", side, ("right", "left"))
        if max_length is not None:
            max_length = check_integer("to_padded: max_length", max_length, least=0)
        width = longest_row(self.offsets) if max_length is None else max_length
        return pad(self.values, self.offsets, padding_value, width, side)

    def to_nested(self) -> Tensor:
        """Return a nested tensor of layout torch.jagged over the same memory."""
        nested: Tensor = torch.nested.nested_tensor_from_jagged(self.values, self.offsets)
        return nested

    def to_list(self) -> list[Any]:
        """Return nested Python lists, one list a row."""
        values, offsets = self.values.tolist(), self.offsets.tolist()
        return [values[first:last] for first, last in pairwise(offsets)]

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> "Ragged":
        """Return the same rows on `device`."""
        return Ragged(
            self.values.to(device, non_blocking=non_blocking), self.offsets.to(device, non_blocking=non_blocking)
        )

    def pin_memory(self) -> "Ragged":
        """Return the same rows in page-locked memory. DataLoader(pin_memory=True) calls this."""
        return Ragged(self.values.pin_memory(), self.offsets.pin_memory())

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (portable(self.values), portable(self.offsets))


def _rebuild(values: object, offsets: Tensor) -> Ragged:
    return Ragged(from_portable(values), offsets)
