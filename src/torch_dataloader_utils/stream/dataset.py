"""Give batches to torch: an IterableDataset that plans its passes, keeps its position and suits any DataLoader."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from torch.utils.data import IterableDataset, get_worker_info

from torch_dataloader_utils._core.arguments import check_epoch
from torch_dataloader_utils._core.option_values import RayWorkers
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.position import Position
from torch_dataloader_utils._observe.audit_file import AuditRecorder
from torch_dataloader_utils._observe.callbacks import LoaderCallback
from torch_dataloader_utils._observe.meter import LoaderMeter
from torch_dataloader_utils._runtime.user_warning import warn_user
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.ranks.compare import ComparedPasses, data_record
from torch_dataloader_utils.ranks.resolve import check_running
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.epoch_pass import PassPlan, PassSetup, ThreadSource, epoch_pass
from torch_dataloader_utils.stream.foreign_loaders import refuse_collation, refuse_random_split, refuse_torchdata
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
    """Stages of one data set: planner, reader and shaper, and the rank that the data set reads for.

    num_processes: number of worker processes of the loader; 0 decodes in threads, and the topology then has 1 worker.
    workers: options of Ray actors that run the workers instead of processes; None without Ray.
    functions_to_check: functions of the user that workers call.
    start_method: start method of worker processes if the caller gives none; None for Python's default.
    peers: global ranks that this rank is compared with, () for the whole process group; None for no comparison.
    compared: options that must be equal on all peers, as texts.
    row_tokens: tokens of each row, if rows are packed samples; else 0.
    foresight: receives the reads of each pass and of the next epochs; None without a host cache.
    audit: folder for the record of the rows that batches have; None for no record.
    """

    planner: "Planner"
    pipeline: Pipeline
    topology: Topology
    rank: int
    num_processes: int
    decode: DecodeOptions
    workers: RayWorkers | None = None
    callbacks: tuple[LoaderCallback, ...] = ()
    functions_to_check: tuple[Callable[..., Any], ...] = ()
    start_method: str | None = None
    peers: tuple[int, ...] | None = None
    compared: Mapping[str, str] = field(default_factory=dict)
    row_tokens: int = 0
    foresight: "Foresight | None" = None
    audit: str | None = None


class TableDataset(IterableDataset[BatchT]):
    """Batches of one rank, as an iterable data set of torch.

    Use batch_size=None in a plain DataLoader. The DataLoader may have any number of workers: the plan is made for this
    number. Epochs reach persistent workers through shared memory, and a loaded state serves the first pass of each
    worker. `create_dataloader` returns a loader with states; use `integrations.torchdata.for_torchdata` for torchdata's
    StatefulDataLoader.
    """

    def __init__(self, stages: Stages) -> None:
        super().__init__()
        stages.topology.check_rank(stages.rank)
        self.stages = stages
        self.recorder = None if stages.audit is None else AuditRecorder(stages.audit)
        self.progress = Progress(self.planner.identity, self.topology, self.rank)
        if stages.foresight is not None:
            weakref.finalize(self, stages.foresight.end)
        # Set if other values are computed from the plans, as in a blend.
        self.keeps_data = False
        self.compared = None if stages.peers is None else ComparedPasses(stages.peers, stages.compared)

    @property
    def planner(self) -> "Planner":
        """Planner of any position."""
        return self.stages.planner

    @property
    def pipeline(self) -> Pipeline:
        """Pipeline that reads row groups and shapes batches."""
        return self.stages.pipeline

    @property
    def topology(self) -> Topology:
        """Ranks, workers and batch size."""
        return self.stages.topology

    @property
    def rank(self) -> int:
        """Rank that this data set reads for."""
        return self.stages.rank

    @property
    def epoch(self) -> int:
        """Epoch of the present or next pass."""
        return self.progress.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass, from 0. Call this on every rank with the same number.

        A loaded position of the same epoch is kept; any other position is given up.

        Raises:
            ConfigTypeError: the epoch is not a whole number. ConfigError: it is negative or does not fit into 64 bits.
        """
        self.progress.set_epoch(check_epoch(epoch))

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a JSON-able dict. See the docs page on resuming.

        The state is the same on every rank that has taken the same number of steps. It has about 500 bytes, and less
        than 1 kB for 200 topologies in one epoch. Without row counts, it has the position of this rank only.

        Raises:
            ConfigError: workers of a DataLoader read this data set, and only the workers know their positions; or
                batches came out of order (`in_order=False`).
        """
        return self.progress.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from `state` with this data set's own topology.

        Warns of problems of the new plan if the topology has changed, such as rows that come twice.

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
        """Return one shard of this data set, for `wrappers.streaming_shard`. A shard reads only rows that it keeps.

        By default the shards of rank r of R are the ranks r, r + R, r + 2 R, ... of R * num_shards: chunks are sliced
        and balanced over all these ranks, so all shards take equal steps. (With every num_shards-th row, every shard
        would decode all rows.) A contiguous shard is one span of neighbouring rows in stored order, and shuffling stays
        within the span; sizes differ by at most one row. A shard can be sharded again, in either way. Over all shards
        (of all ranks) every row comes once.

        The shard begins at the present epoch and has its own states.

        Raises:
            ConfigError: the shard does not exist; contiguous without row counts; or a split strategy without rank
                arguments.
        """
        if not 0 <= index < num_shards:
            raise ConfigError(f"shard {index} of {num_shards} does not exist: index must be in [0, num_shards).")
        planner, topology, rank = self.planner, self.topology, self.rank
        if contiguous and self.recorder is not None:
            raise ConfigError("audit= records whole epochs, and a contiguous shard is a part. Leave audit out.")
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
        # No peers: a wrapper may give any shard to any rank.
        shard: TableDataset[BatchT] = TableDataset(
            replace(self.stages, planner=planner, topology=topology, rank=rank, peers=None)
        )
        shard.set_epoch(self.epoch)
        return shard

    def change_data(self, stages: Stages) -> None:
        """Read other data from the next epoch on.

        stages: this data set's stages with another planner and pipeline.

        Raises:
            ConfigError: the position is inside an epoch.
        """
        self.progress.change_data(stages.planner.identity)
        self.stages = stages
        self.__dict__.pop("data_record", None)

    def before_pass(self) -> None:
        """Prepare for a pass, before its plan is made. A data set that follows a changing source refreshes here."""

    def check_ranks(self) -> None:
        """Check that torch.distributed, if initialized by now, runs the ranks that this data set was made for.

        Workers of a DataLoader do not check: torch.distributed does not run there.

        Raises:
            ConfigError: see `check_running`.
        """
        if self.compared is not None and not self.compared.peers and get_worker_info() is None:
            check_running(self.topology.num_ranks, self.rank)

    def foresee(self, position: Position, worker: int | None) -> None:
        """Tell the host's cache which row groups a pass from `position` on reads. worker: one worker; None for all."""
        if self.stages.foresight is not None:
            reads, num_present = self.planner.upcoming(position, self.rank, worker)
            self.stages.foresight.foresee(self.planner.inventory, reads.group, reads.at_bytes, num_present)

    @cached_property
    def data_record(self) -> dict[str, str]:
        """Files and row groups, in the form that ranks compare."""
        return data_record(self.planner.inventory)

    @property
    def next_position(self) -> Position:
        """Position where a pass would begin now."""
        return self.progress.next_position(self.topology)

    @property
    def plan(self) -> "EpochPlan":
        """Plan of the pass that would begin now: print `dataset.plan.explain()`."""
        return self.planner.plan(self.next_position)

    def __len__(self) -> int:
        """Return the number of batches of this rank in the present epoch, including batches already received.

        Raises:
            TypeError: row counts are not known, so only a pass can count them.
            ConfigError: torch's random_split asks.
        """
        refuse_random_split(self)
        position = self.next_position
        steps = self.planner.plan(position).rank_steps
        if steps is None:
            raise TypeError(
                "The number of batches is not known: some row counts are unknown. Plan with count_rows='auto', or "
                "iterate."
            )
        return steps[self.rank] + sum(segment.steps_of(self.rank) for segment in position.history)

    def __getitem__(self, index: object) -> NoReturn:
        """Raise ConfigTypeError, always. torch's own class raises a bare NotImplementedError here."""
        raise ConfigTypeError(
            f"{type(self).__name__}[{index!r}]: its batches come in the order of the plan and have no numbers. Iterate "
            "the data set, or use RowDataset, which gives rows by number. For a part of the rows, pass holdout=."
        )

    def __repr__(self) -> str:
        place = f"rank {self.rank} of {self.topology.num_ranks}, epoch {self.epoch}"
        return f"<{type(self).__name__} {self.planner}; {place}>"

    def __iter__(self) -> Iterator[BatchT]:
        """Return an iterator over the batches of this rank or, in a DataLoader worker, over the worker's batches.

        Raises:
            ConfigError: a DataLoader would make batches of these batches, or the DataLoader is torchdata's and its
                adapter is missing.
        """
        refuse_collation(self)
        refuse_torchdata(self)
        return self.begin_pass()

    def begin_pass(self) -> Iterator[BatchT]:
        """Return `iter(dataset)` without its checks, for adapters that check the caller themselves."""
        return closed_at_exit(epoch_pass(self, self._set_up))

    def _set_up(self) -> PassSetup:
        """Set up a pass in a foreign DataLoader: this worker makes its own batches, in its own process."""
        info, meter = get_worker_info(), LoaderMeter()
        worker, num_workers = (None, 1) if info is None else (info.id, info.num_workers)
        self.progress.follow_trainer(worker)

        def open_source(planned: PassPlan) -> ThreadSource:
            pipeline = self.pipeline
            if worker is not None:
                pipeline = replace(pipeline, functions=with_sendable_results(pipeline.functions))
            # Each worker has its own position, so the first batch of the pass is the worker's own batch.
            stream = WorkerStream(planned.inputs[planned.first_worker], pipeline, self.stages.decode)
            return ThreadSource(stream, planned.first_worker)

        return PassSetup(
            topology=replace(self.topology, num_workers=num_workers),
            open_source=open_source,
            num_processes=0,
            meter=meter,
            worker=worker,
        )
