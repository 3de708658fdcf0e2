"""`WorkerTransport`: the protocol of workers elsewhere (processes, actors) that make the batches of passes."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from torch_dataloader_utils._core.position import Cursor
from torch_dataloader_utils._core.program import WorkerInput
from torch_dataloader_utils._observe.audit_file import BatchOrigin
from torch_dataloader_utils._observe.meter import LoaderMeter
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.worker import Pipeline

Delivered = tuple[int, Cursor, BatchOrigin | None, Any]
"""Number of the worker, its cursor, the origin of the batch's rows (None if origins are not noted), and the batch."""

RestOf = Callable[[int, int, Cursor], WorkerInput]
"""Function of a worker, its number of received batches and its cursor: returns the input for the rest of the pass."""


class WorkerTransport(Protocol):
    """Workers elsewhere that make the batches of passes: `WorkerProcesses` and `RayWorkerActors`.

    A copy (also an unpickled copy) has no workers, and starts its own.
    """

    def reading(self, pipeline: Pipeline) -> "WorkerTransport":
        """Return a transport with the same options whose workers run this pipeline from the next pass on."""
        ...

    def decode_as(self, decode: DecodeOptions) -> None:
        """Set the limits of decoding ahead for all workers together that start from now on."""
        ...

    def deliver(
        self,
        works: Sequence[WorkerInput],
        first_worker: int,
        left: int | None,
        meter: LoaderMeter,
        rest_of: RestOf,
    ) -> Generator[Delivered]:
        """Yield the batches of one pass.

        works: inputs of all workers. first_worker: worker of the first batch. left: number of batches; None if only
        reading can tell. meter: counts every batch, and the time until each response. rest_of: returns the input for a
        worker that begins again; not used where a lost worker ends the pass.
        """
        ...
