"""One source of a blend: how long its passes are, where a number of units leads, and its batches from there on.

Pass p of blend epoch e is the source's epoch e + p * 2^32: no two passes share an order, and which epoch a pass is does
not depend on how often the others were repeated.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.position import Position, Segment
from torch_dataloader_utils._core.state import decode_state, encode_state
from torch_dataloader_utils.blending.options import Unit
from torch_dataloader_utils.blending.rows import num_rows
from torch_dataloader_utils.epochs.epoch_plan import EpochPlan
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError
from torch_dataloader_utils.stream.loader import TableDataLoader

_PASS_STRIDE = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A place in a source: `taken` units after `start`, where a pass or the rest of one began under one topology.

    The same on every rank: what a rank has left of a pass follows from it. passes: passes finished before `start`.
    """

    start: Position
    passes: int = 0
    taken: int = 0

    @property
    def topology(self) -> Topology:
        """The topology under which units are counted."""
        return self.start.topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one rank stands: in pass number `number` that begins at `start`, `units` after its beginning."""

    start: Position
    number: int
    units: int


class Source:
    """A loader as a blend sees it."""

    def __init__(self, loader: TableDataLoader, unit: Unit, index: int) -> None:
        dataset = loader.dataset
        self.loader = loader
        self.index = index
        self._data = dataset
        self._unit = unit
        self._identity = dataset.planner.identity
        options = dataset.planner.options
        self._deals_evenly = options.rank_sharding == "rows" and not options.strategy
        if loader.num_workers > 1 and not loader.in_order:
            raise ConfigError(
                f"Source {index} of the blend has in_order=False: its batches come as they are ready, and no "
                "state could say which of them were given. Leave in_order=True."
            )
        if loader.next_position.segments:
            raise ConfigError(
                f"Source {index} of the blend stands inside an epoch: a state was loaded into it. A blend begins its "
                "sources at their beginning. Make the loader anew, and load the blend's own state into the blend."
            )
        if unit == "sample" and options.max_tokens_per_batch is not None:
            raise ConfigError(
                f"Source {index} of the blend limits the tokens of its batches (max_tokens_per_batch), and "
                "per='sample' makes batches of other rows. Blend per='batch'."
            )
        if (self.lengths(self.begin(0).start) < 1).any():
            raise ConfigError(
                f"Source {index} of the blend has nothing for some rank; leave it out, or use fewer ranks."
            )

    @property
    def topology(self) -> Topology:
        """The loader's present topology."""
        return self._data.topology

    @property
    def rank(self) -> int:
        """The rank that the loader reads for."""
        return self._data.rank

    def decode_part(self, share: float) -> None:
        """Let the loader decode ahead this part of what it would alone.

        At least the row group in use and the next one, in each worker: with less, nothing would be decoded ahead.
        """
        alone_bytes = self._data.stages.decode.budget_bytes
        largest_bytes = int(self._data.plan().inventory.groups.projected_bytes.max())
        least_bytes = 2 * largest_bytes * self.topology.num_workers
        self.loader.decode_within(min(alone_bytes, max(int(share * alone_bytes), least_bytes)))

    def begin(self, epoch: int) -> Mark:
        """The beginning of a blend epoch."""
        return Mark(start=self._pass_start(epoch, 0, self.topology))

    def lengths(self, start: Position) -> Int64s:
        """Units of every rank from `start` to the end of that pass, int64 [num_ranks].

        Raises:
            ConfigError: row counts are not known.
        """
        plan = self._data.planner.plan(start)
        if not isinstance(plan, EpochPlan) or plan.rank_steps is None or plan.rank_rows is None:
            raise ConfigError(
                f"Source {self.index} of the blend has row groups whose rows are not counted, so no rank can say where "
                'it ends. Plan it with count_rows="auto".'
            )
        if self._unit == "batch":
            return np.array(plan.rank_steps, dtype=np.int64)
        repeats = [plan.padding_rows(rank) for rank in range(plan.topology.num_ranks)]
        return np.array(plan.rank_rows, dtype=np.int64) + repeats

    def places(self, mark: Mark, ranks: Sequence[int]) -> list[Place]:
        """Where each of these ranks stands at a mark; at the end of a pass that is the beginning of the next.

        Passes are walked, each planned once for all ranks. Those that are known to be alike are counted instead.
        """
        start, number = mark.start, mark.passes
        units = np.full(len(ranks), mark.taken, dtype=np.int64)
        places: dict[int, Place] = {}
        while True:
            lengths = self.lengths(start)
            mine = lengths[ranks]
            # Of a rank that has its place, `units` is negative from then on.
            for index in np.flatnonzero((units >= 0) & (units < mine)).tolist():
                places[index] = Place(start=start, number=number, units=int(units[index]))
            if len(places) == len(ranks):
                return [places[index] for index in range(len(ranks))]
            passes = max(1, int(units.min() // mine[0])) if self._is_like_all(start, lengths) else 1
            number, units = number + passes, units - passes * mine
            start = self._pass_start(start.epoch % _PASS_STRIDE, number, mark.topology)

    def _is_like_all(self, start: Position, lengths: Int64s) -> bool:
        """Whether each later pass has these lengths too, those from `start` on.

        The built-in deal gives the same numbers of rows in each pass, though to other ranks where the order is another
        one. So it does not matter which rank has which if all are equal.
        """
        is_whole = not start.segments
        return is_whole and self._deals_evenly and bool((lengths == lengths[0]).all())

    def left(self, mark: Mark) -> tuple[int, int]:
        """Units left of the source's first pass, on the rank with least and on that with most; (0, 0) after it."""
        if mark.passes:
            return 0, 0
        left = np.maximum(self.lengths(mark.start) - mark.taken, 0)
        return int(left.min()), int(left.max())

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
                f"{mark.topology}, here it is {self.topology}. Resume on the topology that the state was saved on, or "
                "start the epoch afresh."
            )
        rows = mark.topology.batch_size if self._unit == "sample" else 1
        if any(place.units % rows for place in places):
            raise CheckpointMismatchError(
                f"Source {self.index} of the blend stands inside a batch of {rows} rows, and its topology was "
                f"{mark.topology}, here it is {self.topology}. Blends per sample resume anywhere on the topology they "
                "were saved on; for another one use per='batch', or give each source a batch size that is its share "
                "of the blend's."
            )
        steps = tuple(place.units // rows for place in places)
        segment = replace(places[0].start.segment, steps=steps[0] if len(set(steps)) == 1 else steps)
        stopped = replace(places[0].start, segment=segment)
        return Mark(start=stopped.under(self.topology), passes=places[0].number)

    def batches(self, mark: Mark) -> Generator[tuple[int, Any]]:
        """(rows to skip, batch) from a mark on, pass after pass, without end; only the first batch has rows to skip."""
        place = self.places(mark, [self.rank])[0]
        rows = self.topology.batch_size if self._unit == "sample" else 1
        steps, skip = divmod(place.units, rows)
        segment = replace(place.start.segment, steps=steps)
        self.loader.load_state_dict(encode_state(self._identity, replace(place.start, segment=segment)))
        number, epoch = place.number, place.start.epoch % _PASS_STRIDE
        left = int(self.lengths(place.start)[self.rank]) - steps * rows
        while True:
            with closing(cast("Generator[Any]", iter(self.loader))) as batches:
                for batch in self._as_planned(batches, left):
                    # A rank with a row less than others ends with a batch of B - 1 rows and one of 1.
                    if skip and skip >= (present := num_rows(batch)):
                        skip -= present
                        continue
                    yield skip, batch
                    skip = 0
            number += 1
            start = self._pass_start(epoch, number, self.topology)
            self.loader.set_epoch(start.epoch)
            left = int(self.lengths(start)[self.rank])

    def _as_planned(self, batches: Iterable[Any], left: int) -> Iterator[Any]:
        """The batches of a pass, or of the rest of one, that has `left` units.

        Planned rows decide when the source is exhausted and where a state leads; with others, rows would come again or
        never.

        Raises:
            ConfigError: units are rows, and a batch has more or fewer than were planned.
        """
        if self._unit == "batch":
            yield from batches
            return
        full = self.topology.batch_size
        for batch in batches:
            present = num_rows(batch)
            # The last B rows may come as B - 1 and 1.
            if present > left or (left > full and present != full):
                raise self._other_rows(present, min(full, left))
            left -= present
            yield batch
        if left:
            raise self._other_rows(0, left)

    def _other_rows(self, present: int, planned: int) -> ConfigError:
        return ConfigError(
            f"Source {self.index} of the blend gave {present} rows where {planned} were planned (does its "
            "transform or collate_fn leave rows out or add some?), and per='sample' counts them. Leave rows out with "
            "filters=, apply the function to the blend's batches, or blend per='batch'."
        )

    def encode(self, mark: Mark) -> dict[str, Any]:
        """The mark as a JSON-able dict."""
        return {
            "state": encode_state(self._identity, mark.start),
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
            start, _ = decode_state(entry["state"], self._identity, topology)
        except CheckpointMismatchError as error:
            raise CheckpointMismatchError(f"Source {self.index} of the blend: {error}") from error
        return Mark(start=start, passes=entry["passes"], taken=entry["taken"])

    def _pass_start(self, epoch: int, number: int, topology: Topology) -> Position:
        return Position(epoch=epoch + number * _PASS_STRIDE, segment=Segment(topology=topology))
