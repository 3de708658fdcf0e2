"""Hold the tensors of a batch as views of one buffer: one copy moves all tensors, instead of one copy a column."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

ALIGNMENT_BYTES = 64

# Tensors of one storage are moved together with their gaps, unless the gaps take more than half of the tensors' bytes.
_MOST_WASTE = 0.5

_MOST_NUMBERS_OF_A_THREAD = 32_768


class TensorPlace(NamedTuple):
    """Place of a tensor in a buffer: its first byte, dtype, shape, and strides (in elements)."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneBuffer:
    """Buffer of all tensors, uint8 [bytes], with the place of every tensor; its first byte is 64-byte aligned."""

    buffer: Tensor
    places: tuple[TensorPlace, ...]

    @classmethod
    def found(cls, tensors: Sequence[Tensor]) -> Self | None:
        """Return the buffer that all these tensors are views of; None without such a buffer or with large gaps."""
        storage = tensors[0].untyped_storage()
        if any(tensor.untyped_storage().data_ptr() != storage.data_ptr() for tensor in tensors):
            return None
        begins = [int(tensor.storage_offset()) * tensor.itemsize for tensor in tensors]
        ends = [
            begin + extent_bytes(tensor.dtype, tensor.shape, tensor.stride())
            for begin, tensor in zip(begins, tensors, strict=True)
        ]
        begin, end = min(begins) // ALIGNMENT_BYTES * ALIGNMENT_BYTES, max(ends)
        if end - begin > (1 + _MOST_WASTE) * sum(tensor.nbytes for tensor in tensors) + ALIGNMENT_BYTES * len(tensors):
            return None
        whole = torch.empty(0, dtype=torch.uint8).set_(storage)
        places = [
            TensorPlace(at - begin, tensor.dtype, tuple(tensor.shape), tensor.stride())
            for at, tensor in zip(begins, tensors, strict=True)
        ]
        return cls(buffer=whole[begin:end], places=tuple(places))

    @classmethod
    def packed(cls, tensors: Sequence[Tensor], allocate: Callable[[int], Tensor]) -> Self:
        """Copy the tensors into `allocate(num_bytes)`, dense, each with its own order of dimensions.

        Tensors of one dtype, shape and strides lie side by side and are copied by one call: packing 51 columns and
        making their views takes 170 us, and 580 us one by one.
        """
        alike: dict[tuple[Any, ...], list[int]] = {}
        for index, tensor in enumerate(tensors):
            alike.setdefault((tensor.dtype, tensor.shape, tensor.stride()), []).append(index)
        places, num_bytes = {}, 0
        for indices in alike.values():
            first = tensors[indices[0]]
            strides = torch.empty_like(first, device="meta").stride()  # keeps a dense tensor's order of dimensions
            for index in indices:
                places[index] = TensorPlace(num_bytes, first.dtype, tuple(first.shape), strides)
                num_bytes += pitch_bytes(first.nbytes)
        packed = cls(buffer=allocate(num_bytes), places=tuple(places[index] for index in range(len(tensors))))
        views = packed.seen_in(packed.buffer)
        for indices in alike.values():
            first = views[indices[0]]
            pitch = pitch_bytes(first.nbytes) // first.itemsize
            side_by_side = first.as_strided((len(indices), *first.shape), (pitch, *first.stride()))
            stack_into([tensors[index] for index in indices], side_by_side)
        return packed

    def seen_in(self, buffer: Tensor) -> list[Tensor]:
        """Return the tensors as views of `buffer`: this object's buffer, or a copy of it on any device."""
        numbers = {dtype: typed(buffer, dtype) for dtype in {place.dtype for place in self.places}}
        return [
            numbers[dtype].as_strided(shape, strides, numbers[dtype].storage_offset() + offset // dtype.itemsize)
            for offset, dtype, shape, strides in self.places
        ]


def stack_into(tensors: list[Tensor], out: Tensor) -> None:
    """Copy tensors of one dtype and shape into out[0], out[1], ..., in this thread alone.

    torch divides a copy of more than 32,768 numbers among its own threads. These threads then spin on all cores while
    other threads decode.
    """
    if tensors[0].numel() <= _MOST_NUMBERS_OF_A_THREAD:
        torch.stack(tensors, out=out)
        return
    for tensor, place in zip(tensors, out, strict=True):
        _as_array(place)[...] = _as_array(as_stored(tensor))


def _as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def typed(buffer: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bytes as numbers of another dtype, without the bytes left over at the end."""
    return buffer[: buffer.shape[0] // dtype.itemsize * dtype.itemsize].view(dtype)


def pitch_bytes(num_bytes: int) -> int:
    """Round bytes up to the alignment: the distance from one tensor to the next."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def extent_bytes(dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the bytes from the first element of a tensor to the end of its last element; strides in elements."""
    if 0 in shape:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return (last + 1) * dtype.itemsize


def move_as_one(
    tensors: Sequence[Tensor], move: Callable[[Tensor], Tensor], allocate: Callable[[int], Tensor]
) -> list[Tensor]:
    """Move all tensors by one `move` of their memory. Scattered tensors are packed into `allocate(num_bytes)` first.

    Plain CPU tensors only; see `is_plain`.
    """
    together = OneBuffer.found(tensors) or OneBuffer.packed(tensors, allocate)
    return together.seen_in(move(together.buffer))


def is_plain(tensor: object) -> bool:
    """Return whether this is a dense CPU tensor: no subclass, no gradients, not nested."""
    return (
        type(tensor) is Tensor
        and tensor.is_cpu
        and tensor.layout == torch.strided
        and not tensor.requires_grad
        and not tensor.is_nested
    )


def as_stored(tensor: Tensor) -> Tensor:
    """Return the tensor with its values in memory: torch may store conjugates or negatives of values, and a flag."""
    return tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor
