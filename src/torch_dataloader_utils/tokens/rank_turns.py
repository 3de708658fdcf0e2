"""One rank builds the files that several ranks need, while the others wait."""

import contextlib
import os
from collections.abc import Iterator

import torch.distributed as dist

from torch_dataloader_utils.tokens.config import IndexBuilder


@contextlib.contextmanager
def take_turns(builder: IndexBuilder) -> Iterator[None]:
    """Run the block on the building ranks first, and on the others once those are done.

    "job" builds on rank 0, for a cache that all nodes share; "node" on local rank 0 of each node, for caches on local
    disks; "lock" does nothing here: the lock of the cache decides. Every rank passes exactly one barrier, also when
    its block raises, so that no rank waits for ever; the others then find no cache and build for themselves.
    """
    if builder == "lock" or not (dist.is_available() and dist.is_initialized()):
        yield
        return
    if _is_builder(builder):
        try:
            yield
        finally:
            dist.barrier()
    else:
        dist.barrier()
        yield


def _is_builder(builder: IndexBuilder) -> bool:
    if builder == "job":
        return dist.get_rank() == 0
    return int(os.environ.get("LOCAL_RANK", dist.get_rank())) == 0
