"""Ranks of a real process group, each a process of its own."""

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

RANKS = 2


def run_ranks(
    job: Callable[..., None], meeting: Path, *args: Any, ranks: int = RANKS, start: str = "fork"
) -> list[Any]:
    """What each rank answers, None if it died: `job(rank, meeting, *args, answer)` in a process of its own.

    start: "forkserver" gives processes that know nothing of this one; conftest.py says what is imported in them.
    """
    context = multiprocessing.get_context(start)
    pipes = [context.Pipe() for _ in range(ranks)]
    children = [context.Process(target=job, args=(rank, str(meeting), *args, pipes[rank][1])) for rank in range(ranks)]
    for child in children:
        child.start()
    for child, (ours, _) in zip(children, pipes, strict=True):
        wait([ours, child.sentinel], 200)
    answers = [ours.recv() if ours.poll() else None for ours, _ in pipes]
    for child in children:
        child.join(60)
        child.kill()
    return answers
