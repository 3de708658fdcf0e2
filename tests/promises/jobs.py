"""One rank of a job, over each of the ways in which batches get to a trainer.

STREAMS      workers are plain iterators in this thread, taken in turn as a DataLoader takes them
THREADS      the loader decodes in threads
PROCESSES    the loader has worker processes
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.promises.sources import Source
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.stream.worker import WorkerStream

STREAMS, THREADS, PROCESSES = "streams", "threads", "processes"


class Rank:
    """A rank that goes on from a state if there is one."""

    def __init__(
        self, source: Source, options: dict[str, Any], topology: Topology, rank: int, state: Any, transport: str
    ) -> None:
        self.source, self.rank = source, rank
        self.dataset = source.open(
            num_ranks=topology.num_ranks,
            rank=rank,
            batch_size=topology.batch_size,
            drop_last=topology.drop_last,
            num_workers=0 if transport == THREADS else topology.num_workers,
            **options,
            **source.options,
        )
        if state is not None:
            self.dataset.load_state_dict(json.loads(json.dumps(state)))
        self.plan = self.dataset.plan
        self.received: list[list[Any]] = []
        self.batches: Iterator[Any] = (
            _in_turn(self.dataset, topology) if transport == STREAMS else iter(TableDataLoader(self.dataset))
        )
        self.length = None if not source.is_counted else len(self.dataset)

    def take(self, most: int) -> list[list[Any]]:
        """Receive up to so many batches, each as its rows; returns all batches received so far."""
        for batch in itertools.islice(self.batches, most):
            self.received.append(self.source.rows_of(batch))
        return self.received

    @property
    def steps(self) -> int:
        """Steps of the whole epoch."""
        return int(self.plan.rank_steps[self.rank])

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint of this rank would hold."""
        return json.loads(json.dumps(self.dataset.state_dict()))

    def close(self) -> None:
        """Drop what is under way, as a crash would."""
        close = getattr(self.batches, "close", None)
        if close is not None:
            close()


def _in_turn(dataset: Any, topology: Topology) -> Iterator[Any]:
    """Batches of the workers of one rank, one each in turn; a worker that has no more is left out."""
    run = dataset.progress.begin(topology)
    plan = dataset.planner.plan(run.position)
    decode = replace(dataset.stages.decode, threads=1)
    streams = [WorkerStream(work, dataset.pipeline, decode) for work in plan.worker_inputs(dataset.rank)]
    turns = [(worker, stream, iter(stream)) for worker, stream in enumerate(streams)]
    done = run.position.segment.steps_of(dataset.rank)
    is_counted = plan.rank_steps is not None
    at = run.position.segment.next_worker(dataset.rank)
    turns = turns[at:] + turns[:at]
    try:
        while turns and not (is_counted and done == plan.rank_steps[dataset.rank]):
            worker, stream, batches = turns.pop(0)
            batch = next(batches, None)
            if batch is None:
                assert not is_counted
                continue
            turns.append((worker, stream, batches))
            done += 1
            run.count() if is_counted else run.count_with_cursor(worker, stream.cursor)
            if is_counted and done == plan.rank_steps[dataset.rank]:
                dataset.progress.finish(run)
            yield batch
        dataset.progress.finish(run)
    finally:
        for _, _, batches in turns:
            batches.close()
