"""Ranks of a real process group, each a process of its own."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANKS = 2


def run_ranks(job: Callable[..., None], meeting: Path, *args: Any) -> list[Any]:
    """What each rank answers: `job(rank, meeting, *args, answer)` in a process of its own."""
    fork = multiprocessing.get_context("fork")
    pipes = [fork.Pipe() for _ in range(RANKS)]
    children = [fork.Process(target=job, args=(rank, str(meeting), *args, pipes[rank][1])) for rank in range(RANKS)]
    for child in children:
        child.start()
    answers = [ours.recv() if ours.poll(200) else None for ours, _ in pipes]
    for child in children:
        child.join(60)
        child.kill()
    return answers
