"""Ends a process at each point of a piece of work, and fills the disk at each byte."""

import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

# What changes or looks at the disk, as Python's audit events name it.
_EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.truncate", "os.listdir", "os.scandir"}


def crash_everywhere(work: Callable[[], object], check: Callable[[], None]) -> int:
    """Runs `work` in forked children that end, without any clean-up, just before the first, second, ... of its steps
    on the disk, and `check` here after each; gives how many steps there are. Needs a process without threads."""
    number = 0
    while True:
        number += 1
        pid = os.fork()
        if pid == 0:
            _die_at(number)
            work()
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        check()
        if status == 0:
            return number - 1


def fill_disk_everywhere(work: Callable[[], object], check: Callable[[], None], sizes: range) -> None:
    """Runs `work` in forked children that can write files of at most so many bytes, and `check` here after each."""
    for size in sizes:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            code = 0
            try:
                work()
            except OSError:
                code = 3  # reported, not hidden
            os._exit(code)
        os.waitpid(pid, 0)
        check()


def _die_at(number: int) -> None:
    left = [number]

    def hook(event: str, arguments: Any) -> None:
        if event in _EVENTS and _is_ours(arguments):
            left[0] -= 1
            if left[0] == 0:
                os._exit(77)

    sys.addaudithook(hook)


def _is_ours(arguments: Any) -> bool:
    # Modules that Python imports on the way are files too.
    return bool(arguments) and "crash-here" in str(arguments[0])
