"""The blend as a loader: checked sources, its position, its state and its passes."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any, Generic, NoReturn

import numpy as np

from torch_dataloader_utils._core.arguments import check_integer, is_integer
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.slab_codec import SlabCodec
from torch_dataloader_utils._core.state import check_seal, check_version, is_count, is_list, refuse_misfits, sealed
from torch_dataloader_utils.datasets.blend.mixing import (
    RowStream,
    endless_batches,
    mixed_batches,
    steps_with_last,
    whole_batches,
)
from torch_dataloader_utils.datasets.blend.picks import (
    UNLIMITED,
    BlendOptions,
    BlendStart,
    CapPolicy,
    ItemKind,
    Stop,
    blend_steps,
    count_steps,
)
from torch_dataloader_utils.datasets.blend.sources import BlendSource, Mark
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.stream.dataset import BatchT, TableDataset
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.stream.open_passes import closed_at_exit
from torch_dataloader_utils.stream.rank_comparison import ComparedPasses, options_record
from torch_dataloader_utils.stream.ranks import running_ranks
from torch_dataloader_utils.stream.trainer_hooks import refuse_number
from torch_dataloader_utils.tokens.blend_index import normalize_weights
from torch_dataloader_utils.tokens.weight_schedule import WeightSchedule

_VERSION = 1
_SOURCE_KEYS = {"state", "topology", "passes", "taken"}
_KEYS = {"version", "kind", "options", "epoch", "steps", "counts", "sources", "checksum"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendPosition:
    """A place in a blend's epoch. steps: taken. counts: items that each source gave. marks: where each stands.

    capped: (source, items): sources that reached their cap, and after how many items of all sources.
    """

    epoch: int
    steps: int
    counts: tuple[int, ...]
    marks: tuple[Mark, ...]
    capped: tuple[tuple[int, int], ...] = ()

    def after(self, amounts: Int64s, capped: Sequence[tuple[int, int]]) -> "BlendPosition":
        """The place one step later, in which the sources gave these items; `capped` may reach beyond it."""
        given = amounts.tolist()
        counts = tuple(count + n for count, n in zip(self.counts, given, strict=True))
        return replace(
            self,
            steps=self.steps + 1,
            counts=counts,
            capped=tuple(each for each in capped if each[1] <= sum(counts)) if capped else (),
            marks=tuple(replace(mark, taken=mark.taken + n) for mark, n in zip(self.marks, given, strict=True)),
        )


class BlendProgress:
    """The position of a blend, its only mutable part; same rules as for a single loader (see stream/progress.py)."""

    def __init__(self, options: BlendOptions, sources: Sequence[BlendSource[Any]]) -> None:
        self._options = options
        self._sources = sources
        self._epoch = 0
        self._loaded: BlendPosition | None = None
        self._present: BlendPosition | None = None
        # Where the present pass began. A pass that was left and still gives batches has another object here.
        self._begun: BlendPosition | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the present or next pass."""
        return self._epoch

    @property
    def position(self) -> BlendPosition:
        """The position for the state: the present place, or the start of the next epoch once the last batch is out."""
        return self.next_position if self._present is None else self._present

    @property
    def next_position(self) -> BlendPosition:
        """Where a pass would begin now."""
        return self._start(self._epoch) if self._loaded is None else self._loaded

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass one over `epoch`; keeps a loaded position that is in this epoch."""
        epoch = check_integer("epoch", epoch, least=0)
        if self._loaded is not None and self._loaded.epoch != epoch:
            self._loaded = None
        self._epoch, self._present, self._begun = epoch, None, None

    def begin(self) -> BlendPosition:
        """Begin a pass; where it stands then is the present place."""
        self._present = self._begun = self.next_position
        self._loaded = None
        return self._present

    def reach(self, begun: BlendPosition, position: BlendPosition, *, is_last: bool) -> None:
        """Note where the pass that began at `begun` stands, or that it is over; of a pass that was left, nothing."""
        if self._begun is begun:
            self._present = self._start(position.epoch + 1) if is_last else position

    def encode(self, position: BlendPosition) -> dict[str, Any]:
        """The state of a position as a new JSON-able dict."""
        state = {
            "version": _VERSION,
            "kind": "blend",
            "options": self._options.describe(),
            "epoch": position.epoch,
            "steps": position.steps,
            "counts": list(position.counts),
            "sources": [source.encode(mark) for source, mark in zip(self._sources, position.marks, strict=True)],
        }
        if self._options.max_epochs is not None:
            state["capped"] = [list(each) for each in position.capped]
        return sealed(state)

    def load(self, state: Mapping[str, Any]) -> None:
        """Let the next pass continue where `state` stood.

        Raises:
            CheckpointMismatchError: another blend, other data or options, a topology on which it cannot go on, or a
                state that was changed.
        """
        self._check(state)
        marks = [source.decode(entry) for source, entry in zip(self._sources, state["sources"], strict=True)]
        self._loaded = BlendPosition(
            epoch=state["epoch"],
            steps=state["steps"],
            counts=tuple(state["counts"]),
            marks=tuple(s.passes.under_present_topology(mark) for s, mark in zip(self._sources, marks, strict=True)),
            capped=tuple((source, items) for source, items in state.get("capped", ())),
        )
        self._epoch, self._present, self._begun = self._loaded.epoch, None, None

    def _start(self, epoch: int) -> BlendPosition:
        marks = tuple(source.begin(epoch) for source in self._sources)
        return BlendPosition(epoch=epoch, steps=0, counts=(0,) * len(marks), marks=marks)

    def _check(self, state: Mapping[str, Any]) -> None:
        is_of_blend = isinstance(state, Mapping) and state.get("kind") == "blend"
        if is_of_blend:
            check_version(state, _VERSION)
        if not is_of_blend or set(state) - {"capped"} != _KEYS:
            found = sorted(state, key=str) if isinstance(state, Mapping) else type(state).__name__
            raise CheckpointMismatchError(
                f"Not a state of a blend: keys {found}, wanted {sorted(_KEYS)}. Pass what state_dict() of a blend "
                "returned; states of single loaders are for those."
            )
        check_seal(state)
        # As JSON has it: 1 and 1.0 are one number, and so they are here.
        is_same = state["options"] == self._options.describe()
        if not is_same and not self._differs_in_weights(state["options"]):
            raise CheckpointMismatchError(
                f"The state does not fit: its blend is {state['options']}, this one is {self._options.describe()}. "
                "Resume with the weights and options that it was saved with, or start the epoch afresh."
            )
        refuse_misfits(self._findings(state))  # afterwards: a blend of more sources was not changed
        if not is_same:
            self._check_past(WeightSchedule.described(state["options"]["weights"]), state["steps"])

    def _differs_in_weights(self, saved: Any) -> bool:
        """Whether the options of a state are these ones but for the weights, which are as many."""
        mine = self._options.describe()
        if not isinstance(saved, Mapping) or {**saved, "weights": mine["weights"]} != mine:
            return False
        try:
            weights = WeightSchedule.described(saved["weights"]).weights
        except (ConfigError, ConfigTypeError):
            return False
        return len(weights[0]) == len(self._sources)

    def _check_past(self, saved: WeightSchedule, steps: int) -> None:
        """Raises CheckpointMismatchError if shares differ before step `steps`; later ones may."""
        changed = saved.first_difference(self._options.schedule, steps)
        if changed is not None:
            first, last, source, theirs, mine = changed
            raise CheckpointMismatchError(
                f"The state does not fit: it stands at step {steps}, and weights before that were changed: from step "
                f"{first} to {last} source {source} had a share of {theirs:.6g}, here {mine:.6g}. Its weights are "
                f"{saved.describe()}, here they are {self._options.schedule.describe()}. Weights may change from "
                f"step {steps} on: pass a WeightSchedule with the old ones before it."
            )

    def _findings(self, state: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
        """See `refuse_misfits`; what is in a source's own state and topology is for these to check."""
        for name in ("epoch", "steps"):
            yield name, state[name], is_count(state[name])
        counts, entries = state["counts"], state["sources"]
        yield "counts", counts, is_list(counts, len(self._sources)) and all(map(is_count, counts))
        yield "sources", entries, is_list(entries, len(self._sources))
        capped = state.get("capped", [])
        is_capped = is_list(capped, len(capped)) if isinstance(capped, list) else False
        yield "capped", capped, is_capped and all(self._is_cap(each, sum(counts)) for each in capped)
        yield "capped", capped, len({source for source, _ in capped}) == len(capped)
        yield "capped", capped, ("capped" in state) == (self._options.max_epochs is not None)
        for entry in entries:
            yield "sources", entries, isinstance(entry, Mapping) and set(entry) == _SOURCE_KEYS
            yield "topology", entry["topology"], _is_topology(entry["topology"])
            for name in ("passes", "taken"):
                yield name, entry[name], is_count(entry[name])

    def _is_cap(self, value: Any, given: int) -> bool:
        is_pair = is_list(value, 2) and all(map(is_count, value))
        return is_pair and value[0] < len(self._sources) and value[1] <= given


def _is_topology(value: Any) -> bool:
    try:
        Topology(**value)
    except (TypeError, ConfigError):
        return False
    return set(value) == set(Topology.__slots__)


def blend(
    sources: Sequence[TableDataLoader[BatchT] | TableDataset[BatchT]],
    weights: Sequence[float] | WeightSchedule,
    *,
    per: ItemKind = "batch",
    stop: Stop = "first_exhausted",
    batch_size: int | None = None,
    drop_last: bool = False,
    max_epochs: int | Sequence[int | None] | None = None,
    at_cap: CapPolicy = "stop",
) -> "BlendedLoader[BatchT]":
    """Several loaders as one, each in its share; what comes next is from the source that is furthest behind its share.

        weights 2 1 1      sources 0 1 2 0 0 1 2 0 ...

    Args:
        sources: loaders from `create_dataloader`, or data sets; all of one rank. The blend iterates them: do not
            iterate them elsewhere.
        weights: one positive number a source; shares are weights divided by their sum. A `WeightSchedule` moves them:
            its steps are those of an epoch of the blend.
        per: "batch" gives whole batches of the sources alternately, and weights are shares of batches. "sample" mixes
            rows: weights are shares of rows, all sources have the same columns, and rows of one source stand together.
        stop: when an epoch of the blend ends: "first_exhausted" where a source would have to give more than it has;
            "all_exhausted" once every source has given all it has (others begin anew, in a new order, meanwhile); or
            after so many steps.
        batch_size: with per="sample", rows of a batch; by default the first source's.
        drop_last: with per="sample", leave out a last batch that is shorter.
        max_epochs: how many passes a source may give in an epoch of the blend: a number for all, or one for each
            (None: no limit). No row of it comes more often. Not with "first_exhausted", which is one pass for all.
        at_cap: what happens where a source would have to give more: "stop" ends the epoch; "renormalise" goes on with
            the others, in the proportions of their weights, until none is left; "error" raises ConfigError there, and
            in `len`.

    Raises:
        ConfigError: weights or options out of range, sources of different ranks, of no rows, of uncounted ones, or with
            a loaded position inside an epoch.
    """
    shares = weights if isinstance(weights, WeightSchedule) else _as_shares(weights)
    num_weights = len(shares.weights[0]) if isinstance(shares, WeightSchedule) else len(shares)
    if not isinstance(sources, Iterable):
        raise ConfigTypeError(f"sources={sources!r}: pass a list of loaders or data sets.")
    loaders = [_as_loader(source, index) for index, source in enumerate(sources)]
    if not loaders or len(loaders) != num_weights:
        raise ConfigError(f"blend got {len(loaders)} sources and {num_weights} weights: pass one weight a source.")
    if len({id(loader.dataset) for loader in loaders}) < len(loaders):
        raise ConfigError("blend got the same data set twice. Make a loader for each use: a loader has one position.")
    if per == "batch" and batch_size is not None:
        raise ConfigError(
            'batch_size is for per="sample"; with per="batch" batches are those of the sources. Leave it out.'
        )
    first_rows = loaders[0].dataset.topology.batch_size
    options = BlendOptions(
        weights=shares,
        per=per,
        stop=stop,
        batch_rows=1 if per == "batch" else first_rows if batch_size is None else batch_size,
        drop_last=drop_last,
        max_epochs=_as_caps(max_epochs, len(loaders)),
        at_cap=at_cap,
    )
    return BlendedLoader(loaders, options)


class BlendedLoader(Generic[BatchT]):
    """Batches of several loaders, with an exact `len`, `set_epoch`, `state_dict` and `load_state_dict`; see `blend`.

    Every rank makes the same choices, so ranks take equal steps. A source starts when it first gives something; from
    then on all run side by side, each with its own threads or processes. A source has its share of its
    `ahead_bytes`.
    """

    def __init__(self, loaders: Sequence[TableDataLoader[BatchT]], options: BlendOptions) -> None:
        self.options = options
        self.sources: tuple[BlendSource[BatchT], ...] = tuple(
            BlendSource(loader, options.per, index) for index, loader in enumerate(loaders)
        )
        places = {(source.topology.num_ranks, source.rank) for source in self.sources}
        if len(places) > 1:
            raise ConfigError(
                f"The sources of a blend are of different (num_ranks, rank): {sorted(places)}. Make all of them "
                "for this rank."
            )
        # The largest share that each ever has.
        largest = np.max([normalize_weights(each) for each in options.schedule.weights], axis=0)
        for source, share in zip(self.sources, (largest / largest.sum()).tolist(), strict=True):
            source.decode_part(share)
        self.progress = BlendProgress(options, self.sources)
        compared = self.sources[0].loader.dataset.compared
        described = options_record({"blend": options.describe()})
        self._compared = None if compared is None else ComparedPasses(compared.peers, described)
        # Where a pass would begin, and the batches of its epoch: with per="sample" counting them makes a pick a row.
        self._counted: tuple[BlendPosition, int] | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the present or next pass."""
        return self.progress.epoch

    @property
    def codec(self) -> SlabCodec | None:
        """How its batches are written into flat buffers (for DevicePrefetcher); None if not all sources have it."""
        codecs = [source.loader.codec for source in self.sources]
        return None if None in codecs else codecs[0]

    @property
    def is_transformed(self) -> bool:
        """Whether functions of the user make batches of a source."""
        return any(source.loader.is_transformed for source in self.sources)

    @property
    def next_position(self) -> BlendPosition:
        """Where a pass would begin now."""
        return self.progress.next_position

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass, on every rank the same; a position loaded for this epoch is kept."""
        self.progress.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position as a JSON-able dict, the same on every rank. Counts batches that were received."""
        return self.progress.encode(self.progress.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` stood; on another number of ranks or workers too, as far as `blend` says.

        Raises:
            CheckpointMismatchError: another blend, other data or options, a state that was changed; or, with
                per="sample", another topology and a state that stands inside a batch of a source.
        """
        self.progress.load(state)

    def __len__(self) -> int:
        """Batches of an epoch of the blend, those already received included."""
        position = self.next_position
        if self._counted is None or self._counted[0] != position:
            self._counted = position, position.steps + count_steps(self.options, self._start(position))
        return self._counted[1]

    def __getitem__(self, index: object) -> NoReturn:
        """Refuses; see `refuse_number`."""
        refuse_number(self, index)

    def __iter__(self) -> Iterator[BatchT]:
        return closed_at_exit(self._checked_batches())

    def _checked_batches(self) -> Generator[BatchT]:
        position = self.next_position
        batches = self._batches()
        if self._compared is None or running_ranks() < 2:
            yield from batches
            return
        counts = "none" if not position.steps else f"{position.steps} steps, {list(position.counts)} of the sources"
        record = {"blend epoch": str(position.epoch), "log": counts}
        place = position.epoch, position.steps, position.counts
        with closing(batches), self._compared.comparing(record, place, len(self) - position.steps) as comparison:
            for batch in batches:
                comparison.before_batch()
                yield batch

    def _batches(self) -> Generator[BatchT]:
        position = begin = self.progress.begin()
        start = self._start(position)
        schedule = blend_steps(self.options, start)
        give = whole_batches if self.options.per == "batch" else mixed_batches
        with ExitStack() as stack:
            streams = [
                RowStream(stack.enter_context(closing(endless_batches(source, mark))))
                for source, mark in zip(self.sources, position.marks, strict=True)
            ]
            for step, batch in give(streams, steps_with_last(schedule)):
                position = position.after(step.amounts, start.capped)
                self.progress.reach(begin, position, is_last=step.is_last)
                yield batch
        if position is begin:  # there was nothing to give
            self.progress.reach(begin, position, is_last=True)

    def _start(self, position: BlendPosition) -> BlendStart:
        places = list(zip(self.sources, position.marks, strict=True))
        most = [source.passes.left(mark) for source, mark in places]
        if self.options.stop == "first_exhausted":
            caps: Sequence[int | None] = [1] * len(places)
        else:
            caps = self.options.max_epochs or [None] * len(places)
        least = [
            UNLIMITED if cap is None else source.passes.left_of(mark, cap)
            for cap, (source, mark) in zip(caps, places, strict=True)
        ]
        return BlendStart(
            counts=np.array(position.counts, dtype=np.int64),
            least_left=np.array(least, dtype=np.int64),
            most_left=np.array(most, dtype=np.int64),
            steps=position.steps,
            capped=list(position.capped),
        )


def _as_caps(max_epochs: Any, num_sources: int) -> tuple[int | None, ...] | None:
    if max_epochs is None:
        return None
    if is_integer(max_epochs):
        max_epochs = [max_epochs] * num_sources
    if isinstance(max_epochs, str) or not isinstance(max_epochs, Sequence):
        raise ConfigTypeError(f"max_epochs={max_epochs!r}: pass a number of passes, or a list of one for each source.")
    if len(max_epochs) != num_sources:
        raise ConfigError(
            f"max_epochs has {len(max_epochs)} numbers for {num_sources} sources: pass one each, or None."
        )
    return tuple(None if each is None else check_integer("max_epochs", each, least=1) for each in max_epochs)


def _as_shares(weights: Any) -> tuple[float, ...]:
    try:
        return tuple(float(weight) for weight in weights)
    except (TypeError, ValueError) as error:
        raise ConfigTypeError(f"weights={weights!r}: pass a list of positive numbers, one for each source.") from error


def _as_loader(source: TableDataLoader[BatchT] | TableDataset[BatchT], index: int) -> TableDataLoader[BatchT]:
    if isinstance(source, TableDataset):
        return TableDataLoader(source)
    if not isinstance(source, TableDataLoader):
        raise ConfigTypeError(
            f"Source {index} of the blend is {of_type(source)}: pass loaders from create_dataloader, or data "
            "sets of this package."
        )
    return source
