"""Run many small jobs in parallel, with results in order and bounded memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice, repeat, takewhile
from typing import TypeVar

from torch_dataloader_utils._runtime.threads import Executor, Future, QuickWork, ThreadPool

T = TypeVar("T")
R = TypeVar("R")

OnProgress = Callable[[int, int], None]
"""Function that is called with (results so far, total)."""

_ITEMS_A_TASK = 16
_FIRST_BATCHES = (1, 2, 4, 8)  # small, so that slow items soon go to threads


@contextmanager
def threads_for(count: int, name: str) -> Iterator[Executor]:
    """Yield a pool of `count` threads with this name, and wait for its work at the end.

    After an error or Ctrl-C the pool is not waited for: a request to a failing store may be retried for minutes.
    """
    pool = ThreadPool(count, name)
    is_done = False
    try:
        yield pool
        is_done = True
    finally:
        pool.shutdown(wait=is_done, cancel_futures=True)


def map_in_order(function: Callable[[T], R], items: Iterable[T], executor: Executor, most_pending: int) -> Iterator[R]:
    """Yield the results in the order of the items; at most `most_pending` items are under way or not yet yielded.

    The first error is raised at its place in the order, and jobs that have not begun are cancelled.
    """
    pending: deque[Future] = deque()
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


def map_quick(function: Callable[[T], R], items: Iterable[T], executor: Executor, most_tasks: int) -> Iterator[R]:
    """Yield the results in the order of the items, computed in this thread while items are quick, then in the executor.

    In the executor sixteen items are one task (item by item, local files took 1.7 times as long), and at most
    `most_tasks` tasks are under way or not yet yielded. An error in a task is raised before the results of the task's
    earlier items.
    """
    quick, batches = QuickWork(), in_batches(items, chain(_FIRST_BATCHES, repeat(_ITEMS_A_TASK)))
    while not quick.is_over and (batch := next(batches, None)):
        yield from quick.each(function, batch)
    tasks = map_in_order(partial(_map_all, function), batches, executor, most_tasks)
    yield from chain.from_iterable(tasks)


def in_batches(items: Iterable[T], sizes: Iterable[int]) -> Iterator[list[T]]:
    """Return an iterator of lists of items, in order. sizes: Number of items of each list; the last may be shorter."""
    source = iter(items)
    return takewhile(bool, (list(islice(source, size)) for size in sizes))


def _map_all(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    return list(map(function, items))


def watched(results: Iterable[R], total: int, on_progress: OnProgress | None) -> Iterator[R]:
    """Yield the results as they come; `on_progress`, if given, is called with (results so far, total) after each."""
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
    on_progress: OnProgress | None = None,
) -> list[R]:
    """Return the results of `function` for all items, in their order, by a pool of threads with this name.

    on_progress: Called in the caller's thread after each result with (results, items).
    """
    with threads_for(threads, name) as pool:
        return list(watched(map_in_order(function, items, pool, max(1, len(items))), len(items), on_progress))
