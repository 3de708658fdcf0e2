"""How far an epoch has come: its topologies, and the batches received under each topology."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils.errors import CheckpointMismatchError, InternalError

Cursor = tuple[int, int]
"""(units finished, rows received of the next unit) of one worker; used only where row counts are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCursors:
    """Place of one rank in a plan without row counts.

    workers: Cursor of each worker. next_worker: Worker that gives the next batch; if it has ended, a later worker.
    """

    workers: tuple[Cursor, ...]
    next_worker: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Part of an epoch under one topology.

    steps: Number of batches that every rank received, or one number for each rank where ranks differ. None: all steps
        of the topology; only the plan knows their number (see `counted`).
    cursors: Places of ranks in a plan without row counts: all ranks, or only the rank that saved the state.
    """

    topology: Topology
    steps: int | tuple[int | None, ...] | None = 0
    cursors: tuple[tuple[int, RankCursors], ...] | None = None

    def steps_of(self, rank: int) -> int:
        """Return the batches that one rank received; for a rank outside the topology, the most of any rank.

        Raises:
            InternalError: the rank took all its steps, and the steps are not counted yet.
        """
        if isinstance(self.steps, int):
            return self.steps
        given = self.steps or (None,)
        steps = given[rank] if rank < len(given) else max((each for each in given if each is not None), default=None)
        if steps is None:
            raise InternalError(f"The steps of rank {rank} were asked for before they were counted.")
        return steps

    def next_worker(self, rank: int) -> int:
        """Return the worker of one rank that gives the next batch of the rank."""
        cursors = dict(self.cursors or ()).get(rank)
        return self.steps_of(rank) % self.topology.num_workers if cursors is None else cursors.next_worker

    def has_finished(self, rank: int) -> bool:
        """Return whether one rank took all its steps and its steps are not counted yet."""
        return self.steps is None or (isinstance(self.steps, tuple) and self.steps[rank] is None)

    def cursors_of(self, ranks: Iterable[int]) -> list[RankCursors | None]:
        """Return the cursors of these ranks, where row counts are not known; None for ranks that have finished.

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
                "Row counts are not known, so a state has only the position of its own rank; the positions of ranks "
                f"{missing} are missing. Gather state_dict() of all ranks and load merge_states([...]), or plan with "
                'row counts (count_rows="auto").'
            )
        return [known[rank] for rank in wanted]

    def counted(self, rank_steps: tuple[int, ...]) -> "Segment":
        """Return the same segment with numbers for the ranks that took all their steps. rank_steps: Steps of the plan.

        Raises:
            CheckpointMismatchError: a rank took more steps than the plan has.
        """
        if not isinstance(self.steps, tuple):
            return self
        for rank, (taken, most) in enumerate(zip(self.steps, rank_steps, strict=True)):
            if taken is not None and taken > most:
                raise CheckpointMismatchError(
                    f"The state says that rank {rank} took {taken} steps, and the plan of this data has {most}. The "
                    "merged states were not in rank order: call merge_states with the states in order of ranks."
                )
        steps = tuple(most if steps is None else steps for steps, most in zip(self.steps, rank_steps, strict=True))
        return replace(self, steps=steps)

    @property
    def has_common_steps(self) -> bool:
        """Whether all ranks received the same, known number of batches."""
        return isinstance(self.steps, int)

    @property
    def has_begun(self) -> bool:
        """Whether anything was received."""
        moved = any(cursor != (0, 0) for _, of_rank in self.cursors or () for cursor in of_rank.workers)
        return bool(self.steps) or moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Place in an epoch: finished segments (oldest first), then the present segment.

    before: With several ranks, at the start of an epoch: log of the epoch before, which this rank has finished. Other
        ranks may still be in that epoch, and `merge_states` merges their states with this state.
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
        """Topology that the epoch began under."""
        return self.history[0].topology if self.history else self.topology

    @property
    def done(self) -> int:
        """Number of steps received under the present topology.

        `under` closes a segment whose ranks drifted apart, so all ranks of an open segment have taken this number.
        """
        return self.segment.steps_of(0)

    def changes(self) -> Iterator[tuple[Segment, Topology]]:
        """Yield the changes of topology, oldest first: each finished segment, and the topology that took over."""
        for finished, following in pairwise((*self.history, self.segment)):
            yield finished, following.topology

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, oldest first; none at the start of an epoch."""
        return (*self.history, self.segment) if self.history or self.segment.has_begun else ()

    def under(self, topology: Topology) -> "Position":
        """Return the same place, continued under `topology`; a changed topology begins a new segment."""
        if self.topology == topology and self.segment.has_common_steps:
            return self
        history = (*self.history, self.segment) if self.segment.has_begun else self.history
        return replace(self, history=history, segment=Segment(topology=topology))
