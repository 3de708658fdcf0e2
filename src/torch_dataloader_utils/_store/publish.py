"""Writing a local file so that readers see the old one or the new one, never a part, whatever happens in between."""

import os
import re
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import BinaryIO

_numbers = count()


def publish(target: Path, write: Callable[[BinaryIO], None]) -> None:
    """Makes `target` what `write` writes: into a file beside it, flushed to the disk, then renamed.

    Of processes that publish one file at the same time the last one wins. What a killed process left half-written
    (.NAME.PID-NUMBER.tmp) is removed by the next one that publishes the same file on this machine.

    Raises:
        OSError: the disk is full, or the directory cannot be written; the old file stays, and nothing else.
    """
    _sweep(target)
    part = target.with_name(f".{target.name}.{os.getpid()}-{next(_numbers)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(part, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _sweep(target: Path) -> None:
    pattern = re.compile(rf"\.{re.escape(target.name)}\.(\d+)-\d+\.tmp")
    for name in os.listdir(target.parent):  # noqa: PTH208 - names are all that is needed
        found = pattern.fullmatch(name)
        if found and not _is_alive(int(found[1])):
            (target.parent / name).unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's
    return True
