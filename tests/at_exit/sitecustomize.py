"""Python imports this at its start: a job says at its end which threads of gloo are left.

Such a thread may abort the process while the interpreter shuts down: docs/how-to/ddp.md, "When a job ends".
"""

import atexit
import sys
from pathlib import Path


def say_what_is_left() -> None:
    """Write the names of gloo's threads to stderr."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    left = [name for name in names if "gloo" in name]
    if left:
        print(f"{sys.argv} leaves threads: {left}", file=sys.stderr)


atexit.register(say_what_is_left)
