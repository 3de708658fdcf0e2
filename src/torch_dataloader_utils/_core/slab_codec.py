"""The protocol of codecs, by which the stream sends batches in slabs (large byte buffers) to processes and devices."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class SlabPlace(NamedTuple):
    """A slab by its number, and a byte in it."""

    slab: int
    start: int


class SlabSpan(NamedTuple):
    """Bytes [start, stop) of a slab."""

    slab: int
    start: int
    stop: int


class SlabCodec(Protocol):
    """Writes batches into flat byte buffers, or says where they lie, and reads them back.

    Buffers are one-dimensional uint8 torch tensors. A batch is (layout, descriptor) and the buffers it lies in: the
    layout is what batches of the same columns have in common, the descriptor what is this batch's own.
    """

    def write(self, batch: Any, allocate: Callable[[int], "Tensor"], layout: Any) -> tuple[Any, Any] | None:
        """(layout, descriptor) of a batch written into `allocate(num_bytes)`; None for batches of another kind.

        `layout` is that of an earlier batch, or None; the same object is returned if it still fits.
        """
        ...

    def refer(
        self, batch: Any, find: Callable[["Tensor"], SlabPlace | None], allocate: Callable[[int], "Tensor"]
    ) -> tuple[Any, Any, Sequence[SlabSpan]] | None:
        """(layout, descriptor, spans): tensors that `find` finds stay in their slabs, all others are copied.

        spans: the buffers, in order; the memory of `allocate(num_bytes)` comes after them, if anything is copied.
        None for batches of another kind.
        """
        ...

    def view(self, layout: Any, descriptor: Any, buffers: Sequence["Tensor"]) -> Any:
        """The batch, as views of its buffers."""
        ...

    def cut(self, layout: Any, descriptor: Any, buffers: Sequence["Tensor"], rows: Sequence[int]) -> Iterator[Any]:
        """The batch cut into batches of `rows[0]`, `rows[1]`, ... rows (in all); for batches that the shaper made."""
        ...
