"""Make the shaper of an output format: `make_shaper` checks the options of nulls and stacks."""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import torch

from torch_dataloader_utils._arrow.number_batch import NumberBatch
from torch_dataloader_utils._arrow.process_memory import RECYCLED
from torch_dataloader_utils._arrow.schema import FieldPath
from torch_dataloader_utils._core.block import Shaper
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._runtime.recent import Recent
from torch_dataloader_utils._runtime.reused_memory import RecycledMemory
from torch_dataloader_utils.errors import ConfigError, SchemaError
from torch_dataloader_utils.shape.arrow_blocks import ArrowShaper
from torch_dataloader_utils.shape.arrow_types import (
    NumpyType,
    ObjectType,
    classify,
    element_of,
    numpy_dtype,
)
from torch_dataloader_utils.shape.column_blocks import (
    ArrayOutput,
    ColumnBlock,
    Output,
    Places,
    TensorOutput,
    place_blocks,
)
from torch_dataloader_utils.shape.column_copies import ColumnCopies
from torch_dataloader_utils.shape.columns import Column, Rows, Singles
from torch_dataloader_utils.shape.convert import StackBuilder, convert_column, torch_dtype
from torch_dataloader_utils.shape.raw_numbers import plain
from torch_dataloader_utils.shape.specs import (
    ColumnSpec,
    Mask,
    StackSpec,
    column_specs,
    output_names,
    stack_specs,
)
from torch_dataloader_utils.shape.structs import NestedOutput, nested_paths

# Row groups differ in the columns that have no nulls, and files in their columns.
_MOST_PLANS = 16

OutputFormat = Literal["torch", "numpy", "arrow", "dict"]


def make_shaper(
    output_format: OutputFormat,
    schema: pa.Schema,
    *,
    stack: Mapping[str, Sequence[str]] | None = None,
    nulls: object = None,
    paths: Mapping[str, FieldPath] | None = None,
) -> Shaper:
    """Return the shaper of record batches with the columns of `schema`, to batches in its order.

    Args:
        output_format: "torch" gives `TensorBatch`, "numpy" dicts of ndarrays, "arrow" RecordBatches, "dict" dicts of
            Python lists.
        schema: columns of batches, as `specs.select_fields` returned them.
        stack: matrix name -> names of columns of one number type; torch and numpy only. Batches do not have stacked
            columns on their own.
        nulls: null policy, see `specs.parse_nulls`; torch and numpy only, the other formats keep nulls.
        paths: path in batches of each column that is a field of a struct; see `structs`.

    Raises:
        ConfigError: an option does not fit the schema or the output format.
    """
    if output_format not in get_args(OutputFormat):
        raise ConfigError(
            f"output_format={output_format!r} is unknown; choose one of {', '.join(get_args(OutputFormat))}."
        )
    if output_format in ("arrow", "dict"):
        for option, value in (("stack", stack), ("nulls", nulls)):
            if value:
                raise ConfigError(
                    f'{option}= is for output_format "torch" and "numpy"; "{output_format}" keeps columns and nulls '
                    f"as they are. Leave {option}= out, or choose another output_format."
                )
        return ArrowShaper(schema=schema, as_python=output_format == "dict")
    specs = column_specs(schema, nulls)
    stacks = stack_specs(stack, specs)
    stacked = {column.name for spec in stacks for column in spec.columns}
    alone = tuple(spec for spec in specs if spec.name not in stacked)
    names = output_names(alone, stacks)
    output: Output = TensorOutput() if output_format == "torch" else ArrayOutput(_dtypes(alone, stacks))
    if paths:
        output = NestedOutput(output, nested_paths(names, paths))
    return ColumnShaper(columns=alone, stacks=stacks, names=names, output=output)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnShaper:
    """Shaper of record batches to blocks of tensors; implements `_core.block.Shaper`. Built by `make_shaper`.

    names: names of a batch's entries: stacks first, then columns, each mask after its column.
    least_copied_bytes: see `with_copied_columns`; None: only columns that must be converted are copied.
    """

    columns: tuple[ColumnSpec, ...]
    stacks: tuple[StackSpec, ...]
    names: tuple[str, ...]
    output: Output
    least_copied_bytes: int | None = None
    _plans: "Recent[int, NumberPlan]" = field(
        default_factory=lambda: Recent(_MOST_PLANS), init=False, repr=False, compare=False
    )

    def use_memory(self, memory: RecycledMemory) -> None:
        """See Shaper."""
        RECYCLED.use(memory)

    def with_copied_columns(self, least_bytes: int) -> "ColumnShaper":
        """See Shaper."""
        return replace(self, least_copied_bytes=least_bytes)

    def block(self, parts: Iterable[pa.RecordBatch]) -> ColumnBlock:
        """Return the block of these columns. Numbers without nulls stay in Arrow's memory, unless they must be copied.

        Raises:
            SchemaError: a column is missing or has another type than in the schema.
            NullValueError: a column has nulls that `nulls=` does not allow; the message has column and count.
        """
        coming = iter(parts)
        first = next(coming)
        builders = [StackBuilder(stack, first.num_rows) for stack in self.stacks]
        plan = self._plan(first) if isinstance(first, NumberBatch) else None
        runs = [] if plan is None else plan.put(first, builders)
        if plan is not None and plan.is_complete:
            deque(coming, maxlen=0)  # rows are checked when the iterator ends
            return self._block(first.num_rows, builders, runs, plan.places)
        waiting = {spec.name: spec for spec in self.columns}
        stacked: dict[str, tuple[StackBuilder, int]] = {}
        for stack, builder in zip(self.stacks, builders, strict=True):
            waiting |= {spec.name: spec for spec in stack.columns}
            stacked |= {spec.name: (builder, place) for place, spec in enumerate(stack.columns)}
        for name in () if plan is None else plan.taken:
            del waiting[name]
        least = self.least_copied_bytes
        copies = None if least is None else ColumnCopies(self.columns, first.num_rows, least, in_place=runs)
        alone: dict[str, tuple[Column, ...]] = {}
        for part in itertools.chain([first], coming):
            for name, spec, array in _waited_for(part, waiting):
                if name in stacked:
                    builder, place = stacked[name]
                    builder.put(place, _of_schema(spec, array))
                    continue
                columns = convert_column(spec, _of_schema(spec, array))
                alone[name] = columns if copies is None else tuple(map(copies.copy, columns))
        if waiting:
            came = ", ".join((*alone, *(name for name in stacked if name not in waiting))) or "no columns"
            raise SchemaError(f"a record batch lacks column {next(iter(waiting))!r}; it has {came}")
        others = itertools.chain.from_iterable(alone[spec.name] for spec in self.columns if spec.name in alone)
        places = None if plan is None else self._places(plan.names, alone)
        return self._block(first.num_rows, builders, [*runs, *others], places)

    def _block(
        self, num_rows: int, builders: Sequence[StackBuilder], columns: Sequence[Column], places: Places
    ) -> ColumnBlock:
        """Return the block of stacks and other columns, in this order."""
        return ColumnBlock(
            names=self.names,
            columns=(*itertools.chain.from_iterable(builder.columns() for builder in builders), *columns),
            stored_rows=num_rows,
            output=self.output,
            num_rows=num_rows,
            places=places,
        )

    def _places(self, in_runs: Sequence[str], alone: Mapping[str, Sequence[Column]]) -> Places:
        """Return the places of a batch's entries if a block has stacks, then runs, then columns that lie alone."""
        following = sum(1 + stack.has_mask for stack in self.stacks)
        places = list(range(following))
        in_run = {name: number for number, name in enumerate(in_runs, following)}
        following += len(in_runs)
        for spec in self.columns:
            count = len(alone.get(spec.name, ()))
            places += range(following, following + count) if count else [in_run[spec.name]]
            following += count
        return None if places == sorted(places) else tuple(places)

    def _plan(self, part: NumberBatch) -> "NumberPlan":
        plan = self._plans.find(id(part.schema))
        if plan is None or plan.schema is not part.schema:
            plan = NumberPlan.of(part, self.columns, self.stacks)
            names = [spec.name for stack in self.stacks for spec in stack.columns]
            names += [spec.name for spec in self.columns]
            if plan.taken.issuperset(names):
                plan = plan._replace(is_complete=True, places=self._places(plan.names, {}))
            self._plans.keep(id(part.schema), plan)
        return plan

    def concat(self, blocks: Sequence[Any], spans: Int64s | None = None) -> ColumnBlock:
        """Return the rows of all blocks, or of the spans, one after the other. Rows of a single one are not copied."""
        return place_blocks(blocks, spans=spans)

    def gather(self, blocks: Sequence[Any], order: Int64s) -> ColumnBlock:
        """Return the block with row order[i] of the blocks' concatenation as row i, in new memory.

        Raises:
            IndexError: an entry of `order` is negative or past the last row.
        """
        return place_blocks(blocks, torch.from_numpy(np.require(order, np.int64, ["C", "W"])))


class NumberPlan(NamedTuple):
    """Columns of a NumberBatch that a shaper takes where they lie, without an Arrow array.

    schema: Schema of the batches that the plan is for. stacks: Number, run, and first and last row in the run's matrix,
    for each stack that lies there whole. runs: Run, and first and last row in its matrix, of neighbours among the other
    columns. names: Names of the columns of `runs`. taken: Names of all columns.
    is_complete: Whether these are all columns of a block. places: Places of a batch's entries then.
    """

    schema: pa.Schema
    stacks: Sequence[tuple[int, int, int, int]]
    runs: Sequence[tuple[int, int, int]]
    dtypes: Sequence[torch.dtype]
    names: tuple[str, ...]
    taken: frozenset[str]
    is_complete: bool = False
    places: Places = None

    @classmethod
    def of(cls, part: NumberBatch, columns: Sequence[ColumnSpec], stacks: Sequence[StackSpec]) -> "NumberPlan":
        """Return the plan for batches of this schema."""
        fields = list(part.schema)
        places = {
            fields[run.first + row].name: (number, row)
            for number, run in enumerate(part.runs)
            for row in range(run.num_columns)
        }

        def place_of(spec: ColumnSpec) -> tuple[int, int]:
            is_same = spec.name in places and part.schema.field(spec.name).type == spec.data_type
            return places[spec.name] if is_same and spec.is_plain else (-1, 0)

        whole = []
        for number, stack in enumerate(stacks):
            found = [place_of(spec) for spec in stack.columns]
            run, first = found[0]
            if run >= 0 and found == [(run, first + index) for index in range(len(found))]:
                whole.append((number, run, first, first + len(found)))
        alone = sorted((*place_of(spec), spec.name) for spec in columns if not isinstance(spec.nulls, Mask))
        runs: list[tuple[int, int, int]] = []
        names = []
        for run, row, name in alone:
            if run < 0:
                continue
            names.append(name)
            if runs and (run, row) == (runs[-1][0], runs[-1][2]):
                runs[-1] = run, runs[-1][1], row + 1
            else:
                runs.append((run, row, row + 1))
        taken = {spec.name for number, *_ in whole for spec in stacks[number].columns}
        dtypes = [torch_dtype(run.dtype) for run in part.runs]
        return cls(part.schema, whole, runs, dtypes, tuple(names), frozenset(taken.union(names)))

    def put(self, part: NumberBatch, builders: Sequence[StackBuilder]) -> list[Singles | Rows]:
        """Put stacks into `builders`. Return the runs of other columns."""
        memory, rows = torch.from_numpy(part.memory), part.num_rows
        matrices = [
            memory.view(dtype).as_strided((count, rows), (pitch // dtype.itemsize, 1), start // dtype.itemsize)
            for (_, count, _, start, pitch), dtype in zip(part.runs, self.dtypes, strict=True)
        ]
        for number, run, first, stop in self.stacks:
            builders[number].put_whole(matrices[run][first:stop])
        runs: list[Singles | Rows] = []
        for run, first, stop in self.runs:
            matrix = matrices[run] if stop - first == part.runs[run].num_columns else matrices[run][first:stop]
            runs.append(Singles(matrix) if stop - first > 1 else Rows(matrix[0]))
        return runs


def _waited_for(part: Any, waiting: dict[str, ColumnSpec]) -> Iterator[tuple[str, ColumnSpec, pa.Array]]:
    """Take the specs of a part's columns out of `waiting`, and yield them with the columns."""
    if isinstance(part, NumberBatch) and waiting.keys().isdisjoint(part.schema.names):
        return  # without an Arrow array
    for name, array in zip(part.schema.names, part.columns, strict=True):
        spec = waiting.pop(name, None)
        if spec is not None:
            yield name, spec, array


def _of_schema(spec: ColumnSpec, array: pa.Array) -> pa.Array:
    if array.type == spec.data_type:
        return array
    if classify(array.type) != spec.kind:
        raise SchemaError(
            f"column {spec.name!r} is {array.type} in a record batch and {spec.data_type} in the data set's schema. "
            "Files of one data set must agree, or the reader must cast"
        )
    return plain(array)


def _dtypes(columns: Sequence[ColumnSpec], stacks: Sequence[StackSpec]) -> tuple[NumpyType, ...]:
    """Return numpy dtypes in the order of `output_names`."""
    dtypes: list[NumpyType] = []
    for stack in stacks:
        dtypes += _with_mask(_dtype(stack.columns[0]), has_mask=stack.has_mask)
    for column in columns:
        dtypes += _with_mask(_dtype(column), has_mask=isinstance(column.nulls, Mask))
    return tuple(dtypes)


def _with_mask(dtype: NumpyType, *, has_mask: bool) -> list[NumpyType]:
    return [dtype, np.dtype(np.bool_)] if has_mask else [dtype]


def _dtype(spec: ColumnSpec) -> NumpyType:
    return np.dtype(object) if isinstance(spec.kind, ObjectType) else numpy_dtype(element_of(spec.kind))
