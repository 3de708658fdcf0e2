"""The protocol of codecs, by which the stream sends batches in slabs (large byte buffers) to processes and devices."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class SlabPlace(NamedTuple):
    """Number of a slab, and a byte in the slab."""

    slab: int
    start: int


class SlabSpan(NamedTuple):
    """Bytes [start, stop) of a slab."""

    slab: int
    start: int
    stop: int


class SlabCodec(Protocol):
    """Codec that writes batches into flat byte buffers, or refers to buffers that hold them, and reads them back.

    Buffers are one-dimensional uint8 torch tensors. A batch is (layout, descriptor) and the buffers that it lies in.
    The layout is common to batches of the same columns; the descriptor belongs to one batch.
    """

    def write(self, batch: object, allocate: Callable[[int], "Tensor"], layout: Any) -> tuple[object, object] | None:
        """Return (layout, descriptor) of a batch written into `allocate(num_bytes)`; None for batches of another kind.

        layout: Layout of an earlier batch, or None; the same object is returned if it still fits.
        """
        ...

    def refer(
        self, batch: object, find: Callable[["Tensor"], SlabPlace | None], allocate: Callable[[int], "Tensor"]
    ) -> tuple[object, object, Sequence[SlabSpan]] | None:
        """Return (layout, descriptor, spans): tensors that `find` finds stay in their slabs, all others are copied.

        spans: The buffers, in order; the memory of `allocate(num_bytes)` comes last, if anything is copied.
        None for batches of another kind.
        """
        ...

    def view(self, layout: Any, descriptor: Any, buffers: Sequence["Tensor"]) -> Any:
        """Return the batch, as views of its buffers."""
        ...

    def cut(self, layout: Any, descriptor: Any, buffers: Sequence["Tensor"], rows: Sequence[int]) -> Iterator[Any]:
        """Yield the batch cut into batches of `rows[0]`, `rows[1]`, ... rows (all rows); for batches of the shaper."""
        ...
