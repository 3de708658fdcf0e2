"""multiprocessing's directory for the sockets that shared memory is sent through, which nobody is to leave behind."""

import os
import shutil
import socket
import sys
import tempfile
from multiprocessing import util
from multiprocessing.process import current_process
from pathlib import Path
from typing import Any, cast

from torch_dataloader_utils.errors import ConfigError

# (process id, directory) of the process that made the directory; a fork has a copy of this.
_own: tuple[int, str] | None = None


def check_socket_names() -> None:
    """Raises ConfigError if the names of the sockets would be too long: workers would drop every batch."""
    directory = tempfile.gettempdir()
    longest = len(os.fsencode(f"{directory}/pymp-12345678/listener-12345678"))
    room = 103 if sys.platform == "darwin" else 107
    if hasattr(socket, "AF_UNIX") and longest > room:
        raise ConfigError(
            f"Worker processes need sockets in {directory}, and their names would have {longest} bytes; the system "
            f"allows {room}. Set TMPDIR to a directory with a shorter name, or read with num_workers=0."
        )


def share_temporary_directory() -> str:
    """The directory, made here in the trainer, so that its workers inherit it.

    Otherwise each worker would make one of its own when it first shares a tensor, and remove it when it exits; a worker
    that is killed would leave it behind. A process makes another one where the one that it has is that of its parent,
    or was removed, as where /tmp is cleaned from time to time.
    """
    global _own
    config = cast("Any", current_process())._config
    present = config.get("tempdir")
    if _own != (os.getpid(), present) or not Path(present).is_dir():
        config["tempdir"] = None
        _own = os.getpid(), util.get_temp_dir()
    return _own[1]


def sweep_if_orphaned(directory: str) -> None:
    """Have this worker remove the trainer's directory when it exits, if its parent has ended by then; call it early.

    The parent is the trainer or, under forkserver, a server that ends with the trainer. Its death changes the
    parent's process id here; that of the trainer would not tell, because a zombie keeps it.
    """
    parent = os.getppid()

    def sweep() -> None:
        if os.getppid() != parent:
            shutil.rmtree(directory, ignore_errors=True)

    util.Finalize(None, sweep, exitpriority=-200)
