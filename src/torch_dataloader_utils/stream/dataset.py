"""The data set that torch sees: an IterableDataset that plans its passes, keeps its position, suits any DataLoader."""

import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NoReturn

from torch.utils.data import IterableDataset, get_worker_info

from torch_dataloader_utils._core.arguments import check_epoch
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.position import Position
from torch_dataloader_utils._observe.callbacks import LoaderCallback
from torch_dataloader_utils._runtime.user_warning import warn_user
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.stream.callers import collates_anew, is_asked_by_torchdata, is_asked_by_transformers
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.open_passes import closed_at_exit
from torch_dataloader_utils.stream.plan_protocols import Plan, PlanSource
from torch_dataloader_utils.stream.progress import Pass, Progress
from torch_dataloader_utils.stream.rank_comparison import ComparedPasses, data_record
from torch_dataloader_utils.stream.ranks import check_running, running_ranks
from torch_dataloader_utils.stream.transport.sendable import with_sendable_results
from torch_dataloader_utils.stream.transport.shared_state import SharedEpoch, SharedPasses
from torch_dataloader_utils.stream.worker import Pipeline, WorkerStream


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """What a data set runs: planner, reader and shaper, and its rank.

    num_processes: worker processes of its loader; 0 decodes in threads, and the topology then has 1 worker.
    credentials: the user's function that gives storage credentials; workers call it too.
    start_method: how worker processes start if the caller does not say; None leaves that to Python.
    peers: the global ranks that this one is compared with, () for all of the process group; None for no comparison.
    compared: the options that these need to have alike, as texts.
    """

    planner: PlanSource
    pipeline: Pipeline
    topology: Topology
    rank: int
    num_processes: int
    decode: DecodeOptions
    callbacks: tuple[LoaderCallback, ...] = ()
    credentials: Callable[..., Any] | None = None
    start_method: str | None = None
    peers: tuple[int, ...] | None = None
    compared: Mapping[str, str] = field(default_factory=dict)


class TableDataset(IterableDataset[Any]):
    """Batches of one rank, as an iterable data set of torch.

    In a plain DataLoader use batch_size=None; it may have any number of workers: the plan is made for as many as
    there are. Epochs reach persistent workers through shared memory, and a state that was loaded serves the first pass
    of each worker. The state protocol is that of torchdata's StatefulDataLoader; `create_dataloader` gives a loader
    that has it itself.
    """

    def __init__(self, stages: Stages) -> None:
        super().__init__()
        stages.topology.check_rank(stages.rank)
        self.stages = stages
        self.progress = Progress(self.planner.identity, self.topology, self.rank)
        self.compared = None if stages.peers is None else ComparedPasses(stages.peers, stages.compared)
        self._shared_epoch = SharedEpoch()
        self._seen_epoch = 0
        self._shared_passes = SharedPasses()
        # How many loaded states this copy of the data set knows of; the trainer's copy may have more.
        self._seen_load = 0

    @property
    def planner(self) -> PlanSource:
        """What makes the plans."""
        return self.stages.planner

    @property
    def pipeline(self) -> Pipeline:
        """What reads row groups and shapes batches."""
        return self.stages.pipeline

    @property
    def topology(self) -> Topology:
        """Ranks, workers and the size of batches."""
        return self.stages.topology

    @property
    def rank(self) -> int:
        """The rank that this data set reads for."""
        return self.stages.rank

    @property
    def epoch(self) -> int:
        """The epoch of the present or next pass."""
        return self.progress.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass, from 0; call it on every rank with the same number.

        A position that was loaded for this very epoch is kept; any other is given up.

        Raises:
            ConfigTypeError: no whole number. ConfigError: one that is negative, or does not fit into 64 bits.
        """
        epoch = check_epoch(epoch)
        self._shared_epoch.value = epoch
        self._shared_passes.forget()
        self._seen_epoch = epoch
        self.progress.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position as a JSON-able dict under 1 kB, the same on every rank: see the page on resuming.

        Raises:
            ConfigError: workers of a DataLoader read this data set, and only they know how far they are.
        """
        if get_worker_info() is None and self._shared_passes.has_begun:
            raise ConfigError(
                "Workers of a DataLoader read this data set, and how far they are is not known here. Take states from "
                "the loader that create_dataloader gives, or from torchdata's StatefulDataLoader; after a pass, "
                "set_epoch() to the next epoch first."
            )
        # torchdata takes one state after the last batch and another after the end of the pass, and they must differ.
        is_for_torchdata = is_asked_by_torchdata(sys._getframe(1))
        return self.progress.state_for_torchdata() if is_for_torchdata else self.progress.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` stood, on this data set's own topology.

        Warns of what the plan of the rest has that none of the topology before had, such as rows that come twice.

        Raises:
            CheckpointMismatchError: the state belongs to other data or options, or was changed.
        """
        in_worker = get_worker_info() is not None
        self.progress.load_state_dict(state, self.planner.counted, in_worker=in_worker)
        if in_worker:
            return
        self._seen_load = self._shared_passes.count_load()
        self._shared_epoch.value = self.progress.epoch
        self._seen_epoch = self.progress.epoch
        position = self.progress.next_position(self.topology)
        if position.history:
            for problem in self.planner.problems(position):
                warn_user(problem)

    def shard_rows(self, num_shards: int, index: int, contiguous: bool = False) -> "TableDataset":
        """One shard of this data set, for `wrappers.streaming_shard`: nothing is read that it does not keep.

        In turn, the shards of rank r of R are the ranks r, r + R, r + 2 R, ... of R * num_shards: chunks are dealt in
        turn and levelled, so all shards take equal steps. (Single rows in turn would make every shard decode all.)
        Contiguous, a shard is one span of neighbouring rows in stored order, which shuffling then stays within; sizes
        differ by at most one row. Spans of spans and ranks of ranks nest, in any order. Over all shards (of all
        ranks) every row comes once.

        The shard begins at the present epoch. Its states are its own.

        Raises:
            ConfigError: no such shard; contiguous without row counts; a split strategy without rank arguments.
        """
        if not 0 <= index < num_shards:
            raise ConfigError(f"shard {index} of {num_shards} does not exist: index must be in [0, num_shards).")
        planner, topology, rank = self.planner, self.topology, self.rank
        if contiguous:
            planner = planner.span(num_shards, index)
        elif planner.assigns_every_row_once:
            rank += topology.num_ranks * index
            topology = replace(topology, num_ranks=topology.num_ranks * num_shards)
        else:
            raise ConfigError(
                f"Split strategy {planner.options.strategy} has no rank arguments: every rank reads everything, so "
                "shards in turn would repeat rows. Give generate() num_ranks and rank, or shard with contiguous=True."
            )
        # Shards are those of a wrapper, which may give any of them to any rank.
        shard = TableDataset(replace(self.stages, planner=planner, topology=topology, rank=rank, peers=None))
        shard.set_epoch(self.epoch)
        return shard

    def check_ranks(self) -> None:
        """Check that torch.distributed, if it is up by now, runs the ranks that this data set was made for.

        Raises:
            ConfigError: see `check_running`.
        """
        if self.compared is not None and not self.compared.peers:
            check_running(self.topology.num_ranks, self.rank)

    def compared_with_peers(self, batches: Iterator[Any], position: Position, plan: Plan) -> Iterator[Any]:
        """The batches of a pass from `position` on; other ranks that read other things are found while they are given.

        Raises, with a batch:
            ConfigError, DataError, CheckpointMismatchError: see `Comparison.check`.
        """
        if self.compared is None or running_ranks() < 2:
            return batches
        planner, record, place, left = self.planner, self._data_record, None, None
        # Elsewhere ranks may differ in steps, and so in where they stand.
        if plan.rank_steps is not None and planner.options.rank_sharding == "rows" and self.compared.compares_places:
            log = "; ".join(f"{each.topology}, {each.steps} steps" for each in position.segments) or "none"
            record = {**record, "epoch": str(position.epoch), "log": log}
            place, left = position, plan.rank_steps[self.rank] - position.segment.steps_of(self.rank)
        return self.compared.watch(batches, record, place, left)

    @cached_property
    def _data_record(self) -> dict[str, str]:
        return data_record(self.planner.inventory)

    def plan(self) -> Any:
        """The plan of the pass that would begin now (an EpochPlan): print `dataset.plan().explain()`."""
        return self.planner.plan(self.progress.next_position(self.topology))

    def __len__(self) -> int:
        """Batches of this rank in an epoch.

        Raises:
            TypeError: row counts are not known, so only reading can tell.
        """
        return count_batches(self.planner, self.progress.next_position(self.topology), self.rank)

    def __getitem__(self, index: object) -> NoReturn:
        """Refuses what torch answers with a bare NotImplementedError.

        Raises:
            ConfigTypeError: always.
        """
        raise ConfigTypeError(
            f"{type(self).__name__}[{index!r}]: its batches come in the order of the plan and have no numbers. Iterate "
            "it, or use RowDataset, whose rows are taken by number."
        )

    def __repr__(self) -> str:
        place = f"rank {self.rank} of {self.topology.num_ranks}, epoch {self.epoch}"
        return f"<{type(self).__name__} {self.planner}; {place}>"

    def __iter__(self) -> Iterator[Any]:
        """The batches of this rank or, inside a DataLoader worker, that worker's part of them.

        Raises:
            ConfigError: a DataLoader would make batches of these batches.
        """
        if is_asked_by_transformers(sys._getframe(1)):
            raise ConfigError(
                f"Trainer(train_dataset={type(self).__name__}) would collate batches as if they were rows, and shard "
                'them again. Return the loader of create_dataloader(..., num_ranks="auto") from '
                "get_train_dataloader of a Trainer of your own (get_eval_dataloader likewise), as "
                "torch_dataloader_utils.integrations.transformers shows, and pass no train_dataset."
            )
        if collates_anew(sys._getframe(1)):
            raise ConfigError(
                f"A DataLoader with a batch_size of its own would make batches of batches: {type(self).__name__} gives "
                f"batches already, of {self.topology.batch_size} rows. Write DataLoader(dataset, batch_size=None), and "
                "say batch_size= to the data set; or use create_dataloader."
            )
        return closed_at_exit(self._batches())

    def _batches(self) -> Generator[Any]:
        info = get_worker_info()
        if info is None:
            self.check_ranks()
        worker, num_workers = (info.id, info.num_workers) if info is not None else (0, 1)
        self._follow_trainer(None if info is None else worker)
        run = self.progress.begin(replace(self.topology, num_workers=num_workers), None if info is None else worker)
        plan = self.planner.plan(run.position)
        index = worker if plan.rank_steps is None else run.position.segment.steps_of(self.rank) % num_workers
        work = plan.worker_inputs(self.rank)[index]
        pipeline = self.pipeline
        if info is not None:
            pipeline = replace(pipeline, functions=with_sendable_results(pipeline.functions))
        batches = counted(WorkerStream(work, pipeline, self.stages.decode), run, self.progress, index)
        yield from batches if info is not None else self.compared_with_peers(batches, run.position, plan)

    def _follow_trainer(self, worker: int | None) -> None:
        """Take over what was set in the trainer's process since this copy of the data set last looked.

        Raises:
            ConfigError: a state was loaded there, which does not reach a worker that runs.
        """
        passes, epoch = self._shared_passes, self._shared_epoch.value
        if passes.loads != self._seen_load:
            raise ConfigError(
                "A state was loaded into a data set that persistent workers of a DataLoader read already: it does not "
                "reach them. Load it before the first pass, make a new DataLoader, or use create_dataloader."
            )
        has_begun = passes.has_begun if worker is None else not passes.begin(worker)
        if has_begun and not self.progress.is_of_worker:
            # Each new worker gets a copy from before the pass in which the loaded state was used up.
            self.progress.forget_loaded()
        if epoch != self._seen_epoch:
            self._seen_epoch = epoch
            self.progress.set_epoch(epoch)


def counted(
    stream: WorkerStream, run: Pass, progress: Progress, worker: int, ready: Callable[[Any], Any] | None = None
) -> Iterator[Any]:
    """The batches of one worker; each is counted in `run` when it is given out, and the last one finishes the epoch.

    ready: changes each batch (pins it, moves it) before it is counted: if that fails, the batch was not received.
    """
    left = stream.num_batches
    if left == 0:
        progress.finish(run)
    for batch in stream if ready is None else map(ready, stream):
        if left is None:
            run.received_from(worker, stream.cursor)
        else:
            run.received()
            left -= 1
            if left == 0:
                progress.finish(run)
        yield batch
    progress.end(run)


def count_batches(planner: PlanSource, position: Position, rank: int) -> int:
    """Batches of a rank in the epoch of `position`, those already received included.

    Raises:
        TypeError: row counts are not known.
    """
    steps = planner.plan(position).rank_steps
    if steps is None:
        raise TypeError(
            "The number of batches is not known: some row counts are not. Plan with count_rows='auto', or iterate."
        )
    return steps[rank] + sum(segment.steps_of(rank) for segment in position.history)
