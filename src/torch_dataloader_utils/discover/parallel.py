"""Many small requests at once, results in order, memory bounded."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Executor(Protocol):
    """What `concurrent.futures` executors and dask clients have in common."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Any:
        """A future with `result()` and `cancel()`."""
        ...


def map_in_order(function: Callable[[T], R], items: Iterable[T], executor: Executor, most_pending: int) -> Iterator[R]:
    """The results in the order of the items; at most `most_pending` are under way or waiting to be taken.

    The first error leaves at its place in the order, and what has not begun is cancelled.
    """
    pending: deque[Any] = deque()
    try:
        for item in items:
            pending.append(executor.submit(function, item))
            if len(pending) >= most_pending:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


def chunked(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`, the last one shorter if it must be."""
    source = iter(items)
    return iter(lambda: list(islice(source, size)), [])


def map_all(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """`function` of every item, as one task."""
    return [function(item) for item in items]


def watched(results: Iterable[R], total: int, on_progress: Callable[[int, int], None] | None) -> Iterator[R]:
    """The results as they come; `on_progress`, if there is one, gets (results taken, total) after each."""
    for done, result in enumerate(results, start=1):
        yield result
        if on_progress is not None:
            on_progress(done, total)


def map_watched(
    function: Callable[[T], R],
    items: Sequence[T],
    *,
    threads: int,
    name: str,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[R]:
    """`function` of every item, in their order, by so many threads, which have this name.

    on_progress: called here after each result with (results, items).
    """
    with ThreadPoolExecutor(threads, thread_name_prefix=name) as pool:
        return list(watched(pool.map(function, items), len(items), on_progress))
