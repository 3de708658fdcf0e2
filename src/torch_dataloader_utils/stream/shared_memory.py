"""Shared memory without a name in any file system."""

import errno
import os

import torch
from torch import Tensor
from torch.multiprocessing import get_sharing_strategy

from torch_dataloader_utils._runtime.system_limits import limits_named


def shared_bytes(num_bytes: int) -> Tensor:
    """Shared memory: uint8, shape [num_bytes], zeros. Freed when the last process drops it.

    It reaches other processes as torch's shared tensors do: by fork, as an argument of a new process, or by torch's
    queues. torch's own shared memory has a name in /dev/shm for a moment, so a process killed in that moment leaves it
    behind; and it must fit there, where containers often have 64 MB. On Linux this has no name and no such limit.

    Raises:
        StoreError: a limit of the system (ulimit -n, -f) allows no more of it.
    """
    with limits_named("Memory that is shared with worker processes could not be had"):
        return _shared_bytes(num_bytes)


def _shared_bytes(num_bytes: int) -> Tensor:
    if not hasattr(os, "memfd_create") or get_sharing_strategy() != "file_descriptor":  # type: ignore[no-untyped-call]
        shared: Tensor = torch.zeros(num_bytes, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        return shared
    descriptor = os.memfd_create("tdu_shared")
    try:
        os.ftruncate(descriptor, num_bytes)
        storage = torch.UntypedStorage._new_shared_fd_cpu(descriptor, num_bytes)  # type: ignore[attr-defined]
    except RuntimeError as error:
        if "duplicate" not in str(error):
            raise
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error  # torch does not say so
    finally:
        os.close(descriptor)
    return torch.empty(0, dtype=torch.uint8).set_(storage)
