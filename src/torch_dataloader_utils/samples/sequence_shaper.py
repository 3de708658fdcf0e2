"""Shapes sequences: a block holds rows and where each sequence is among them; rows are gathered for each batch.

A row is in up to `length + horizon` sequences. So sequences are cut, joined and shuffled as pairs of row numbers, and
memory holds each row once. Every part of a batch (see `Role`) has a shaper and a block of its own columns.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from torch_dataloader_utils._core.block import Block, Shaper, cut_spans
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.row_group_task import GroupRows
from torch_dataloader_utils._core.units import ranges
from torch_dataloader_utils._runtime.reused_memory import RecycledMemory
from torch_dataloader_utils.errors import ConfigError, InternalError, UnsupportedFeatureError, of_type, which_column
from torch_dataloader_utils.samples.sequence_layout import Spans
from torch_dataloader_utils.samples.sequences import MASK, Sequences
from torch_dataloader_utils.shape.dtypes import NumberTarget
from torch_dataloader_utils.shape.encode import Encoder
from torch_dataloader_utils.shape.prepare import prepared_shaper
from torch_dataloader_utils.shape.ragged import Ragged
from torch_dataloader_utils.shape.shapers import OutputFormat
from torch_dataloader_utils.shape.tensor_batch import TensorBatch

Bools = npt.NDArray[np.bool_]
T = TypeVar("T")
Part = Literal["past", "horizon", "first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Part of a batch: which rows of a sequence its columns have.

    part: "past" for the rows before the horizon, "horizon" for its rows, "first" for the first row of the sequence.
    columns: Names of the columns. shaper: Shaper of these columns. suffix: End of their names in batches.
    """

    part: Part
    columns: tuple[str, ...]
    shaper: Shaper
    suffix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceShaper:
    """Shaper of sequences; implements `_core.block.Shaper`. Record batches come after their `Spans`."""

    roles: tuple[Role, ...]
    sequences: Sequences

    def use_memory(self, memory: RecycledMemory) -> None:
        """See Shaper."""
        for role in self.roles:
            role.shaper.use_memory(memory)

    def with_copied_columns(self, least_bytes: int) -> "SequenceShaper":  # noqa: ARG002
        """Return this shaper: the rows of a batch are copied when it is made."""
        return self

    def block(self, parts: Iterable[Any]) -> "SequenceBlock":
        """Return the block of one row group. See `Shaper.block` for errors."""
        spans, *rows = parts
        blocks = []
        for role in self.roles:
            names = frozenset(role.columns)
            blocks.append(
                role.shaper.block([part.select([n for n in part.schema.names if n in names]) for part in rows])
            )
        return SequenceBlock(shaper=self, rows=tuple(blocks), spans=spans)

    def concat(self, blocks: Sequence[Any], spans: Int64s | None = None) -> "SequenceBlock":
        """Return the sequences of all blocks or spans, one after the other, with the rows that sequences have."""
        blocks = cut_spans(blocks, spans)
        if len(blocks) == 1:
            return cast("SequenceBlock", blocks[0])
        used = [block.with_used_rows() for block in blocks if block.num_rows]
        if not used:
            return cast("SequenceBlock", blocks[0])
        before = np.cumsum([0, *(block.stored_rows for block in used[:-1])])
        rows = [role.shaper.concat([block.rows[number] for block in used]) for number, role in enumerate(self.roles)]
        starts = np.concatenate([block.spans.starts + first for block, first in zip(used, before, strict=True)])
        stops = np.concatenate([block.spans.stops + first for block, first in zip(used, before, strict=True)])
        return SequenceBlock(shaper=self, rows=tuple(rows), spans=Spans(starts, stops))

    def gather(self, blocks: Sequence[Any], order: Int64s) -> "SequenceBlock":
        """Return the block with sequence order[i] of the blocks' concatenation as sequence i."""
        whole = self.concat(blocks)
        return replace(whole, spans=Spans(whole.spans.starts[order], whole.spans.stops[order]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SequenceBlock:
    """Block of sequences. Implements `_core.block.Block`.

    rows: One block of rows for each role. spans: Rows of each sequence.
    """

    shaper: SequenceShaper
    rows: tuple[Block, ...]
    spans: Spans

    @property
    def num_rows(self) -> int:
        """Number of sequences."""
        return len(self.spans.starts)

    @property
    def stored_rows(self) -> int:
        """Number of rows in memory; sequences are ranges of these rows."""
        return self.rows[0].num_rows

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows in memory."""
        return sum(block.num_bytes for block in self.rows)

    def slice(self, start: int, stop: int) -> "SequenceBlock":
        """Return sequences [start, stop), a view."""
        start, stop = GroupRows(start, stop).of(self.num_rows)
        if stop - start == self.num_rows:
            return self
        return replace(self, spans=Spans(self.spans.starts[start:stop], self.spans.stops[start:stop]))

    def with_used_rows(self) -> "SequenceBlock":
        """Return the block (of at least one sequence) without the rows before its first and after its last sequence."""
        first, last = int(self.spans.starts.min()), int(self.spans.stops.max())
        rows = tuple(block.slice(first, last) for block in self.rows)
        return replace(self, rows=rows, spans=Spans(self.spans.starts - first, self.spans.stops - first))

    def split(self, batch_rows: int) -> Iterator[Any]:
        """Yield batches of `batch_rows` sequences; the last may be shorter."""
        for start in range(0, self.num_rows, batch_rows):
            yield self.slice(start, start + batch_rows).to_batch()

    def to_batch(self) -> Any:
        """Return all sequences as one batch of the output format."""
        columns: dict[str, Any] = {}
        batch: Any = None
        is_padded = self.shaper.sequences.incomplete == "pad"
        parts: set[Part] = {role.part for role in self.shaper.roles}
        if is_padded:
            parts.add("past")
        taken = {part: self._taken(part) for part in parts}
        for role, block in zip(self.shaper.roles, self.rows, strict=True):
            here = taken[role.part]
            batch = role.shaper.gather([block], here.order).to_batch()
            named = zip(batch.schema.names, batch.columns, strict=True) if _is_arrow(batch) else batch.items()
            columns |= {name + role.suffix: here.fold(name, value) for name, value in named}
        if is_padded:
            columns[MASK] = _like(batch, taken["past"].has_row)
        if _is_arrow(batch):
            return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        return TensorBatch(columns, num_rows=self.num_rows) if isinstance(batch, TensorBatch) else columns

    def _taken(self, part: Part) -> "_Taken":
        sequences, (starts, stops) = self.shaper.sequences, self.spans
        ends = stops - sequences.horizon_rows
        if part == "first":
            return _Taken(starts)
        if part == "horizon":
            return _Taken((ends[:, None] + np.arange(sequences.horizon_rows)).ravel(), sequences.horizon_rows)
        if sequences.incomplete == "ragged" or sequences.length is None:
            lengths = ends - starts
            return _Taken(ranges(starts, lengths), offsets=np.append(0, np.cumsum(lengths)))
        order = ends[:, None] + np.arange(-sequences.length, 0)
        has_row = order >= starts[:, None] if sequences.incomplete == "pad" else None
        return _Taken(np.maximum(order, starts[:, None]).ravel(), sequences.length, has_row)


class _Taken(NamedTuple):
    """Rows of sequences, and how a column of them becomes a column of sequences.

    order: Numbers of the rows, one sequence after the other. width: Rows of each sequence; 0 for one value a sequence.
    has_row: bool [sequences, width], False where the row is padding; None for no padding. offsets: For sequences of
    several lengths, where each begins in `order`.
    """

    order: Int64s
    width: int = 0
    has_row: Bools | None = None
    offsets: Int64s | None = None

    def fold(self, name: str, values: Any) -> Any:
        """Return the column of sequences. values: The rows `order` of the column. name: For messages."""
        if isinstance(values, dict):
            return {field: self.fold(f"{name}.{field}", each) for field, each in values.items()}
        if self.offsets is None and not self.width:
            return values
        values = _with_lists_as_arrays(name, values)
        if self.offsets is not None:
            return self._ragged(values, self.offsets)
        shape = (len(self.order) // self.width, self.width)
        match values:
            case Tensor():
                return self._padded(values.view(*shape, *values.shape[1:]))
            case np.ndarray():
                return self._padded(values.reshape(*shape, *values.shape[1:]))
            case list():
                if self.has_row is not None:
                    values = [
                        value if is_row else None for value, is_row in zip(values, self.has_row.flat, strict=True)
                    ]
                return [values[start : start + self.width] for start in range(0, len(values), self.width)]
            case pa.Array():
                if self.has_row is not None:
                    places = pa.array(np.arange(len(values)), mask=~self.has_row.ravel())
                    values = values.take(places)
                return pa.FixedSizeListArray.from_arrays(values, self.width)
        raise _no_column(values)

    def _padded(self, values: Any) -> Any:
        if self.has_row is not None and not self.has_row.all():
            numbers = values
            if isinstance(values, Tensor):  # by numpy: torch would start threads; numpy does not know bfloat16
                numbers = (values.view(torch.int16) if values.dtype == torch.bfloat16 else values).numpy()
            numbers[~self.has_row] = np.zeros((), numbers.dtype)
        return values

    def _ragged(self, values: Any, offsets: Int64s) -> Any:
        match values:
            case Tensor():
                return Ragged(values, torch.from_numpy(offsets))
            case np.ndarray() | list():
                return [values[start:stop] for start, stop in pairwise(offsets.tolist())]
            case pa.Array():
                return pa.LargeListArray.from_arrays(pa.array(offsets), values)
        raise _no_column(values)


def _is_arrow(batch: Any) -> bool:
    return isinstance(batch, pa.RecordBatch)


def _like(batch: Any, has_row: Bools | None) -> Any:
    """Return a mask in the form of the columns of a batch."""
    if has_row is None:
        return None
    match batch:
        case pa.RecordBatch():
            return pa.FixedSizeListArray.from_arrays(pa.array(has_row.ravel()), has_row.shape[1])
        case TensorBatch():
            return torch.from_numpy(has_row)
    return has_row


def _with_lists_as_arrays(name: str, values: Any) -> Any:
    """Return a column of lists of numbers as one array [rows, items]; any other column unchanged.

    Raises:
        UnsupportedFeatureError: the lists differ in length.
    """
    match values:
        case Ragged():
            lengths = np.unique(values.lengths.numpy())
            if len(lengths) == 1:
                return values.values.view(len(values), int(lengths[0]), *values.values.shape[1:])
        case [np.ndarray(), *_]:
            lengths = np.unique(list(map(len, values)))
            if len(lengths) == 1:
                return np.stack(values)
        case _:
            return values
    raise UnsupportedFeatureError(
        f"column {name!r} has lists of {lengths[0]} and of {lengths[-1]} items in the rows of one batch, which make no "
        'tensor of sequences: pass output_format="arrow" or "dict", or leave the column out with columns=.'
    )


def _no_column(values: Any) -> InternalError:
    return InternalError(f"A column of {of_type(values)} has no sequences. Please report this.")


def sequence_shaper(
    output_format: OutputFormat,
    selected: pa.Schema,
    sequences: Sequences,
    *,
    stack: Mapping[str, Sequence[str]] | None,
    nulls: Any,
    encode: Mapping[str, Encoder] | None,
    dtypes: Mapping[str, NumberTarget] | None,
) -> SequenceShaper:
    """Return the shaper of sequences. selected: Columns to deliver; see `prepared_shaper` for the other options.

    Raises:
        ConfigError: a name is neither a column nor a stack, or entries of a batch have one name.
    """
    stack = stack or {}
    roles, names = [], Counter([MASK] * (sequences.incomplete == "pad"))
    for part, suffix, items in _parts(selected.names, stack, sequences):
        stacks = {item: stack[item] for item in items if item in stack}
        columns = tuple(column for item in items for column in stack.get(item, [item]))
        if missing := [name for name in columns if name not in selected.names]:
            raise ConfigError(f"stack= with sequences= takes columns, not fields of structs such as {missing[0]!r}.")
        here = {*columns, *stacks, "*"}
        _, shaper = prepared_shaper(
            output_format,
            pa.schema([selected.field(name) for name in columns]),
            stack=stacks or None,
            nulls=_for_columns(nulls, here) or None if isinstance(nulls, Mapping) and set(nulls) != {"fill"} else nulls,
            encode=_for_columns(encode or {}, here),
            dtypes=_for_columns(dtypes or {}, here),
        )
        names.update(item + suffix for item in items)
        roles.append(Role(part=part, columns=columns, shaper=shaper, suffix=suffix))
    if twice := [name for name, count in names.items() if count > 1]:
        raise ConfigError(f"sequences= would give two columns the name {twice[0]!r}: give the stored one another name.")
    if not roles:
        raise ConfigError("sequences= needs a column to deliver: name one in columns=.")
    return SequenceShaper(roles=tuple(roles), sequences=sequences)


def _for_columns(options: Mapping[str, T], names: Set[str]) -> dict[str, T]:
    """Return the options of these columns and of their fields."""
    return {name: value for name, value in options.items() if name in names or name.split(".")[0] in names}


def _parts(
    names: Sequence[str], stack: Mapping[str, Sequence[str]], sequences: Sequences
) -> Iterator[tuple[Part, str, list[str]]]:
    """Yield part, suffix, and columns and stacks of each role. names: Columns to deliver."""
    stacked = set(chain.from_iterable(stack.values()))
    items = [*stack, *(name for name in names if name not in stacked)]
    for option in ("targets", "known", "static"):
        for name in getattr(sequences, option) or ():
            if name not in items:
                raise ConfigError(f"Sequences.{option} names {name!r}, which batches lack; {which_column(name, items)}")
    static, known = {*sequences.static, *sequences.by}, {*sequences.known, sequences.order}
    both = set(sequences.targets or ()) & known | {*(sequences.targets or ()), *sequences.known} & static
    if both:
        raise ConfigError(f"Sequences: {min(both)!r} is static, known or a target, and only one of them.")
    targets = set(items) - static - known if sequences.targets is None else set(sequences.targets)
    roles: list[tuple[Part, str, Set[str | None]]] = [
        ("past", "", set(items) - static),
        ("first", "", static),
        ("horizon", "_target", targets),
        ("horizon", "_future", known),
    ]
    for part, suffix, chosen in roles:
        here = [item for item in items if item in chosen]
        if here and (part != "horizon" or sequences.horizon_rows):
            yield part, suffix, here
