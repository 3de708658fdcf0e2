"""The assignment without row counts: workers read whole row groups, and give batches until their lane ends."""

from dataclasses import dataclass, replace

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.position import Cursor, Segment
from torch_dataloader_utils._core.program import UntilExhausted, WorkerProgram
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.plan.assignment import EpochInputs
from torch_dataloader_utils.plan.balance import assign_units, slice_units, worker_order
from torch_dataloader_utils.plan.strategy_call import RankUnits
from torch_dataloader_utils.plan.windows import group_windows


@dataclass(frozen=True, kw_only=True, eq=False)
class UncountedAssignment:
    """`Assignment` without row counts; no row is moved by balancing, dropped or repeated.

    Units in windows of whole row groups are sliced to ranks and assigned to workers by LPT, or a strategy assigns them.

    units: chunks in the epoch's order, or the remaining window units of an epoch.
    chosen: units of every rank and worker, instead of slicing and LPT: a strategy's units, or, where every rank reads
        everything, the rest of each rank.
    """

    inputs: EpochInputs
    units: Units
    topology: Topology
    chosen: tuple[RankUnits, ...] | None = None
    counts: None = None

    @classmethod
    def begin(cls, inputs: EpochInputs) -> "UncountedAssignment":
        """Return the assignment of the whole epoch.

        Raises:
            ConfigError: the options have lanes, buckets or host shares, which need row counts.
        """
        if inputs.options.num_lanes is not None:
            raise ConfigError(
                "lanes= needs exact row counts, and this plan has none: leave count_rows at its default, "
                'or pass count_rows="auto".'
            )
        if inputs.options.bucket_by:
            raise ConfigError(
                "token_batches= needs exact row counts, so that windows are whole batches, and this plan has none: "
                'leave count_rows at its default, or pass count_rows="auto".'
            )
        if inputs.options.host_shares is not None:
            raise ConfigError(
                "host_shares= needs exact row counts, so that shares are equal, and this plan has none: leave "
                'count_rows at its default, or pass count_rows="auto".'
            )
        topology, chosen = inputs.position.first_topology, None
        if inputs.strategy is not None:
            chosen = inputs.strategy.units(inputs.position.epoch, topology.num_ranks, topology.num_workers)
        return cls(inputs=inputs, units=inputs.chunks, topology=topology, chosen=chosen)

    def resumed(self, received: Segment, topology: Topology) -> "UncountedAssignment":
        """See Assignment."""
        strategy = self.inputs.strategy
        if strategy is not None:
            strategy.check_resume(received, topology)
        rests = [
            Units.none()  # None: the rank has received all its rows
            if cursors is None
            else Units.concat([after_cursor(*each) for each in zip(self._lanes(rank), cursors.workers, strict=True)])
            for rank, cursors in enumerate(received.cursors_of(range(self.topology.num_ranks)))
        ]
        chosen = None
        if strategy is not None and strategy.is_shared:  # every rank goes on with its own rest of all rows
            chosen = tuple(self._assigned(rest, rank, topology.num_workers) for rank, rest in enumerate(rests))
        return replace(self, units=Units.concat(rests), topology=topology, chosen=chosen)

    def programs(self, rank: int, received: Segment) -> tuple[WorkerProgram, ...]:
        """See Assignment."""
        self.topology.check_rank(rank)
        known = dict(received.cursors or ()).get(rank)
        cursors = ((0, 0),) * self.topology.num_workers if known is None else known.workers
        return tuple(
            WorkerProgram(
                lanes=(after_cursor(lane, cursor),),
                batching=UntilExhausted(batch_rows=self.topology.batch_size),
                seed=self.inputs.options.seed,
                epoch=self.inputs.position.epoch,
            )
            for lane, cursor in zip(self._lanes(rank), cursors, strict=True)
        )

    def _lanes(self, rank: int) -> list[Units]:
        """Return the window units of each worker of a rank."""
        if self.chosen is not None:
            workers = self.chosen[rank]
        else:
            mine = slice_units(self.units, rank, self.topology.num_ranks)
            workers = self._assigned(mine, rank, self.topology.num_workers)
        return [self._windows(lane) for lane in workers]

    def _assigned(self, units: Units, rank: int, num_workers: int) -> RankUnits:
        """Return the units of each of `num_workers` workers of a rank, by LPT over projected bytes."""
        order = worker_order(num_workers, self.inputs.options, self.inputs.position.epoch, rank)
        return tuple(assign_units(units, self._weights(units), order))

    def _windows(self, lane: Units) -> Units:
        if len(lane) and not lane.is_plain.any():
            return lane
        options = self.inputs.options
        return group_windows(lane, self.inputs.space.group_start, options.shuffle_rows, options.interleave)

    def _weights(self, units: Units) -> Int64s:
        space = self.inputs.space
        if units.is_plain.all():
            return space.bytes_between(units.start, units.stop)
        windows = units.windows.take(units.window)
        pieces = space.bytes_between(windows.piece_start, windows.piece_stop)
        weights: Int64s = np.add.reduceat(pieces, windows.offsets[:-1])
        return weights


def after_cursor(lane: Units, cursor: Cursor) -> Units:
    """Return the rest of a worker's lane: the next unit without the rows already delivered, then the later units."""
    finished, rows = cursor
    rest = lane.take(slice(finished, None))
    if rows == 0 or len(rest) == 0:
        return rest
    start = rest.start.copy()
    start[0] += rows
    return Units(start=start, stop=rest.stop, window=rest.window, windows=rest.windows)
