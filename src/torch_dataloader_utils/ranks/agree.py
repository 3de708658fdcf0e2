"""Work that all ranks of the default process group do together: each function is a collective that every rank calls."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from torch_dataloader_utils.errors import InternalError, LoaderError
from torch_dataloader_utils.ranks.resolve import running_ranks

T = TypeVar("T")


def counting_part(num_ranks: int, rank: int) -> tuple[int, int]:
    """This process's part of a shared count: (rank, num_ranks) with a process group of that size, else all."""
    return (rank, num_ranks) if num_ranks > 1 and running_ranks() == num_ranks else (0, 1)


def takes_cpu_tensors() -> bool:
    """Whether the default process group takes tensors of the CPU, as with "gloo" or "cpu:gloo,cuda:nccl"."""
    return "cpu:" in dist.get_backend_config()


def add_over_ranks(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The sum over all ranks of the default process group; every rank must call it."""
    tensor = torch.from_numpy(counts.copy())
    tensor = tensor if takes_cpu_tensors() else tensor.to(torch.device("cuda", torch.cuda.current_device()))
    dist.all_reduce(tensor)
    total: npt.NDArray[np.int64] = tensor.cpu().numpy()
    return total


def all_or_none(work: Callable[[], T]) -> T:
    """The result of `work` on this rank, if it fails on none; every rank of the default process group must call it.

    An error is raised on all ranks, so that none waits for one that failed: as it is where it happened, elsewhere as
    one of its class that names the rank.
    """
    try:
        value = work()
    except BaseException as error:
        is_ours = isinstance(error, LoaderError)
        _failures(error if is_ours else InternalError(f"{type(error).__name__}; see its traceback."))
        raise
    failures = _failures(None)
    if failures:
        raise failures[0]
    return value


def _failures(failure: BaseException | None) -> list[LoaderError]:
    """The failures of all ranks, as errors that name them; `failure`: this one's."""
    if not add_over_ranks(np.array([failure is not None], dtype=np.int64))[0]:
        return []
    failures: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(failures, None if failure is None else (type(failure), str(failure)))
    return [each[0](f"rank {rank} failed: {each[1]}") for rank, each in enumerate(failures) if each is not None]


def from_rank_zero(make: Callable[[], T]) -> T:
    """The result of `make` on rank 0 of the default process group, on every rank; every rank must call it.

    Without a process group it is this process's own. An error of rank 0 is raised on all ranks, so that none waits.
    """
    if running_ranks() <= 1:
        return make()
    outcome: list[Any] = [None, (InternalError, "Rank 0 failed where it alone was at work; see its traceback.")]
    try:
        if dist.get_rank() == 0:
            outcome = [make(), None]
    except LoaderError as error:
        # Not the error itself: where errors travel with their causes (tblib), these may not pickle.
        outcome = [None, (type(error), str(error))]
        raise
    finally:
        dist.broadcast_object_list(outcome, src=0)
    value, failure = outcome
    if failure is not None:
        raise failure[0](failure[1])
    return value  # type: ignore[no-any-return]
