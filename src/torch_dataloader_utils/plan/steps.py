"""Count the steps that a rank takes in an epoch, and the rows of each batch."""

from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSizes:
    """Rows of each batch of one rank: `batch_rows` in all steps except the last `len(tail)` steps.

    repeated: 1 if the last batch is a single row that another batch has too, else 0.
    """

    batch_rows: int
    steps: int
    tail: tuple[int, ...] = ()
    repeated: int = 0

    @property
    def rows(self) -> int:
        """Number of rows that the rank delivers, repeats not counted."""
        return self.batch_rows * (self.steps - len(self.tail)) + sum(self.tail) - self.repeated

    def of_worker(self, worker: int, num_workers: int) -> "StepSizes":
        """Return the sizes of one worker's batches: steps worker, worker + num_workers, ..."""
        first_tail = self.steps - len(self.tail)
        tail = tuple(rows for step, rows in enumerate(self.tail, start=first_tail) if step % num_workers == worker)
        owns_last = self.steps > 0 and (self.steps - 1) % num_workers == worker
        return StepSizes(
            batch_rows=self.batch_rows,
            steps=batches_of_worker(self.steps, worker, num_workers),
            tail=tail,
            repeated=self.repeated if owns_last else 0,
        )

    def rows_before(self, step: int) -> int:
        """Return the number of rows in the first `step` batches, repeats counted."""
        in_tail = max(0, step - (self.steps - len(self.tail)))
        return self.batch_rows * (step - in_tail) + sum(self.tail[:in_tail])

    def rows_received(self, steps: int, worker: int, num_workers: int) -> int:
        """Return the number of rows of one worker in the first `steps` steps of the rank, repeats counted."""
        done = batches_of_worker(min(steps, self.steps), worker, num_workers)
        return self.of_worker(worker, num_workers).rows_before(done)


def spans_left(sizes: StepSizes, steps: int, num_workers: int) -> list[tuple[int, int]]:
    """Return [begin, stop) of each worker's rows after `steps` steps, numbered over all workers of the rank."""
    spans, begin = [], 0
    for worker in range(num_workers):
        mine = sizes.of_worker(worker, num_workers)
        spans.append((begin + sizes.rows_received(steps, worker, num_workers), begin + mine.rows))
        begin += mine.rows
    return spans


def batches_of_worker(steps: int, worker: int, num_workers: int) -> int:
    """Return how many of the first `steps` steps `worker` takes: max(0, ceil((steps - worker) / num_workers))."""
    return max(0, -(-(steps - worker) // num_workers))


def count_steps(rank_rows: Int64s, topology: Topology, *, equal: bool) -> Int64s:
    """Return the number of steps of every rank, int64 [num_ranks].

    equal: all ranks take the same steps, enough for the rank with most rows (or, with drop_last, as many as the rank
    with fewest rows has full batches). Otherwise each rank takes the steps that its own rows fill.
    """
    size = topology.batch_size
    steps = rank_rows // size if topology.drop_last else -(-rank_rows // size)
    if equal:
        steps = np.full_like(steps, steps.min() if topology.drop_last else steps.max())
    return steps


def step_sizes(rows: int, steps: int, batch_rows: int) -> StepSizes:
    """Return the batch sizes of a rank that has `rows` rows and must take `steps` steps.

    No row is dropped, and a row is repeated in two corner cases only:

        rows=10 steps=3 batch_rows=4      4 4 2
        rows=8  steps=3 batch_rows=4      4 3 1     another rank has 9 rows
        rows=3  steps=4 batch_rows=1      1 1 1 1   the last one is a repeat
        rows=0  steps=1 batch_rows=4      1         a repeat: the rank has no rows

    Rows beyond steps * batch_rows are not delivered (drop_last).
    """
    left = rows - (steps - 1) * batch_rows
    if steps == 0 or left >= batch_rows:
        return StepSizes(batch_rows=batch_rows, steps=steps)
    if left > 0:
        return StepSizes(batch_rows=batch_rows, steps=steps, tail=(left,))
    if rows == 0 or batch_rows == 1:
        return StepSizes(batch_rows=batch_rows, steps=steps, tail=(1,), repeated=1)
    return StepSizes(batch_rows=batch_rows, steps=steps, tail=(batch_rows - 1, 1))
