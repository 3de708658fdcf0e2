"""Sources of a blend: checks loaders, computes the lengths of their passes, and finds positions in the passes.

Pass p of blend epoch e is the source's epoch e + p * 2^32. So no two passes share an order, and the epoch of a pass
does not depend on the passes of other sources.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Generic

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.position import Position, Segment
from torch_dataloader_utils._core.state import decode_state
from torch_dataloader_utils.blending.picks import ItemKind
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError
from torch_dataloader_utils.plan.epoch_plan import EpochPlan
from torch_dataloader_utils.stream.dataset import BatchT, TableDataset
from torch_dataloader_utils.stream.loader import TableDataLoader

_PASS_STRIDE = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Position in a source: `taken` items after `start`, the same on every rank.

    start: Begin of a pass, or of the rest of a pass, under one topology. What a rank has left of the pass follows.
    passes: Number of passes finished before `start`. taken: Number of items taken since `start`.
    """

    start: Position
    passes: int = 0
    taken: int = 0

    @property
    def topology(self) -> Topology:
        """Topology under which items are counted."""
        return self.start.topology


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Position of one rank: `items` items after the begin `start` of pass number `number`."""

    start: Position
    number: int
    items: int


def pass_start(epoch: int, number: int, topology: Topology) -> Position:
    """Return the position at which pass `number` of a blend epoch begins."""
    return Position(epoch=epoch + number * _PASS_STRIDE, segment=Segment(topology=topology))


def blend_epoch(start: Position) -> int:
    """Return the blend epoch of the pass that begins at `start`."""
    return start.epoch % _PASS_STRIDE


class Passes:
    """Lengths of the passes of a source, in items: batches, or rows with per="sample".

    All answers follow from plans: nothing is read, and they are the same on every rank.
    """

    def __init__(self, dataset: TableDataset[Any], per: ItemKind, index: int) -> None:
        """Keep the data set. index: Number of the source, for messages."""
        self.per = per
        self.index = index
        self._dataset = dataset
        options = dataset.planner.options
        self._is_even = options.rank_sharding == "rows" and not options.strategy

    @property
    def topology(self) -> Topology:
        """Present topology of the source."""
        return self._dataset.topology

    def step_items(self, topology: Topology) -> int:
        """Return the items of a full batch of the source under a topology."""
        return topology.batch_size if self.per == "sample" else 1

    def lengths(self, start: Position) -> Int64s:
        """Return the items of every rank from `start` to the end of its pass, int64 [num_ranks].

        Raises:
            ConfigError: row counts are not known.
        """
        plan = self._dataset.planner.plan(start)
        if not isinstance(plan, EpochPlan) or plan.rank_steps is None or plan.rank_rows is None:
            raise ConfigError(
                f"Source {self.index} of the blend has row groups with rows that are not counted, so its length is "
                'unknown. Plan it with count_rows="auto".'
            )
        if self.per == "batch":
            return np.array(plan.rank_steps, dtype=np.int64)
        repeats = [plan.padding_rows(rank) for rank in range(plan.topology.num_ranks)]
        return np.array(plan.rank_rows, dtype=np.int64) + repeats

    def places(self, mark: Mark, ranks: Sequence[int]) -> list[RankPlace]:
        """Return the position of each of these ranks at a mark; the end of a pass is the begin of the next pass.

        Passes are planned one by one, each once for all ranks. Passes of known equal lengths are skipped by division.
        """
        start, number = mark.start, mark.passes
        items = np.full(len(ranks), mark.taken, dtype=np.int64)
        places: dict[int, RankPlace] = {}
        while True:
            lengths = self.lengths(start)
            mine = lengths[ranks]
            # Once a rank has its place, its `items` stay negative.
            for index in np.flatnonzero((items >= 0) & (items < mine)).tolist():
                places[index] = RankPlace(start=start, number=number, items=int(items[index]))
            if len(places) == len(ranks):
                return [places[index] for index in range(len(ranks))]
            passes = max(1, int(items.min() // mine[0])) if self._is_like_all(start, lengths) else 1
            number, items = number + passes, items - passes * mine
            start = pass_start(blend_epoch(start), number, mark.topology)

    def _is_like_all(self, start: Position, lengths: Int64s) -> bool:
        """Return whether all passes from `start` on are known to have these lengths.

        The built-in assignment makes the same set of lengths in each pass, but may give them to other ranks when the
        order changes. So the lengths of all ranks have to be equal.
        """
        is_whole = not start.segments
        return is_whole and self._is_even and bool((lengths == lengths[0]).all())

    def left(self, mark: Mark) -> int:
        """Return the items left of the source's first pass, on the rank with the most left; 0 after the first pass."""
        return 0 if mark.passes else max(0, int(self.lengths(mark.start).max()) - mark.taken)

    def left_of(self, mark: Mark, num_passes: int) -> int:
        """Return the items left of the source's first `num_passes` passes, on the rank with the fewest left.

        Passes are planned one by one, unless their lengths are known to be equal.
        """
        start, number = mark.start, mark.passes
        total = np.zeros(mark.topology.num_ranks, dtype=np.int64)
        while number < num_passes:
            lengths = self.lengths(start)
            passes = num_passes - number if self._is_like_all(start, lengths) else 1
            number, total = number + passes, total + passes * lengths
            start = pass_start(blend_epoch(start), number, mark.topology)
        return max(0, int(total.min()) - mark.taken)

    def under_present_topology(self, mark: Mark) -> Mark:
        """Return the mark under the loader's own topology; under another topology it starts at the rest of its pass.

        Raises:
            CheckpointMismatchError: the topology is another, and the mark lies inside a batch or ranks stand in
                different passes.
        """
        if mark.topology == self.topology:
            return mark
        places = self.places(mark, range(mark.topology.num_ranks))
        if len({place.number for place in places}) > 1:
            raise CheckpointMismatchError(
                f"Source {self.index} of the blend has begun another pass on some ranks only, and its topology was "
                f"{mark.topology}, here it is {self.topology}. Resume on {_said(mark.topology)}, which alone fits this "
                "state, or start the epoch again."
            )
        rows = self.step_items(mark.topology)
        if any(place.items % rows for place in places):
            raise CheckpointMismatchError(
                f"Source {self.index} of the blend stands inside a batch of {rows} rows, and its topology was "
                f"{mark.topology}, here it is {self.topology}. Resume on {_said(mark.topology)}, which alone fits this "
                "state. States fit other topologies where every source stands between two of its batches (give each "
                "source a batch size that is its share of the blend's batch size), and with per='batch'."
            )
        steps = tuple(place.items // rows for place in places)
        segment = replace(places[0].start.segment, steps=steps[0] if len(set(steps)) == 1 else steps)
        stopped = replace(places[0].start, segment=segment)
        return Mark(start=stopped.under(self.topology), passes=places[0].number)


def _said(topology: Topology) -> str:
    """Return the topology as options: num_ranks=2, num_workers=1, batch_size=50, drop_last=False."""
    return ", ".join(f"{each.name}={getattr(topology, each.name)}" for each in fields(topology))


class BlendSource(Generic[BatchT]):
    """Loader that is a source of a blend, with its passes, and encoding and decoding of its marks.

    Raises:
        ConfigError: a blend cannot resume the loader, the loader stands inside an epoch, a rank would get no rows, or
            rows are not counted.
    """

    def __init__(self, loader: TableDataLoader[BatchT], per: ItemKind, index: int) -> None:
        _check_loader(loader, per, index)
        self.loader = loader
        if loader.dataset.compared is not None:
            # Ranks of a blend may be in different passes of a source, so the blend compares positions itself.
            loader.dataset.compared.compares_places = False
        loader.dataset.keeps_data = True
        self.index = index
        self.identity = loader.dataset.planner.identity
        self.passes = Passes(loader.dataset, per, index)
        if (self.passes.lengths(self.begin(0).start) < 1).any():
            raise ConfigError(
                f"Source {index} of the blend has no rows for some rank; leave it out, or use fewer ranks."
            )

    @property
    def topology(self) -> Topology:
        """Present topology of the loader."""
        return self.loader.dataset.topology

    @property
    def rank(self) -> int:
        """Rank for which the loader reads."""
        return self.loader.dataset.rank

    def decode_part(self, share: float) -> None:
        """Limit decode-ahead to a share of the loader's own budget, in 0 to 1.

        The limit is at least two of the largest row groups for each worker, the row group in use and the next: with
        less, nothing would be decoded ahead. It never exceeds the loader's own budget.
        """
        alone_bytes = self.loader.dataset.stages.decode.budget_bytes
        largest_bytes = int(self.loader.dataset.plan.inventory.groups.projected_bytes.max())
        least_bytes = 2 * largest_bytes * self.topology.num_workers
        self.loader.decode_within(min(alone_bytes, max(int(share * alone_bytes), least_bytes)))

    def begin(self, epoch: int) -> Mark:
        """Return the mark at the begin of a blend epoch."""
        return Mark(start=pass_start(epoch, 0, self.topology))

    def encode(self, mark: Mark) -> dict[str, Any]:
        """Return the mark as a JSON-able dict."""
        return {
            "state": self.loader.progress.encode(mark.start),
            "topology": asdict(mark.topology),
            "passes": mark.passes,
            "taken": mark.taken,
        }

    def decode(self, entry: dict[str, Any]) -> Mark:
        """Return the mark that `encode` wrote, under the topology in the entry.

        Raises:
            CheckpointMismatchError: the mark is of other data or options.
        """
        topology = Topology(**entry["topology"])
        try:
            start, _ = decode_state(entry["state"], self.identity, topology)
        except CheckpointMismatchError as error:
            raise CheckpointMismatchError(f"Source {self.index} of the blend: {error}") from error
        return Mark(start=start, passes=entry["passes"], taken=entry["taken"])


def _check_loader(loader: TableDataLoader[Any], per: ItemKind, index: int) -> None:
    if loader.num_workers > 1 and not loader.in_order:
        raise ConfigError(
            f"Source {index} of the blend has in_order=False: its batches arrive as they are ready, so a state could "
            "not say which batches were delivered. Leave in_order=True."
        )
    if loader.next_position.segments:
        raise ConfigError(
            f"Source {index} of the blend is in the middle of an epoch, because a state was loaded into it. A blend "
            "starts its sources at the beginning. Make a new loader, and load the blend's own state into the blend."
        )
    if loader.dataset.progress.files_may_change:
        raise ConfigError(
            f'Source {index} of the blend has refresh="epoch": the length of a blend would change inside it. Leave '
            "refresh out."
        )
    if per == "sample" and loader.dataset.planner.options.max_tokens_per_batch is not None:
        raise ConfigError(
            f"Source {index} of the blend limits the tokens of its batches (max_tokens), but per='sample' makes "
            "batches of other rows. Blend per='batch'."
        )
