"""Python imports this at its start: a job says at its end which threads of gloo are left.

Such a thread may abort the process while the interpreter shuts down: docs/how-to/ddp.md, "When a job ends".
"""

import atexit
import sys
import time
from contextlib import suppress
from pathlib import Path

_END_SEC = 10.0  # threads of a group that is gone are a moment on their way


def say_what_is_left() -> None:
    """Write the names of gloo's threads to stderr."""
    deadline = time.monotonic() + _END_SEC
    while left := [name for name in names_of_threads() if "gloo" in name]:
        if time.monotonic() > deadline:
            print(f"{sys.argv} leaves threads: {left}", file=sys.stderr)
            return
        time.sleep(0.01)


def names_of_threads() -> list[str]:
    """Of all threads of this process, where the system tells."""
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # it has ended meanwhile
            names.append(path.read_text().strip())
    return names


atexit.register(say_what_is_left)
