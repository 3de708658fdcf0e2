"""Collectives over the default process group: every rank calls each function."""

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
    """Return (rank, num_ranks) to share a count, if a process group of num_ranks runs; else (0, 1), the whole count."""
    return (rank, num_ranks) if num_ranks > 1 and running_ranks() == num_ranks else (0, 1)


def takes_cpu_tensors() -> bool:
    """Return whether the default process group takes CPU tensors, as with "gloo" or "cpu:gloo,cuda:nccl"."""
    return "cpu:" in dist.get_backend_config()


def add_over_ranks(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the sum over all ranks of the default process group."""
    tensor = torch.from_numpy(counts.copy())
    tensor = tensor if takes_cpu_tensors() else tensor.to(torch.device("cuda", torch.cuda.current_device()))
    dist.all_reduce(tensor)
    total: npt.NDArray[np.int64] = tensor.cpu().numpy()
    return total


def all_or_none(work: Callable[[], T]) -> T:
    """Return the result of `work` on this rank if `work` succeeds on all ranks.

    Else all ranks raise, so that no rank waits for a failed rank. The failing rank re-raises its exception; the others
    raise the same class, naming that rank.
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
    """Return the failures of all ranks as errors that name the rank. failure: failure of this rank."""
    if not add_over_ranks(np.array([failure is not None], dtype=np.int64))[0]:
        return []
    failures: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(failures, None if failure is None else (type(failure), str(failure)))
    return [each[0](f"rank {rank} failed: {each[1]}") for rank, each in enumerate(failures) if each is not None]


def from_rank_zero(make: Callable[[], T]) -> T:
    """Call `make` on rank 0 of the default process group, and return its result on every rank.

    Without a process group, every process calls `make`. An error of rank 0 is raised on all ranks, so that no rank
    waits.
    """
    if running_ranks() <= 1:
        return make()
    outcome: list[Any] = [
        None,
        (InternalError, "Rank 0 failed while the other ranks waited for its result. See the traceback of rank 0."),
    ]
    try:
        if dist.get_rank() == 0:
            outcome = [make(), None]
    except LoaderError as error:
        # Not the error itself: with tblib, errors travel with their causes, which may not pickle.
        outcome = [None, (type(error), str(error))]
        raise
    finally:
        dist.broadcast_object_list(outcome, src=0)
    value, failure = outcome
    if failure is not None:
        raise failure[0](failure[1])
    return value  # type: ignore[no-any-return]
