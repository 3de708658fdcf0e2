"""Shared memory without a name, numbers in it that all processes see, and the sockets through which it is sent."""

import errno
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Sequence
from mmap import mmap
from multiprocessing import util
from multiprocessing.context import get_spawning_popen
from multiprocessing.process import current_process
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.multiprocessing import get_sharing_strategy

from torch_dataloader_utils._runtime.system_limits import limits_named
from torch_dataloader_utils.errors import ConfigError, StoreError


def shared_bytes(num_bytes: int) -> Tensor:
    """Return shared memory: uint8, shape [num_bytes], zeros. Freed when the last process drops it.

    It reaches other processes as torch's shared tensors do: by fork, as an argument of a new process, or by torch's
    queues. torch's own shared memory has a name in /dev/shm for a moment, so a process killed in that moment leaves the
    memory behind; and it must fit into /dev/shm, where containers often have 64 MB. On Linux, this memory has no name
    and no such limit.

    Raises:
        StoreError: a limit of the system (ulimit -n, -f) allows no more memory.
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
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error  # torch does not name the reason
    finally:
        os.close(descriptor)
    return torch.empty(0, dtype=torch.uint8).set_(storage)


class SharedIntegers:
    """int64 numbers in shared memory.

    Workers hold a copy of the data set from the moment they started; with `persistent_workers=True` an attribute
    that the training process sets later never reaches them. Shared memory does, under fork, forkserver and spawn.

    values: int64, shape [numbers].
    """

    __slots__ = ("values",)

    def __init__(self, values: Sequence[int]) -> None:
        num_bytes = torch.int64.itemsize * len(values)
        try:
            memory = shared_bytes(num_bytes)
        except StoreError:
            # Threads need no shared memory, and forked processes see this mapping: it is no file, so no limit applies.
            memory = torch.frombuffer(mmap(-1, num_bytes), dtype=torch.uint8)
        self.values = memory.view(torch.int64).copy_(torch.tensor(values))

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None and not self.values.is_shared():  # type: ignore[no-untyped-call]
            self.values = shared_bytes(self.values.nbytes).view(torch.int64).copy_(self.values)
        return {"values": self.values}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Memory stays shared on its way to a worker. A deep copy, or a copy from a file, gets its own memory.
        values = state["values"]
        self.values = values if values.is_shared() else SharedIntegers(values.tolist()).values


class SharedEpoch:
    """One integer that all processes see."""

    __slots__ = ("_memory",)

    def __init__(self, value: int = 0) -> None:
        self._memory = SharedIntegers([value])

    @property
    def value(self) -> int:
        """Epoch, as last set in any process."""
        return int(self._memory.values[0])

    @value.setter
    def value(self, epoch: int) -> None:
        self._memory.values[0] = epoch


# More workers than a machine runs. Workers beyond count as not begun.
_MOST_WORKERS = 1024


class SharedPasses:
    """Number of states that were loaded, and the workers that have begun a pass since then; in shared memory.

    Attributes that a worker sets on its copy of the data set reach no other process.
    """

    __slots__ = ("_begun", "_loads")

    def __init__(self) -> None:
        self._loads = SharedIntegers([0])
        self._begun = SharedIntegers([0] * _MOST_WORKERS)

    @property
    def loads(self) -> int:
        """Number of states that the trainer's copy has loaded so far."""
        return int(self._loads.values[0])

    def count_load(self) -> int:
        """Count one more loaded state and return its number, from 1."""
        self._loads.values[0] += 1
        self.forget()
        return self.loads

    def forget(self) -> None:
        """Count every worker as not begun again."""
        self._begun.values.zero_()

    @property
    def has_begun(self) -> bool:
        """Whether any worker has begun a pass."""
        return bool(self._begun.values.any())

    def begin(self, worker: int) -> bool:
        """Note that a worker begins a pass; return whether this is the first pass of this worker number."""
        if worker >= _MOST_WORKERS:
            return True
        is_first = not self._begun.values[worker]
        self._begun.values[worker] = 1
        return bool(is_first)


# (process id, directory) of the process that made multiprocessing's directory of sockets; a fork copies the value.
_own: tuple[int, str] | None = None


def check_socket_names() -> None:
    """Raise ConfigError if the names of the sockets would be too long: workers would drop every batch."""
    directory = tempfile.gettempdir()
    longest = len(os.fsencode(f"{directory}/pymp-12345678/listener-12345678"))
    room = 103 if sys.platform == "darwin" else 107
    if hasattr(socket, "AF_UNIX") and longest > room:
        raise ConfigError(
            f"Worker processes need sockets in {directory}, and their names would have {longest} bytes; the system "
            f"allows {room}. Set TMPDIR to a directory with a shorter name, or read with num_workers=0."
        )


def share_temporary_directory() -> str:
    """Return multiprocessing's directory of sockets, made here in the trainer, so that its workers inherit it.

    Otherwise each worker would make its own directory when it first shares a tensor, and remove it at exit; a killed
    worker would leave its directory behind. A process makes a new directory if its present directory belongs to its
    parent, or was removed (some systems clean /tmp from time to time).
    """
    global _own
    config = cast("Any", current_process())._config
    present = config.get("tempdir")
    if _own != (os.getpid(), present) or not Path(present).is_dir():
        config["tempdir"] = None
        _own = os.getpid(), util.get_temp_dir()
    return _own[1]


def sweep_if_orphaned(directory: str) -> None:
    """Let this worker remove the trainer's directory at exit, if its parent has ended by then; call it early.

    The parent is the trainer or, under forkserver, a server that ends with the trainer. The end of the parent changes
    the parent's process id here. The trainer's process id would not do, because a zombie keeps its id.
    """
    parent = os.getppid()

    def sweep() -> None:
        if os.getppid() != parent:
            shutil.rmtree(directory, ignore_errors=True)

    util.Finalize(None, sweep, exitpriority=-200)
