"""Makes the batches of a blend from batches of its sources, whole or mixed row by row, in every output format."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import accumulate, chain, islice, pairwise
from typing import Any, Generic, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from torch_dataloader_utils._core.block import Shaper
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.state import encode_state
from torch_dataloader_utils.blending.block_slices import SliceShaper
from torch_dataloader_utils.blending.sources import BlendSource, Mark, Passes, blend_epoch, pass_start
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.shape.gather import join_lists
from torch_dataloader_utils.shape.ragged import Ragged
from torch_dataloader_utils.shape.tensor_batch import TensorBatch, rows_of
from torch_dataloader_utils.stream.batch_groups import BlockSlice, put_together
from torch_dataloader_utils.stream.dataset import BatchT


def num_rows(batch: Any) -> int:
    """Return the number of rows of a batch.

    Raises:
        ConfigTypeError: the batch is not in an output format of this package.
    """
    match batch:
        case TensorBatch() | pa.RecordBatch() | BlockSlice():
            return int(batch.num_rows)
        case dict() if batch:
            return rows_of(batch)
    raise ConfigTypeError(
        f'per="sample" and source_column= count rows, but a source gives {type(batch).__name__} batches (from a '
        'transform or collate function?). Apply the function to the blend\'s batches, or blend per="batch" without a '
        "source_column."
    )


class BatchSlice(NamedTuple):
    """Rows [start, stop) of a batch."""

    batch: Any
    start: int
    stop: int


def mix_rows(parts: Sequence[BatchSlice], counts: Sequence[int]) -> Iterator[Any]:
    """Return the rows of all parts, joined, as batches of `counts[0]`, `counts[1]`, ... rows.

    `counts` adds up to the rows of all parts. Several batches are made at once, because each column is then joined only
    once. A single part is not copied.

    Raises:
        ConfigError: parts have different columns or types.
    """
    first = parts[0].batch
    batches = list({id(part.batch): part.batch for part in parts}.values())
    for batch in batches[1:]:
        _check_alike(first, batch)
    if len(parts) == 1:
        joined = _sliced(*parts[0])
    elif isinstance(first, pa.RecordBatch):
        joined = pa.concat_batches([_sliced(*part) for part in parts])
    else:
        number = {id(batch): index for index, batch in enumerate(batches)}
        spans = [(number[id(part.batch)], slice(part.start, part.stop)) for part in parts]
        columns = {name: _join_columns(name, [batch[name] for batch in batches], spans) for name in first}
        joined = _like(first, columns, sum(counts))
    if len(counts) == 1:
        return iter([joined])
    return joined.cut(counts) if isinstance(joined, TensorBatch) else _cut(joined, counts)


def with_source_column(batch: Any, name: str, amounts: Int64s) -> Any:
    """Return the batch with one more column, int64: the number of each row's source. Columns are not copied.

        amounts 2 0 1      0 0 2

    amounts: int64 [sources]: rows of each source; rows of the first source come first.

    Raises:
        ConfigError: the batch has a column of this name already.
    """
    names = batch.schema.names if isinstance(batch, pa.RecordBatch) else batch
    if name in names:
        raise ConfigError(
            f"source_column={name!r}, but batches have a column of this name already: {list(names)}. Pass another name."
        )
    numbers = np.repeat(np.arange(len(amounts)), amounts)
    if isinstance(batch, pa.RecordBatch):
        return batch.append_column(name, pa.array(numbers))
    column: Any = numbers
    columns_within = list(_columns_within(batch))
    if not isinstance(next(iter(columns_within), None), np.ndarray):
        devices = [each.device for each in columns_within if isinstance(each, Tensor)]
        column = torch.from_numpy(numbers).to(devices[0] if devices else "cpu")
    return _like(batch, {**batch, name: column}, len(numbers))


def num_bytes(batch: Any) -> int:
    """Return the bytes of a batch, without the bytes of Python objects."""
    if isinstance(batch, pa.RecordBatch):
        return int(batch.nbytes)
    return sum(getattr(column, "nbytes", 0) for column in _columns_within(batch))


def _columns_within(batch: Any) -> Iterator[Any]:
    """Yield the columns of a batch, and the columns of structs instead of the structs."""
    for column in batch.values():
        if isinstance(column, dict):
            yield from _columns_within(column)
        else:
            yield column


def _cut(batch: Any, counts: Sequence[int]) -> Iterator[Any]:
    return (_sliced(batch, start, stop) for start, stop in pairwise(accumulate(counts, initial=0)))


def _sliced(batch: Any, start: int, stop: int) -> Any:
    """Return rows [start, stop) of a batch as views."""
    if start == 0 and stop == num_rows(batch):
        return batch
    if isinstance(batch, pa.RecordBatch):
        return batch.slice(start, stop - start)
    return _like(batch, _rows_between(batch, slice(start, stop)), stop - start)


def _rows_between(column: Any, rows: slice) -> Any:
    """Return rows of a column, or of all columns of a struct or a batch: views."""
    if isinstance(column, dict):
        return {name: _rows_between(inside, rows) for name, inside in column.items()}
    return column[rows]


def _join_columns(name: str, columns: Sequence[Any], spans: Sequence[tuple[int, slice]]) -> Any:
    """Return the rows of all spans, joined. A span is (index in `columns`, slice of rows)."""
    first = columns[0]
    arrays = _as_arrays(columns)
    if arrays is not None and len({(array.dtype, array.shape[1:]) for array in arrays}) == 1:
        joined = np.concatenate([arrays[index][rows] for index, rows in spans])
        return torch.from_numpy(joined) if isinstance(first, Tensor) else joined
    for other in columns[1:]:
        if not _is_like(first, other):
            raise ConfigError(
                f"The sources of a blend per sample differ in column {name!r}: {_kind(first)} and {_kind(other)}. "
                "Write the column with one type in all sources, or choose columns that agree."
            )
    if isinstance(first, dict):
        return {
            inside: _join_columns(f"{name}.{inside}", [each[inside] for each in columns], spans) for inside in first
        }
    parts = [columns[index][rows] for index, rows in spans]
    match first:
        case Tensor():
            return torch.cat(parts)
        case Ragged():
            return _join_ragged(parts)
        case _:
            return list(chain.from_iterable(parts))


def _join_ragged(parts: Sequence[Ragged]) -> Ragged:
    values = [part.values for part in parts]
    try:
        return Ragged(*join_lists(values, [part.offsets for part in parts]))
    except (TypeError, RuntimeError):  # as in `_as_arrays`
        lengths = torch.cat([part.lengths for part in parts])
        return Ragged(torch.cat(values), torch.nn.functional.pad(lengths.cumsum(0), (1, 0)))


def _as_arrays(columns: Sequence[Any]) -> list[npt.NDArray[Any]] | None:
    """Return the columns as numpy arrays (views cost a fifth of torch's), or None if numpy cannot hold a column."""
    types = set(map(type, columns))
    if types == {np.ndarray}:
        return list(columns)
    if types != {Tensor}:
        return None
    try:
        return [column.numpy() for column in columns]
    except (TypeError, RuntimeError):  # bfloat16, sparse, on a device, with a gradient
        return None


def _is_like(first: Any, other: Any) -> bool:
    """Return whether two columns can be joined."""
    match first:
        case Tensor() | np.ndarray():
            is_same_type = type(other) is type(first) and other.dtype == first.dtype
            return is_same_type and other.shape[1:] == first.shape[1:]
        case Ragged():
            return isinstance(other, Ragged) and _is_like(first.values, other.values)
        case dict():
            return isinstance(other, dict) and list(first) == list(other)
        case _:
            return not isinstance(other, Tensor | np.ndarray | Ragged | dict)


def _kind(column: Any) -> str:
    """Return the type that `_is_like` compares, in words."""
    match column:
        case Tensor() | np.ndarray():
            return f"{type(column).__name__} {column.dtype} {[*column.shape[1:]]}"
        case Ragged():
            return f"Ragged of {_kind(column.values)}"
        case dict():
            return f"struct of {', '.join(column)}"
        case _:
            return "list"


def _check_alike(first: Any, other: Any) -> None:
    names = [batch.schema if isinstance(batch, pa.RecordBatch) else list(batch) for batch in (first, other)]
    if type(first) is not type(other) or names[0] != names[1]:
        raise ConfigError(
            f"The sources of a blend per sample have batches with different columns: {names[0]} and {names[1]}. Give "
            "all sources the same columns= and output_format=."
        )


def _like(batch: Any, columns: dict[str, Any], rows: int) -> Any:
    return TensorBatch(columns, num_rows=rows) if isinstance(batch, TensorBatch) else columns


def endless_batches(
    source: BlendSource[BatchT], mark: Mark, shaper: Shaper | None = None
) -> Generator[tuple[int, Any]]:
    """Yield (rows to skip, batch) from a mark on, pass after pass, without end; only the first batch has rows to skip.

    shaper: Shaper of the source's blocks. The source then gives slices of blocks; None: the source gives batches.

    Raises:
        ConfigError: items are rows, and a batch has another number of rows than planned.
    """
    loader, passes, rank = source.loader, source.passes, source.rank
    place = passes.places(mark, [rank])[0]
    rows = passes.step_items(passes.topology)
    steps, skip = divmod(place.items, rows)
    segment = replace(place.start.segment, steps=steps)
    loader.load_state_dict(encode_state(source.identity, replace(place.start, segment=segment)))
    start, number = place.start, place.number
    left = int(passes.lengths(start)[rank]) - steps * rows
    while True:
        whole_pass = iter(loader) if shaper is None else loader.iterate_with(SliceShaper(shaper))
        with closing(cast("Generator[Any]", whole_pass)) as batches:
            for batch in _as_planned(passes, batches, left):
                # A rank with one row less than other ranks ends with a batch of B - 1 rows and a batch of 1 row.
                if skip and skip >= (present := num_rows(batch)):
                    skip -= present
                    continue
                yield skip, batch
                skip = 0
        number += 1
        start = pass_start(blend_epoch(start), number, passes.topology)
        loader.set_epoch(start.epoch)
        left = int(passes.lengths(start)[rank])


def _as_planned(passes: Passes, batches: Iterable[BatchT], left: int) -> Iterator[BatchT]:
    """Yield the batches of a pass (or of its rest) with `left` items, and raise if rows differ from the plan.

    Planned rows decide when the source is exhausted and where a state resumes. With other numbers of rows, some rows
    would come again or never.
    """
    if passes.per == "batch":
        yield from batches
        return
    full = passes.step_items(passes.topology)
    for batch in batches:
        present = num_rows(batch)
        # The last B rows may come as batches of B - 1 rows and 1 row.
        if present > left or (left > full and present != full):
            raise _other_rows(passes.index, present, min(full, left))
        left -= present
        yield batch
    if left:
        raise _other_rows(passes.index, 0, left)


def _other_rows(index: int, present: int, planned: int) -> ConfigError:
    return ConfigError(
        f"Source {index} of the blend delivered {present} rows where {planned} were planned (does its transform or "
        "collate_fn leave out or add rows?), and per='sample' counts rows. Leave rows out with filters=, apply the "
        "function to the blend's batches, or blend per='batch'."
    )


# Limits of the steps that are joined and cut together, by number and by bytes. 51 columns of 1,024 rows, in the cache,
# take 110 us a batch together, and 220 us one batch at a time. Many batches would wait for slow functions and processes
# of a source; blocks are decoded ahead.
_MOST_STEPS, _MOST_STEPS_OF_BLOCKS = 8, 64
_MOST_BYTES = 4 << 20


class BlendStep(NamedTuple):
    """Step of a blend.

    amounts: int64 [sources]: items that each source gives. is_last: Whether the epoch ends with this step.
    """

    amounts: Int64s
    is_last: bool


class RowStream(Generic[BatchT]):
    """Endless batches of one source, taken whole or row by row."""

    def __init__(self, batches: Iterator[tuple[int, Any]]) -> None:
        """Start before the first batch. batches: Pairs (rows to skip, batch), see `endless_batches`."""
        self._batches = batches
        self._left = BatchSlice(None, 0, 0)

    def next_batch(self) -> BatchT:
        """Return the next batch as the source gives it."""
        batch: BatchT = next(self._batches)[1]
        return batch

    def take(self, rows: int) -> Iterator[BatchSlice]:
        """Yield the next `rows` rows as parts of batches, or of blocks if the batches are slices of blocks."""
        while rows:
            batch, start, stop = self._left
            if start == stop:
                skip, present = next(self._batches)
                is_of_block = isinstance(present, BlockSlice)
                batch, start, stop = present if is_of_block else BatchSlice(present, 0, num_rows(present))
                start += skip
            part = BatchSlice(batch, start, min(start + rows, stop))
            self._left = BatchSlice(batch, part.stop, stop)
            rows -= part.stop - start
            yield part


def steps_with_last(amounts: Iterator[Int64s]) -> Iterator[BlendStep]:
    """Yield the steps of `blend_steps`, and mark the last step."""
    present = next(amounts, None)
    while present is not None:
        following = next(amounts, None)
        yield BlendStep(present, following is None)
        present = following


def whole_batches(
    streams: Sequence[RowStream[BatchT]], steps: Iterator[BlendStep]
) -> Iterator[tuple[BlendStep, BatchT]]:
    """Yield each step with a whole batch of the one source that gives an item in the step."""
    for step in steps:
        yield step, streams[int(step.amounts.argmax())].next_batch()


def mixed_batches(
    streams: Sequence[RowStream[BatchT]], steps: Iterator[BlendStep], shaper: Shaper | None = None
) -> Iterator[tuple[BlendStep, Any]]:
    """Yield each step with a batch of rows of its sources, in the order of the sources.

    The first batch is made alone, so that it waits for no rows of later steps; then several batches are made at once.

    shaper: Shaper of the streams' blocks. The streams then give slices of blocks; None: the streams give batches.
    """
    at_once, most = 1, _MOST_STEPS if shaper is None else _MOST_STEPS_OF_BLOCKS
    while together := list(islice(steps, at_once)):
        size_bytes, batches = _mixed(streams, together, shaper)
        yield from zip(together, batches, strict=True)
        del batches  # before the next batches need memory
        at_once = min(2 * at_once, most, max(1, _MOST_BYTES * len(together) // max(size_bytes, 1)))


def _mixed(
    streams: Sequence[RowStream[Any]], steps: Sequence[BlendStep], shaper: Shaper | None
) -> tuple[int, Iterator[Any]]:
    """Return the bytes of the rows of all steps, and a batch for each step."""
    amounts = [step.amounts.tolist() for step in steps]
    taken = [stream.take(rows) for each in amounts for stream, rows in zip(streams, each, strict=True)]
    parts: list[Any] = list(chain.from_iterable(taken))
    counts = list(map(sum, amounts))
    if shaper is None:
        batches = mix_rows(parts, counts)
        first = next(batches)
        return num_bytes(first) * len(steps), chain([first], batches)
    block = put_together(parts, shaper)
    return block.num_bytes, block.split(counts[0])  # only the last step of an epoch may have fewer rows
