"""How much Python a call runs: for tests of growth, which no busy machine can make fail."""

import gc
import sys
from collections.abc import Callable
from typing import Any


def lines_run(call: Callable[[], Any]) -> int:
    """Lines of Python that `call()` runs in this thread, each turn of a loop counted.

    Without the garbage collector, of which hypothesis is told in Python.
    """
    count = 0

    def trace(_frame: Any, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return count
