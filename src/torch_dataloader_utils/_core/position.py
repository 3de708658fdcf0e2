"""How far an epoch has come: the topologies it has seen, and what was received under each."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils.errors import CheckpointMismatchError, InternalError

Cursor = tuple[int, int]
"""(units finished, rows received of the next unit) of one worker; only where row counts are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCursors:
    """Place of one rank in a plan without row counts.

    workers: Cursor of each worker. next_worker: Worker that gives the next batch; a later one if it has ended.
    """

    workers: tuple[Cursor, ...]
    next_worker: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One stretch of an epoch under one topology.

    steps: batches that every rank received; or one number for each rank, where ranks received different numbers. None:
        all steps of the topology; only the plan knows how many those are (see `counted`).
    cursors: places of ranks in a plan without row counts: all ranks, or only the rank that saved the state.
    """

    topology: Topology
    steps: int | tuple[int | None, ...] | None = 0
    cursors: tuple[tuple[int, RankCursors], ...] | None = None

    def steps_of(self, rank: int) -> int:
        """Batches that one rank received; for a rank that the topology did not have, the most that any received.

        Raises:
            InternalError: the rank took all its steps, which were not counted yet.
        """
        if isinstance(self.steps, int):
            return self.steps
        given = self.steps or (None,)
        steps = given[rank] if rank < len(given) else max((each for each in given if each is not None), default=None)
        if steps is None:
            raise InternalError(f"How many steps rank {rank} took was asked for before it was counted.")
        return steps

    def next_worker(self, rank: int) -> int:
        """The worker of one rank that gives its next batch."""
        cursors = dict(self.cursors or ()).get(rank)
        return self.steps_of(rank) % self.topology.num_workers if cursors is None else cursors.next_worker

    def has_finished(self, rank: int) -> bool:
        """Whether one rank took all its steps and these are not counted yet."""
        return self.steps is None or (isinstance(self.steps, tuple) and self.steps[rank] is None)

    def cursors_of(self, ranks: Iterable[int]) -> list[RankCursors | None]:
        """The cursors of these ranks, where row counts are not known; None of those that have finished.

        Raises:
            CheckpointMismatchError: a rank's cursors are missing.
        """
        known: dict[int, RankCursors | None] = {**dict(self.cursors or ())}
        begin = RankCursors(workers=((0, 0),) * self.topology.num_workers, next_worker=0)
        for rank, steps in enumerate(self.steps if isinstance(self.steps, tuple) else ()):
            if not steps:
                known.setdefault(rank, None if steps is None else begin)
        wanted = list(ranks)
        missing = [rank for rank in wanted if rank not in known]
        if missing:
            raise CheckpointMismatchError(
                f"Row counts are not known, so a state has only the position of its own rank; those of ranks {missing} "
                "are missing. Gather state_dict() of all ranks and load merge_states([...]), or plan with row counts "
                '(count_rows="auto").'
            )
        return [known[rank] for rank in wanted]

    def counted(self, rank_steps: tuple[int, ...]) -> "Segment":
        """The same segment with numbers for the ranks that took all their steps; rank_steps: the plan's steps.

        Raises:
            CheckpointMismatchError: a rank took more steps than it has.
        """
        if not isinstance(self.steps, tuple):
            return self
        for rank, (taken, most) in enumerate(zip(self.steps, rank_steps, strict=True)):
            if taken is not None and taken > most:
                raise CheckpointMismatchError(
                    f"The state says that rank {rank} took {taken} steps, and of this data it has {most}. The states "
                    "that it was merged from were not in rank order: call merge_states with rank 0's first."
                )
        steps = tuple(most if steps is None else steps for steps, most in zip(self.steps, rank_steps, strict=True))
        return replace(self, steps=steps)

    @property
    def has_drifted(self) -> bool:
        """Whether ranks received different numbers of batches."""
        return not isinstance(self.steps, int)

    @property
    def has_begun(self) -> bool:
        """Whether anything was received."""
        moved = any(cursor != (0, 0) for _, of_rank in self.cursors or () for cursor in of_rank.workers)
        return bool(self.steps) or moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place in an epoch: finished segments (oldest first), then the present one.

    before: with several ranks, at the start of an epoch, the log of the epoch before, which this rank has finished:
        other ranks may still be in it, and `merge_states` merges their states with this one.
    """

    epoch: int = 0
    history: tuple[Segment, ...] = ()
    segment: Segment
    before: tuple[Segment, ...] = ()

    @property
    def topology(self) -> Topology:
        """The present topology."""
        return self.segment.topology

    @property
    def first_topology(self) -> Topology:
        """The topology that the epoch began under."""
        return self.history[0].topology if self.history else self.topology

    @property
    def done(self) -> int:
        """Steps received under the present topology (by rank 0, where ranks had drifted apart)."""
        return self.segment.steps_of(0)

    def changes(self) -> Iterator[tuple[Segment, Topology]]:
        """The changes of topology, oldest first: each finished segment, and the topology that took over."""
        for finished, following in pairwise((*self.history, self.segment)):
            yield finished, following.topology

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, oldest first; none at the start of an epoch."""
        return (*self.history, self.segment) if self.history or self.segment.has_begun else ()

    def under(self, topology: Topology) -> "Position":
        """The same place, continued under `topology`; begins a new segment if the topology changed."""
        if self.topology == topology and not self.segment.has_drifted:
            return self
        history = (*self.history, self.segment) if self.segment.has_begun else self.history
        return replace(self, history=history, segment=Segment(topology=topology))
