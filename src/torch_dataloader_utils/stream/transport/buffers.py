"""Batches as flat buffers between processes: how a worker writes them, and how the trainer makes views of them."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from torch_dataloader_utils._core.slab_codec import SlabCodec


class BatchWriter(Protocol):
    """Makes messages of the batches of one response.

    copied_bytes: of batches since the last `begin`.
    """

    copied_bytes: int

    def begin(self) -> None:
        """Begin a response."""
        ...

    def copy(self, batch: Any, batches_left: int) -> Any:
        """The message of a copy of a batch; the batch itself if it has no flat form.

        batches_left: how many batches of the response are still to come, this one included.
        """
        ...

    def refer(self, batch: Any) -> Any:
        """The message of a batch that is not written to any more, copied only as far as it must be."""
        ...


class Unread(NamedTuple):
    """A received batch before its views are made: the arguments of `SlabCodec.view`."""

    layout: Any
    descriptor: Any
    buffers: tuple[torch.Tensor, ...]


class BatchReader(ABC):
    """Makes batches of the messages of one worker.

    codec: None where all batches are sent as they are.
    """

    def __init__(self, codec: SlabCodec | None) -> None:
        self._codec = codec

    @abstractmethod
    def open(self, messages: Sequence[Any]) -> deque[Any]:
        """The batches of all messages of one response, ready for `view` or `cut`."""

    def view(self, batch: Any) -> Any:
        """The batch, as views of its buffers."""
        return self._codec.view(*batch) if isinstance(batch, Unread) and self._codec is not None else batch

    def cut(self, batch: Any, rows: Sequence[int]) -> Iterator[Any]:
        """The batches of a part of a batch group, of `rows[0]`, `rows[1]`, ... rows."""
        if isinstance(batch, Unread) and self._codec is not None:
            return self._codec.cut(*batch, rows)
        return batch.cut(rows)  # type: ignore[no-any-return]
