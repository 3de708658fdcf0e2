"""The function `blend` and its loader: checks sources and options, runs passes, adds up metrics."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any, Generic, NoReturn

import numpy as np

from torch_dataloader_utils._core.arguments import check_has_order, check_integer, is_integer
from torch_dataloader_utils._core.blend_index import normalize_weights
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.slab_codec import SlabCodec
from torch_dataloader_utils._core.weight_schedule import WeightSchedule
from torch_dataloader_utils._observe.metrics import Metrics
from torch_dataloader_utils.blending.block_slices import joint_shaper
from torch_dataloader_utils.blending.mixing import (
    RowStream,
    endless_batches,
    mixed_batches,
    num_rows,
    steps_with_last,
    whole_batches,
    with_source_column,
)
from torch_dataloader_utils.blending.picks import (
    UNLIMITED,
    BlendOptions,
    BlendStart,
    CapPolicy,
    ItemKind,
    Stop,
    blend_steps,
    count_steps,
)
from torch_dataloader_utils.blending.progress import BlendPosition, BlendProgress
from torch_dataloader_utils.blending.sources import BlendSource
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.ranks.compare import ComparedPasses, options_record
from torch_dataloader_utils.ranks.resolve import running_ranks
from torch_dataloader_utils.stream.dataset import BatchT, TableDataset
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.stream.open_passes import closed_at_exit
from torch_dataloader_utils.stream.trainer_hooks import refuse_number


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
    source_column: str | None = None,
) -> "BlendedLoader[BatchT]":
    """Return one loader of several loaders. The next item comes from the source that is furthest behind its share.

        weights 2 1 1      sources 0 1 2 0 0 1 2 0 ...

    Args:
        sources: Loaders from `create_dataloader`, or data sets; all for the same rank. Do not iterate the sources
            elsewhere: the blend iterates them.
        weights: Positive number for each source; a source's share is its weight divided by the sum of weights. A
            `WeightSchedule` changes weights at given steps of an epoch of the blend.
        per: "batch" alternates whole batches of the sources, and shares are shares of batches. "sample" mixes rows in
            each batch, and shares are shares of rows: all sources need the same columns, and in a batch the rows of one
            source stand together.
        stop: End of an epoch of the blend: "first_exhausted" ends it where a source would have to give more than one
            pass; "all_exhausted" ends it once every source has given one pass (a source that is exhausted earlier
            begins a new pass, in a new order); a number ends it after this number of steps.
        batch_size: Number of rows of a batch, with per="sample"; by default the batch size of the first source.
        drop_last: Leave out a last batch that is shorter, with per="sample".
        max_epochs: Number of passes that a source may give in an epoch of the blend: one number for all sources, or a
            list with a number or None (no limit) for each. No row comes more often than this. Not with
            "first_exhausted", where each source gives at most one pass.
        at_cap: Action where a source would have to give more than `max_epochs`: "stop" ends the epoch; "renormalise"
            goes on with the other sources, in the proportions of their weights, until no source is left; "error"
            raises ConfigError there, and in `len`.
        source_column: Name of an additional column of the batches, int64: the number of each row's source.

    Raises:
        ConfigError: weights or options are out of range; or a source is for another rank, has no rows, has rows that
            are not counted, or has a loaded position inside an epoch.
    """
    check_has_order("sources", sources)
    check_has_order("weights", weights)
    shares = weights if isinstance(weights, WeightSchedule) else _as_shares(weights)
    num_weights = len(shares.weights[0]) if isinstance(shares, WeightSchedule) else len(shares)
    if not isinstance(sources, Iterable):
        raise ConfigTypeError(f"sources={sources!r}: pass a list of loaders or data sets.")
    loaders = [_as_loader(source, index) for index, source in enumerate(sources)]
    if not loaders or len(loaders) != num_weights:
        raise ConfigError(f"blend got {len(loaders)} sources and {num_weights} weights: pass one weight a source.")
    if len({id(loader.dataset) for loader in loaders}) < len(loaders):
        raise ConfigError("blend got the same data set twice. Make a loader for each use: a loader has one position.")
    if per == "batch" and (batch_size is not None or drop_last):
        option = "drop_last" if batch_size is None else "batch_size"
        raise ConfigError(
            f'{option} is for per="sample"; with per="batch" the sources make the batches. Leave it out, or give it to '
            "the loaders of the sources."
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
        source_column=source_column,
    )
    return BlendedLoader(loaders, options)


class BlendedLoader(Generic[BatchT]):
    """Loader of a blend, with an exact `len`, `set_epoch`, `state_dict` and `load_state_dict`; see `blend`.

    Every rank makes the same choices, so ranks take equal steps. A source starts with its first item and then runs
    beside the other sources, with threads or processes of its own. Each source decodes ahead within its share of its
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
                f"The sources of a blend have different (num_ranks, rank): {sorted(places)}. Make all sources for this "
                "rank."
            )
        # The largest share of each source over all steps.
        largest = np.max([normalize_weights(each) for each in options.schedule.weights], axis=0)
        for source, share in zip(self.sources, (largest / largest.sum()).tolist(), strict=True):
            source.decode_part(share)
        self.progress = BlendProgress(options, self.sources)
        compared = self.sources[0].loader.dataset.compared
        described = options_record({"blend": options.describe()})
        self._compared = None if compared is None else ComparedPasses(compared.peers, described)
        # A position and the number of batches of its epoch, kept because with per="sample" counting picks every row.
        self._counted: tuple[BlendPosition, int] | None = None
        # Rows that each source gave to the blend's batches, with per="sample". The sources' own counts are ahead.
        self._rows = np.zeros(len(self.sources), dtype=np.int64)

    @property
    def epoch(self) -> int:
        """Epoch of the present or next pass."""
        return self.progress.epoch

    @property
    def codec(self) -> SlabCodec | None:
        """Codec that writes batches into flat buffers (for DevicePrefetcher); None if a source has no codec."""
        codecs = [source.loader.codec for source in self.sources]
        return None if None in codecs else codecs[0]

    @property
    def is_transformed(self) -> bool:
        """Whether a user's function makes the batches of a source."""
        return any(source.loader.is_transformed for source in self.sources)

    @property
    def next_position(self) -> BlendPosition:
        """Position at which a pass would begin now."""
        return self.progress.next_position

    def metrics(self) -> tuple[Metrics, ...]:
        """Return the metrics of each source on this rank since the blend was built; callable from any thread.

        `rows` and `tokens` count what the blend's batches contained; all other numbers are counts of the source's
        loader.
        """
        found = [source.loader.metrics() for source in self.sources]
        if self.options.per == "batch":
            return tuple(found)
        return tuple(
            replace(each, rows=rows, tokens=rows * source.loader.dataset.stages.row_tokens)
            for each, rows, source in zip(found, self._rows.tolist(), self.sources, strict=True)
        )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, the same on every rank; a position loaded for this epoch is kept."""
        self.progress.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a JSON-able dict, the same on every rank. It counts the batches received so far."""
        return self.progress.encode(self.progress.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of `state`, also on another number of ranks or workers.

        Raises:
            CheckpointMismatchError: the state is of another blend, of other data or options, or was changed. Or the
                topology is another, and the state stands inside a batch of a source (with per="sample"), or ranks
                stand in different passes of a source.
        """
        self.progress.load(state)

    def __len__(self) -> int:
        """Return the number of batches of an epoch of the blend, batches already received included."""
        position = self.next_position
        if self._counted is None or self._counted[0] != position:
            self._counted = position, position.steps + count_steps(self.options, self._start(position))
        return self._counted[1]

    def __getitem__(self, index: object) -> NoReturn:
        """Raise an error; see `refuse_number`."""
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
        begin = self.progress.begin()
        start = self._start(begin)
        schedule = blend_steps(self.options, start)
        shaper = None if self.options.per == "batch" else joint_shaper([source.loader for source in self.sources])
        give = whole_batches if self.options.per == "batch" else partial(mixed_batches, shaper=shaper)
        with ExitStack() as stack:
            streams = [
                RowStream(stack.enter_context(closing(endless_batches(source, mark, shaper))))
                for source, mark in zip(self.sources, begin.marks, strict=True)
            ]
            number, given = 0, np.zeros(len(streams), dtype=np.int64)
            for step, batch in give(streams, steps_with_last(schedule)):
                number, given = number + 1, given + step.amounts
                is_last = step.is_last and not start.errors
                self.progress.reach(begin, None if is_last else partial(begin.after, number, given, start.capped))
                yield self._given(batch, step.amounts)
        start.raise_errors()
        if number == 0:  # there was nothing to give
            self.progress.reach(begin, None)

    def _given(self, batch: Any, amounts: Int64s) -> Any:
        """Count the rows of a batch and return it, with the source column if asked for. amounts: Items per source."""
        if self.options.per == "sample":
            self._rows += amounts
        name = self.options.source_column
        if name is None:
            return batch
        return with_source_column(batch, name, amounts if self.options.per == "sample" else amounts * num_rows(batch))

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
    if isinstance(weights, Mapping):
        raise ConfigTypeError(
            f"weights={weights!r}: pass a list, or WeightSchedule({weights!r}) for weights that change by step."
        )
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
