"""Which rank this process is: the one function that looks at torch.distributed and at the environment."""

import os
import warnings

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from torch_dataloader_utils.errors import ConfigError


def resolve_ranks(num_ranks: int | str, rank: int) -> tuple[int, int]:
    """(num_ranks, rank); "auto" asks torch.distributed if it is up, else RANK and WORLD_SIZE, else gives (1, 0).

    Warns when a loader for one rank is built while torch.distributed runs several: each would read everything.

    Raises:
        ConfigError: num_ranks is neither "auto" nor an int.
    """
    running = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 0
    if num_ranks == "auto":
        if running:
            return running, dist.get_rank()
        return int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if not isinstance(num_ranks, int):
        raise ConfigError(f'num_ranks={num_ranks!r}: pass the number of training processes, or "auto".')
    if num_ranks == 1 and running > 1:
        warnings.warn(
            f"num_ranks=1, but torch.distributed runs {running} ranks: each of them would read every row. Pass "
            'num_ranks="auto", or num_ranks=dist.get_world_size() and rank=dist.get_rank().',
            UserWarning,
            stacklevel=3,
        )
    return num_ranks, rank


def counting_part(num_ranks: int, rank: int) -> tuple[int, int]:
    """Which part of a shared count is this process's: (rank, num_ranks) with a process group of that size, else all."""
    if num_ranks > 1 and dist.is_available() and dist.is_initialized() and dist.get_world_size() == num_ranks:
        return rank, num_ranks
    return 0, 1


def add_over_ranks(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The sum over all ranks of the default process group; every rank must call it."""
    backend_needs_cuda = dist.get_backend() == "nccl"
    tensor = torch.from_numpy(counts.copy())
    tensor = tensor.cuda() if backend_needs_cuda else tensor
    dist.all_reduce(tensor)
    total: npt.NDArray[np.int64] = tensor.cpu().numpy()
    return total
