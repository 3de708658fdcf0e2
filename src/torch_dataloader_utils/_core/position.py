"""How far an epoch has come: the topologies it has seen, and what was received under each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch_dataloader_utils._core.options import Topology

Cursor = tuple[int, int]
"""(units finished, rows received of the next unit) of one worker; only where row counts are not known."""

RankCursors = tuple[Cursor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One stretch of an epoch under one topology.

    steps: batches that every rank received; or one number a rank, where ranks had drifted apart.
    cursors: for plans without row counts, every worker's cursor by rank (all ranks, or only the one that saved it).
    """

    topology: Topology
    steps: int | tuple[int, ...] = 0
    cursors: tuple[tuple[int, RankCursors], ...] | None = None

    def steps_of(self, rank: int) -> int:
        """Batches that one rank received."""
        return self.steps if isinstance(self.steps, int) else self.steps[rank]

    @property
    def has_drifted(self) -> bool:
        """Whether ranks received different numbers of batches."""
        return not isinstance(self.steps, int)


def first_topology(history: Sequence[Segment], present: Topology) -> Topology:
    """The topology that an epoch began under; `present` is that of its last stretch."""
    return history[0].topology if history else present


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place in an epoch: finished segments (oldest first), then the present one."""

    epoch: int = 0
    history: tuple[Segment, ...] = ()
    segment: Segment

    @property
    def is_start(self) -> bool:
        """Whether nothing of the epoch has been received."""
        return not self.history and not self.segment.steps and not _moved(self.segment.cursors)

    def under(self, topology: Topology) -> "Position":
        """The same place, to be continued under `topology`; a new segment begins if the topology is another one."""
        if self.segment.topology == topology and not self.segment.has_drifted:
            return self
        unused = not self.segment.steps and not _moved(self.segment.cursors)
        history = self.history if unused else (*self.history, self.segment)
        return replace(self, history=history, segment=Segment(topology=topology))


def _moved(cursors: tuple[tuple[int, RankCursors], ...] | None) -> bool:
    return cursors is not None and any(cursor != (0, 0) for _, of_rank in cursors for cursor in of_rank)
