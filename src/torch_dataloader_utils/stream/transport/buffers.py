"""Send batches between processes as flat buffers: workers write buffers, and the trainer makes views of them."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from torch_dataloader_utils._core.slab_codec import SlabCodec


class BatchWriter(Protocol):
    """Writer that makes messages from the batches of one response.

    copied_bytes: number of bytes copied since the last `begin`.
    """

    copied_bytes: int

    def begin(self) -> None:
        """Begin a response."""
        ...

    def copy(self, batch: object, batches_left: int) -> object:
        """Copy a batch and return its message; return the batch itself if it has no flat form.

        batches_left: number of batches of the response that are still to come, including this batch.
        """
        ...

    def refer(self, batch: object) -> object:
        """Return the message of a batch, copied only as far as necessary. The batch must not be changed any more."""
        ...


class UnreadBatch(NamedTuple):
    """Received batch before its views are made: the arguments of `SlabCodec.view`."""

    layout: object
    descriptor: object
    buffers: tuple[torch.Tensor, ...]


class BatchReader(ABC):
    """Reader that makes batches from the messages of one worker.

    codec: codec of the messages; None if all batches are sent as they are.
    """

    def __init__(self, codec: SlabCodec | None) -> None:
        self._codec = codec

    @abstractmethod
    def open(self, messages: Sequence[object]) -> deque[object]:
        """Return the batches of all messages of one response, ready for `view` or `cut`."""

    def view(self, batch: object) -> Any:
        """Return the batch, as views of its buffers."""
        return self._codec.view(*batch) if isinstance(batch, UnreadBatch) and self._codec is not None else batch

    def cut(self, batch: Any, rows: Sequence[int]) -> Iterator[Any]:
        """Return an iterator over the batches of a part of a batch group, of `rows[0]`, `rows[1]`, ... rows."""
        if isinstance(batch, UnreadBatch) and self._codec is not None:
            return self._codec.cut(*batch, rows)
        return batch.cut(rows)  # type: ignore[no-any-return]
