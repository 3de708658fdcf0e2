"""The data set that torch sees: an IterableDataset that plans its passes, keeps its position, suits any DataLoader."""

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from torch.utils.data import IterableDataset, default_collate, get_worker_info

from torch_dataloader_utils._core.arguments import check_epoch
from torch_dataloader_utils._core.option_values import RayWorkers
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.position import Position
from torch_dataloader_utils._observe.callbacks import LoaderCallback
from torch_dataloader_utils._observe.meter import LoaderMeter
from torch_dataloader_utils._runtime.user_warning import warn_user
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.ranks.compare import ComparedPasses, data_record
from torch_dataloader_utils.ranks.resolve import check_running
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.epoch_pass import PassSetup, PassWork, ThreadSource, epoch_pass
from torch_dataloader_utils.stream.open_passes import closed_at_exit
from torch_dataloader_utils.stream.progress import Progress
from torch_dataloader_utils.stream.transport.sendable import with_sendable_results
from torch_dataloader_utils.stream.worker import Pipeline, WorkerStream

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from torch_dataloader_utils._store.foresight import Foresight
    from torch_dataloader_utils.plan.epoch_plan import EpochPlan
    from torch_dataloader_utils.plan.planner import Planner

    BatchT = TypeVar("BatchT", covariant=True, default=Any)
    """A batch, in the output format or as the user's functions return it."""
else:  # the standard library has defaults of type variables from Python 3.13 on
    from typing import TypeVar

    BatchT = TypeVar("BatchT", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The stages of one data set: its planner, its reader and shaper, and which rank it reads for.

    num_processes: worker processes of its loader; 0 decodes in threads, and the topology then has 1 worker.
    workers: where these run in actors of Ray instead.
    sent: functions of the user that workers call where they read.
    start_method: how worker processes start if the caller does not say; None leaves that to Python.
    peers: the global ranks that this one is compared with, () for all of the process group; None for no comparison.
    compared: the options that these need to have alike, as texts.
    row_tokens: tokens of each row, where rows are packed samples; else 0.
    foresight: is told what each pass and the next epochs read; None where nobody needs to know.
    """

    planner: "Planner"
    pipeline: Pipeline
    topology: Topology
    rank: int
    num_processes: int
    decode: DecodeOptions
    workers: RayWorkers | None = None
    callbacks: tuple[LoaderCallback, ...] = ()
    sent: tuple[Callable[..., Any], ...] = ()
    start_method: str | None = None
    peers: tuple[int, ...] | None = None
    compared: Mapping[str, str] = field(default_factory=dict)
    row_tokens: int = 0
    foresight: "Foresight | None" = None


class TableDataset(IterableDataset[BatchT]):
    """Batches of one rank, as an iterable data set of torch.

    In a plain DataLoader use batch_size=None; it may have any number of workers: the plan is made for as many as
    there are. Epochs reach persistent workers through shared memory, and a state that was loaded serves the first pass
    of each worker. `create_dataloader` gives a loader that has states itself; for torchdata's StatefulDataLoader there
    is `integrations.torchdata.for_torchdata`.
    """

    def __init__(self, stages: Stages) -> None:
        super().__init__()
        stages.topology.check_rank(stages.rank)
        self.stages = stages
        self.progress = Progress(self.planner.identity, self.topology, self.rank)
        if stages.foresight is not None:
            weakref.finalize(self, stages.foresight.end)
        # Set where something else is computed from the plans, such as a blend.
        self.keeps_data = False
        self.compared = None if stages.peers is None else ComparedPasses(stages.peers, stages.compared)

    @property
    def planner(self) -> "Planner":
        """Makes the plan of any position."""
        return self.stages.planner

    @property
    def pipeline(self) -> Pipeline:
        """Reads row groups and shapes batches."""
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
        self.progress.set_epoch(check_epoch(epoch))

    def state_dict(self) -> dict[str, Any]:
        """The position as a JSON-able dict: see the page on resuming.

        It is the same on every rank that has taken as many steps. It takes about 500 bytes, and less than 1 kB for 200
        topologies in one epoch. Where row counts are not known, it has the places of this rank alone.

        Raises:
            ConfigError: workers of a DataLoader read this data set, and only they know how far they are; or batches
                came out of order (`in_order=False`).
        """
        return self.progress.state_dict()

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
        position = self.next_position
        if position.history:
            for problem in self.planner.problems(position):
                warn_user(problem)

    def shard_rows(self, num_shards: int, index: int, contiguous: bool = False) -> "TableDataset[BatchT]":
        """One shard of this data set, for `wrappers.streaming_shard`: nothing is read that it does not keep.

        By default the shards of rank r of R are the ranks r, r + R, r + 2 R, ... of R * num_shards: chunks are sliced
        and balanced over all of these, so all shards take equal steps. (Every num_shards-th row would make every shard
        decode all of them.) Contiguous, a shard is one span of neighbouring rows in stored order, which shuffling then
        stays within; sizes differ by at most one row. Spans of spans and ranks of ranks nest, in any order. Over all
        shards (of all ranks) every row comes once.

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
                "such shards would repeat rows. Give generate() num_ranks and rank, or shard with contiguous=True."
            )
        # Shards are those of a wrapper, which may give any of them to any rank.
        shard: TableDataset[BatchT] = TableDataset(
            replace(self.stages, planner=planner, topology=topology, rank=rank, peers=None)
        )
        shard.set_epoch(self.epoch)
        return shard

    def change_data(self, stages: Stages) -> None:
        """Read other data from the next epoch on; stages: those of this data set, with another planner and pipeline.

        Raises:
            ConfigError: the position is inside an epoch.
        """
        self.progress.change_data(stages.planner.identity)
        self.stages = stages
        self.__dict__.pop("data_record", None)

    def before_pass(self) -> None:
        """Called when a pass begins, before its plan is made; a data set that follows its source looks there then."""

    def check_ranks(self) -> None:
        """Check that torch.distributed, if it is up by now, runs the ranks that this data set was made for.

        Raises:
            ConfigError: see `check_running`. Not in workers of a DataLoader, which do not know.
        """
        if self.compared is not None and not self.compared.peers and get_worker_info() is None:
            check_running(self.topology.num_ranks, self.rank)

    def foresee(self, position: Position, worker: int | None) -> None:
        """Tell a cache of this host what a pass from `position` on reads, by all workers or by one."""
        if self.stages.foresight is not None:
            reads, num_present = self.planner.upcoming(position, self.rank, worker)
            self.stages.foresight.foresee(self.planner.inventory, reads.group, reads.at_bytes, num_present)

    @cached_property
    def data_record(self) -> dict[str, str]:
        """The files and row groups, as ranks compare them."""
        return data_record(self.planner.inventory)

    @property
    def next_position(self) -> Position:
        """Where a pass would begin now."""
        return self.progress.next_position(self.topology)

    @property
    def plan(self) -> "EpochPlan":
        """The plan of the pass that would begin now: print `dataset.plan.explain()`."""
        return self.planner.plan(self.next_position)

    def __len__(self) -> int:
        """Batches of this rank in the present epoch, those already received included.

        Raises:
            TypeError: row counts are not known, so only a pass can count them.
        """
        position = self.next_position
        steps = self.planner.plan(position).rank_steps
        if steps is None:
            raise TypeError(
                "The number of batches is not known: some row counts are not. Plan with count_rows='auto', or iterate."
            )
        return steps[self.rank] + sum(segment.steps_of(self.rank) for segment in position.history)

    def __getitem__(self, index: object) -> NoReturn:
        """Raises ConfigTypeError, always; torch's own class has a bare NotImplementedError here."""
        raise ConfigTypeError(
            f"{type(self).__name__}[{index!r}]: its batches come in the order of the plan and have no numbers. Iterate "
            "it, or use RowDataset, whose rows are taken by number."
        )

    def __repr__(self) -> str:
        place = f"rank {self.rank} of {self.topology.num_ranks}, epoch {self.epoch}"
        return f"<{type(self).__name__} {self.planner}; {place}>"

    def __iter__(self) -> Iterator[BatchT]:
        """The batches of this rank or, inside a DataLoader worker, that worker's part of them.

        Raises:
            ConfigError: a DataLoader would make batches of these batches, or is torchdata's without its adapter.
        """
        asking = sys._getframe(1)
        refuse_collation(self, asking)
        _refuse_torchdata(self, asking)
        return self.begin_pass()

    def begin_pass(self) -> Iterator[BatchT]:
        """As `iter(dataset)`, for adapters, which have to check who asks for it themselves."""
        return closed_at_exit(epoch_pass(self, self._set_up))

    def _set_up(self) -> PassSetup:
        """How a pass in somebody else's DataLoader is run: this worker makes its own batches, in its own process."""
        info, meter = get_worker_info(), LoaderMeter()
        worker, num_workers = (None, 1) if info is None else (info.id, info.num_workers)
        self.progress.follow_trainer(worker)

        def open_source(work: PassWork) -> ThreadSource:
            pipeline = self.pipeline
            if worker is not None:
                pipeline = replace(pipeline, functions=with_sendable_results(pipeline.functions))
            # A worker begins at a place of its own, so that the first batch of the pass is the worker's own.
            stream = WorkerStream(work.inputs[work.first_worker], pipeline, self.stages.decode)
            return ThreadSource(stream, work.first_worker)

        return PassSetup(
            topology=replace(self.topology, num_workers=num_workers),
            open_source=open_source,
            num_processes=0,
            meter=meter,
            worker=worker,
        )


_FETCHER = "torch.utils.data._utils.fetch"


def refuse_collation(dataset: TableDataset, asking: FrameType) -> None:
    """Raises ConfigError if a DataLoader asks for an iterator to make batches of batches.

    asking: the frame that asks. Nothing else says what will be done with the batches, and the collate functions of
    torch and of the Trainer would stack them without an error. Only errors depend on frames; rows and states never do.
    """
    fetcher: FrameType | None = asking
    while fetcher is not None and _module(fetcher).startswith("accelerate."):
        fetcher = fetcher.f_back
    if fetcher is None or _module(fetcher) != _FETCHER or not fetcher.f_locals.get("auto_collation"):
        return
    collate = fetcher.f_locals.get("collate_fn")
    name = type(dataset).__name__
    if str(getattr(collate, "__module__", None)).startswith("transformers."):
        raise ConfigError(
            f"Trainer(train_dataset={name}) would collate batches as if they were rows, and shard them again. Return "
            'the loader of create_dataloader(..., num_ranks="auto") from get_train_dataloader of a Trainer of your own '
            "(get_eval_dataloader likewise), as torch_dataloader_utils.integrations.transformers shows, and pass no "
            "train_dataset."
        )
    if fetcher is asking and collate is default_collate:
        raise ConfigError(
            f"A DataLoader with a batch_size of its own would make batches of batches: {name} gives batches already, "
            f"of {dataset.topology.batch_size} rows. Write DataLoader(dataset, batch_size=None), and say batch_size= "
            "to the data set; or use create_dataloader."
        )


def _refuse_torchdata(dataset: TableDataset, asking: FrameType) -> None:
    """Raises ConfigError for a StatefulDataLoader, in whose states the end of an epoch would be the next epoch."""
    frame: FrameType | None = asking
    while frame is not None and _module(frame).startswith("torch.utils.data."):
        frame = frame.f_back
    if frame is not asking and frame is not None and _module(frame).startswith("torchdata."):
        raise ConfigError(
            f"torchdata's StatefulDataLoader needs states of its own kind from a {type(dataset).__name__}. Write "
            "StatefulDataLoader(for_torchdata(dataset), batch_size=None), with for_torchdata from "
            "torch_dataloader_utils.integrations.torchdata; or use create_dataloader, whose loader has states."
        )


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))
