"""Other threads that come in at the worst moment, every time."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any


@contextmanager
def between_calls_in(module: ModuleType, other: Callable[[], object]) -> Iterator[None]:
    """Inside, wherever code of `module` is about to call something built in, `other` runs first, in its own thread.

    Such a call is done at once, so that these are the places where another thread can come in. Only the end of a `with`
    is left out, which may be that of a lock that `other` needs.
    """

    def come_in(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ != "__exit__" and frame.f_code.co_filename == module.__file__:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(other).result()

    earlier = sys.getprofile()
    sys.setprofile(come_in)
    try:
        yield
    finally:
        sys.setprofile(earlier)
