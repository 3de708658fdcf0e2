"""Run one pass over an epoch, from the plan to the batch that the trainer is given: `epoch_pass`.

    plan      the position, the plan from this position on, and the input of each worker         PassPlan
    stream    a WorkerStream in this process, or worker processes                                BatchSource
    batch     take the next batch; pin it and move it to the trainer's device, if requested
    count     count the batch before it is given, because a state counts the batches given to the trainer; record its
              rows, if the loader is audited
    give      give the batch, after metrics, callbacks, Accelerate and the comparison with other ranks

A loader with threads, a loader with worker processes and a data set in a foreign DataLoader run the same pass.
`PassSetup` has the differences.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.position import Cursor, Position
from torch_dataloader_utils._core.program import WorkerInput, rows_of_batches
from torch_dataloader_utils._observe.audit_file import BatchOrigin, PassRecord
from torch_dataloader_utils._observe.callbacks import EpochRun
from torch_dataloader_utils._observe.meter import LoaderMeter
from torch_dataloader_utils.ranks.compare import PassComparison
from torch_dataloader_utils.ranks.resolve import running_ranks
from torch_dataloader_utils.stream.progress import Pass
from torch_dataloader_utils.stream.trainer_hooks import Placement
from torch_dataloader_utils.stream.transport.torch_workers import pinned
from torch_dataloader_utils.stream.transport.worker_transport import Delivered
from torch_dataloader_utils.stream.worker import WorkerStream

if TYPE_CHECKING:
    from torch_dataloader_utils.plan.epoch_plan import EpochPlan
    from torch_dataloader_utils.stream.dataset import BatchT, TableDataset

_END: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """Plan of one pass of one rank: the plan from a position on, and the input of each worker.

    position: position at the start of the pass. plan: plan from this position on. inputs: input of every worker.
    num_batches: number of all batches of the rank in this pass; None if row counts are not known.
    first_worker: the worker whose batch comes first.
    padding_rows: number of rows that the rank delivers a second time, to take its last step.
    """

    position: Position
    plan: "EpochPlan"
    inputs: tuple[WorkerInput, ...]
    num_batches: int | None
    first_worker: int
    padding_rows: int

    @classmethod
    def of(cls, dataset: "TableDataset", position: Position) -> "PassPlan":
        """Return the plan of a pass of this data set's rank from `position` on."""
        plan = dataset.planner.plan(position)
        inputs = plan.worker_inputs(dataset.rank)
        segment, steps = position.segment, plan.rank_steps
        return cls(
            position=position,
            plan=plan,
            inputs=inputs,
            num_batches=None if steps is None else steps[dataset.rank] - segment.steps_of(dataset.rank),
            first_worker=segment.next_worker(dataset.rank),
            padding_rows=plan.padding_rows(dataset.rank),
        )

    def rest_of(self, dataset: "TableDataset", worker: int, batches: int, cursor: Cursor) -> WorkerInput:
        """Return the input of a worker for the rest of this pass, after the worker's first `batches` batches.

        cursor: place of the worker after these batches; used only if row counts are not known.
        """
        steps = Pass(self.position, dataset.rank, 1)
        if self.num_batches is None:
            if batches:
                steps.count_with_cursor(worker, cursor)
        else:
            # Plan from the step of the worker's next batch, so that the plan begins with this batch.
            turn = (worker - self.first_worker) % len(self.inputs)
            steps = Pass(self.position, dataset.rank, batches * len(self.inputs) + turn)
            steps.count()
        return dataset.planner.plan(steps.position).worker_inputs(dataset.rank)[worker]


class BatchSource(Protocol):
    """Source of the batches of one pass.

    batches: batches as they arrive. num_batches: number of batches; None if row counts are not known.
    worker, cursor, origin: worker, cursor and origin of the last batch. The cursor is valid only if num_batches is
    None, the origin only if origins are noted; ask for the origin once.
    """

    batches: Generator[Any]
    num_batches: int | None
    worker: int

    @property
    def cursor(self) -> Cursor: ...

    @property
    def origin(self) -> BatchOrigin | None: ...


class ThreadSource:
    """Source of the batches of one worker, made in this process."""

    def __init__(self, stream: WorkerStream, worker: int) -> None:
        self._stream = stream
        self.batches = iter(stream)
        self.num_batches = stream.num_batches
        self.worker = worker

    @property
    def cursor(self) -> Cursor:
        """See BatchSource."""
        return self._stream.cursor

    @property
    def origin(self) -> BatchOrigin | None:
        """See BatchSource."""
        return None if self._stream.origins is None else self._stream.origins.take()


class RemoteSource:
    """Source of the batches of worker processes or actors, in the order in which batches are given."""

    def __init__(self, delivered: Generator[Delivered], num_batches: int | None) -> None:
        self.batches = self._unpacked(delivered)
        self.num_batches = num_batches
        self.worker = 0
        self.cursor = (0, 0)
        self.origin: BatchOrigin | None = None

    def _unpacked(self, delivered: Generator[Delivered]) -> Generator[Any]:
        with closing(delivered):
            for self.worker, self.cursor, self.origin, batch in delivered:
                yield batch


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSetup:
    """Settings of one pass.

    topology: topology of the plan. open_source: function that starts the threads or processes that make the batches.
    num_processes: number of worker processes; 0 for threads. meter: counts rows, bytes, requests and times of the pass.
    worker: worker of a foreign DataLoader that gives its own batches; None if all batches of the rank are given.
    in_order: true if batches come in the order of the plan. pins: true if batches are copied to page-locked memory.
    placement: device of the batches, with Accelerate following the pass; None: batches stay where they are.
    """

    topology: Topology
    open_source: Callable[[PassPlan], BatchSource]
    num_processes: int
    meter: LoaderMeter
    worker: int | None = None
    in_order: bool = True
    pins: bool = False
    placement: Placement | None = None


def epoch_pass(dataset: "TableDataset[BatchT]", set_up: Callable[[], PassSetup]) -> "Generator[BatchT]":
    """Yield the batches of one pass. The pass begins when the first batch is requested.

    The epoch is over with the last batch: a state that is taken then names the next epoch.
    """
    # Plan.
    dataset.check_ranks()
    dataset.before_pass()
    setup, progress = set_up(), dataset.progress
    this_pass = progress.begin(setup.topology, setup.worker)
    planned = PassPlan.of(dataset, this_pass.position)
    dataset.foresee(this_pass.position, setup.worker)
    pins, placement = setup.pins and torch.cuda.is_available(), setup.placement
    with (
        _comparing(dataset, planned, setup) as comparison,
        nullcontext()
        if placement is None
        else placement.following(repeats_at_end=planned.padding_rows > 0) as followed,
        setup.meter.watching(_described(dataset, planned, setup)) as watch,
        _recording(dataset, planned, setup) as record,
    ):
        # Stream.
        source = setup.open_source(planned)
        with closing(source.batches) as batches:
            count = source.num_batches
            if count == 0:
                progress.finish(this_pass)
            number = 0
            while True:
                # Batch. Pinning or moving a batch may fail: then the batch was not received.
                with watch.waiting:
                    batch = next(batches, _END)
                    if batch is _END:
                        progress.end(this_pass)
                        break
                    if pins:
                        batch = pinned(batch)
                    if placement is not None:
                        batch = placement.place(batch)
                # Count.
                number += 1
                if record is not None and (origin := source.origin) is not None:
                    record.given(source.worker, origin, in_order=setup.in_order)
                if count is None:
                    this_pass.count_with_cursor(source.worker, source.cursor)
                elif setup.in_order:
                    this_pass.count()
                else:
                    this_pass.count_out_of_order(source.worker)
                if number == count:
                    progress.finish(this_pass)
                # Give.
                watch.given(batch)
                if followed is not None:
                    followed.end_of_dataloader = number == count
                if comparison is not None:
                    comparison.before_batch()
                yield batch
        watch.completed()


def _described(dataset: "TableDataset", planned: PassPlan, setup: PassSetup) -> EpochRun:
    """Describe the pass for callbacks."""
    num_rows = None
    if planned.num_batches is not None:
        num_rows = sum(rows_of_batches(each.program.batching) for each in planned.inputs)
    return EpochRun(
        epoch=planned.position.epoch,
        rank=dataset.rank,
        num_ranks=dataset.topology.num_ranks,
        num_workers=setup.num_processes,
        num_batches=planned.num_batches,
        num_rows=num_rows,
        padding_rows=planned.padding_rows,
        fingerprint=dataset.planner.identity.fingerprint,
    )


def _comparing(
    dataset: "TableDataset", planned: PassPlan, setup: PassSetup
) -> AbstractContextManager[PassComparison | None]:
    """Return a context that compares what the ranks read, if several run. DataLoader workers do not compare."""
    passes, position = dataset.compared, planned.position
    if passes is None or setup.worker is not None or running_ranks() < 2:
        return nullcontext()
    record = dataset.data_record
    # Without row counts, or with rank_sharding="chunks", ranks may differ in steps and so in position.
    has_place = planned.num_batches is not None and dataset.planner.options.rank_sharding == "rows"
    if not has_place or not passes.compares_places:
        return passes.comparing(record, None, None)
    log = "; ".join(f"{each.topology}, {each.steps} steps" for each in position.segments) or "none"
    return passes.comparing({**record, "epoch": str(position.epoch), "log": log}, position, planned.num_batches)


@contextmanager
def _recording(dataset: "TableDataset", planned: PassPlan, setup: PassSetup) -> Iterator[PassRecord | None]:
    """Return a context that records the rows of the pass, if the data set is audited."""
    recorder, position, plan = dataset.recorder, planned.position, planned.plan
    if recorder is None or planned.num_batches is None:
        yield None
        return
    done = position.segment.steps_of(dataset.rank)
    header = {
        "fingerprint": dataset.planner.identity.fingerprint,
        "order": asdict(dataset.planner.identity.options),
        "epoch": position.epoch,
        "rank": dataset.rank,
        "worker": setup.worker,
        "is_blended": dataset.keeps_data,
        "topology": asdict(plan.topology),
        "history": [{"topology": asdict(each.topology), "steps": each.steps} for each in position.history],
        "first_step": done,
        "num_steps": done + planned.num_batches,
        "dropped_rows": plan.dropped_rows,
        "repeated_rows": plan.repeated_rows,
    }
    step_by = 1 if setup.worker is None else plan.topology.num_workers
    record = recorder.begin(dataset.planner.inventory, header, step_by=step_by, first_worker=planned.first_worker)
    try:
        yield record
    finally:
        record.end()
