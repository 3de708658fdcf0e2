"""The sources of a blend: loaders that fit, how long their passes are, and where a number of items ends in them.

Pass p of blend epoch e is the source's epoch e + p * 2^32: no two passes share an order, and which epoch a pass is does
not depend on how often the others were repeated.
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
    """A place in a source: `taken` items after `start`, where a pass or the rest of one began under one topology.

    The same on every rank: what a rank has left of a pass follows from it. passes: passes finished before `start`.
    """

    start: Position
    passes: int = 0
    taken: int = 0

    @property
    def topology(self) -> Topology:
        """The topology under which items are counted."""
        return self.start.topology


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where one rank stands: in pass number `number` that begins at `start`, `items` after its beginning."""

    start: Position
    number: int
    items: int


def pass_start(epoch: int, number: int, topology: Topology) -> Position:
    """Where pass `number` of a blend epoch begins."""
    return Position(epoch=epoch + number * _PASS_STRIDE, segment=Segment(topology=topology))


def blend_epoch(start: Position) -> int:
    """The blend epoch of the pass that begins at `start`."""
    return start.epoch % _PASS_STRIDE


class Passes:
    """How long the passes of a source are, by their plans, in items: batches, or rows for blends per sample.

    Nothing is read, and every rank gets the same answers.
    """

    def __init__(self, dataset: TableDataset[Any], per: ItemKind, index: int) -> None:
        """index: the number of the source, for messages."""
        self.per = per
        self.index = index
        self._dataset = dataset
        options = dataset.planner.options
        self._is_even = options.rank_sharding == "rows" and not options.strategy

    @property
    def topology(self) -> Topology:
        """The source's present topology."""
        return self._dataset.topology

    def step_items(self, topology: Topology) -> int:
        """Items of a full batch of the source under a topology."""
        return topology.batch_size if self.per == "sample" else 1

    def lengths(self, start: Position) -> Int64s:
        """Items of every rank from `start` to the end of that pass, int64 [num_ranks].

        Raises:
            ConfigError: row counts are not known.
        """
        plan = self._dataset.planner.plan(start)
        if not isinstance(plan, EpochPlan) or plan.rank_steps is None or plan.rank_rows is None:
            raise ConfigError(
                f"Source {self.index} of the blend has row groups whose rows are not counted, so no rank can say where "
                'it ends. Plan it with count_rows="auto".'
            )
        if self.per == "batch":
            return np.array(plan.rank_steps, dtype=np.int64)
        repeats = [plan.padding_rows(rank) for rank in range(plan.topology.num_ranks)]
        return np.array(plan.rank_rows, dtype=np.int64) + repeats

    def places(self, mark: Mark, ranks: Sequence[int]) -> list[RankPlace]:
        """Where each of these ranks stands at a mark; at the end of a pass that is the beginning of the next.

        Passes are walked, each planned once for all ranks. Those that are known to be alike are counted instead.
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
        """Whether each later pass has these lengths too, those from `start` on.

        The built-in assignment gives the same numbers of rows in each pass, though to other ranks where the order is
        another one. So it does not matter which rank has which if all are equal.
        """
        is_whole = not start.segments
        return is_whole and self._is_even and bool((lengths == lengths[0]).all())

    def left(self, mark: Mark) -> int:
        """Items left of the source's first pass, on the rank with most of them; 0 after it."""
        return 0 if mark.passes else max(0, int(self.lengths(mark.start).max()) - mark.taken)

    def left_of(self, mark: Mark, num_passes: int) -> int:
        """Items left of the source's first passes, on the rank with least of them.

        Passes are planned one by one, unless they are known to be alike.
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
        """The same mark, or the rest of its pass as a beginning under the loader's own topology.

        Raises:
            CheckpointMismatchError: the topology is another one, and the mark lies inside a batch or ranks stand in
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
                "state. States fit other topologies where every source stands between two of its batches (give each a "
                "batch size that is its share of the blend's), and with per='batch'."
            )
        steps = tuple(place.items // rows for place in places)
        segment = replace(places[0].start.segment, steps=steps[0] if len(set(steps)) == 1 else steps)
        stopped = replace(places[0].start, segment=segment)
        return Mark(start=stopped.under(self.topology), passes=places[0].number)


def _said(topology: Topology) -> str:
    """The topology as options: num_ranks=2, num_workers=1, batch_size=50, drop_last=False."""
    return ", ".join(f"{each.name}={getattr(topology, each.name)}" for each in fields(topology))


class BlendSource(Generic[BatchT]):
    """A loader as a blend sees it.

    Raises:
        ConfigError: a loader that no blend can resume, inside an epoch, with nothing for some rank or with rows that
            are not counted.
    """

    def __init__(self, loader: TableDataLoader[BatchT], per: ItemKind, index: int) -> None:
        _check_loader(loader, per, index)
        self.loader = loader
        if loader.dataset.compared is not None:
            # Ranks of a blend may be in different passes of a source; the blend compares their positions itself.
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
        """The loader's present topology."""
        return self.loader.dataset.topology

    @property
    def rank(self) -> int:
        """The rank that the loader reads for."""
        return self.loader.dataset.rank

    def decode_part(self, share: float) -> None:
        """Let the loader decode ahead this part of what it would alone.

        At least the row group in use and the next one, in each worker: with less, nothing would be decoded ahead.
        """
        alone_bytes = self.loader.dataset.stages.decode.budget_bytes
        largest_bytes = int(self.loader.dataset.plan.inventory.groups.projected_bytes.max())
        least_bytes = 2 * largest_bytes * self.topology.num_workers
        self.loader.decode_within(min(alone_bytes, max(int(share * alone_bytes), least_bytes)))

    def begin(self, epoch: int) -> Mark:
        """The beginning of a blend epoch."""
        return Mark(start=pass_start(epoch, 0, self.topology))

    def encode(self, mark: Mark) -> dict[str, Any]:
        """The mark as a JSON-able dict."""
        return {
            "state": self.loader.progress.encode(mark.start),
            "topology": asdict(mark.topology),
            "passes": mark.passes,
            "taken": mark.taken,
        }

    def decode(self, entry: dict[str, Any]) -> Mark:
        """The mark that `encode` wrote, under its own topology.

        Raises:
            CheckpointMismatchError: it is of other data or options.
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
            "not tell which of them were delivered. Leave in_order=True."
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
            f"Source {index} of the blend limits the tokens of its batches (max_tokens), and "
            "per='sample' makes batches of other rows. Blend per='batch'."
        )
