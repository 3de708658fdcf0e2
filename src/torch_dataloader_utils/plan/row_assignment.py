"""The assignment of rows with known counts: from chunks and the position in the epoch to each worker's program.

    chunk  →  order  →  slice  →  balance  →  assign  →  balance  →  windows      a whole epoch
    what remains of it  →  cut into equal parts                                   after each change of topology

Pure: two processes with the same inputs have the same assignment.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.program import SingleLane, WorkerProgram
from torch_dataloader_utils._core.token_budget import EqualBuckets
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.plan.assignment import EpochInputs, RankCounts
from torch_dataloader_utils.plan.chunks import keep_span
from torch_dataloader_utils.plan.rank_assignment import (
    InitialAssignment,
    ResumedAssignment,
    StrategyAssignment,
    TopologyAssignment,
    remaining_lanes,
    remaining_units,
)
from torch_dataloader_utils.plan.steps import batches_of_worker
from torch_dataloader_utils.plan.strategy_call import takes_ranks


@dataclass(frozen=True, kw_only=True, eq=False)
class RowAssignment:
    """The `EpochAssignment` of rows: balanced over ranks and workers, or as a split strategy says."""

    inputs: EpochInputs

    @property
    def _topology(self) -> Topology:
        return self.inputs.position.topology

    @cached_property
    def _assigned(self) -> TopologyAssignment:
        """The rows under the present topology."""
        position, options = self.inputs.position, self.inputs.options
        assigned = self._initial(position.first_topology)
        is_shared = isinstance(assigned, StrategyAssignment) and assigned.shared
        for segment, following in position.changes():
            # With the same ranks, each rank's rest is one of the equal parts that the sequence is cut into.
            if is_shared and (segment.has_drifted or following.num_ranks != segment.topology.num_ranks):
                raise ConfigError(
                    f"Split strategy {options.strategy} has no rank arguments: every rank reads everything, and "
                    "what remains cannot be assigned to another number of ranks, or to ranks that had drifted apart. "
                    f"Resume on num_ranks={segment.topology.num_ranks}, with a state of one step on all ranks, or give "
                    "generate() num_ranks and rank."
                )
            assigned = ResumedAssignment(units=remaining_units(assigned, segment), topology=following)
        return assigned

    def _initial(self, topology: Topology) -> TopologyAssignment:
        inputs, strategy, epoch = self.inputs, self.inputs.strategy, self.inputs.position.epoch
        if strategy is None:
            return InitialAssignment(
                units=inputs.chunks, space=inputs.space, options=inputs.options, epoch=epoch, topology=topology
            )
        return StrategyAssignment(
            given=tuple(
                tuple(keep_span(units, inputs.options) for units in workers)
                for workers in strategy.units(epoch, topology.num_ranks, topology.num_workers)
            ),
            shared=not takes_ranks(strategy.strategy),
            space=inputs.space,
            options=inputs.options,
            topology=topology,
        )

    @cached_property
    def counts(self) -> RankCounts:
        """See EpochAssignment."""
        assigned, batch_rows, rows = self._assigned, self._topology.batch_size, self._assigned.rank_rows
        repeats = np.zeros(len(rows), dtype=np.bool_)
        if self._topology.drop_last:
            rows = np.minimum(rows, assigned.steps * batch_rows)
        else:
            before_last = (assigned.steps - 1) * batch_rows
            repeats = (assigned.steps > 0) & (rows == before_last) & ((before_last == 0) | (batch_rows == 1))
        return RankCounts(
            steps=assigned.steps,
            rows=rows,
            repeats=repeats,
            dropped_rows=int((assigned.rank_rows - rows).sum()),
            moved_rows=assigned.transfers.rows,
            cuts=len(assigned.transfers),
        )

    def programs(self, rank: int) -> tuple[WorkerProgram, ...]:
        """See EpochAssignment."""
        self._topology.check_rank(rank)
        mine, workers, position = self._assigned.rank(rank), self._topology.num_workers, self.inputs.position
        # Buckets of one batch each, by the batch size under which the epoch began and its windows were cut.
        bucket_rows = position.first_topology.batch_size
        by_length = EqualBuckets(bucket_rows=bucket_rows) if self.inputs.options.bucket_by else None
        programs = []
        for worker, lane in enumerate(remaining_lanes(mine, position.done)):
            sizes = mine.sizes.of_worker(worker, workers)
            left = sizes.steps - batches_of_worker(position.done, worker, workers)
            batching = SingleLane(
                batch_rows=sizes.batch_rows, num_batches=max(0, left), tail_rows=_last(sizes.tail, left)
            )
            # A rank without rows repeats the first row that this topology has.
            extra = [self._assigned.first_unit.split_at(1)[0]] if sizes.repeated and left > 0 else []
            programs.append(
                WorkerProgram(
                    lanes=(Units.concat([lane, *extra]),),
                    batching=batching,
                    seed=self.inputs.options.seed,
                    epoch=position.epoch,
                    by_length=by_length,
                )
            )
        return tuple(programs)


def _last(tail: tuple[int, ...], count: int) -> tuple[int, ...]:
    return tail[max(0, len(tail) - count) :] if count > 0 else ()
