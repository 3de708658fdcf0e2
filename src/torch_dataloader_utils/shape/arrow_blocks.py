"""Shape the outputs "arrow" and "dict": record batches as they are, or as dicts of Python lists."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from torch_dataloader_utils._arrow.batches import take_rows, without_categories
from torch_dataloader_utils._arrow.schema import type_holds
from torch_dataloader_utils._core.block import cut_spans
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._runtime.reused_memory import RecycledMemory
from torch_dataloader_utils.errors import SchemaError
from torch_dataloader_utils.shape.arrow_types import python_objects
from torch_dataloader_utils.shape.convert import check_text
from torch_dataloader_utils.shape.pickling import register_arrow_pickling

# Registered here, because every process that makes record batches for a trainer imports this module.
register_arrow_pickling()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrowBlock:
    """Block of rows as one record batch; nulls stay nulls. Implements `_core.block.Block`."""

    rows: pa.RecordBatch
    as_python: bool

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.rows.num_rows)

    @property
    def num_bytes(self) -> int:
        """Arrow bytes of the rows."""
        return int(self.rows.nbytes)

    def slice(self, start: int, stop: int) -> "ArrowBlock":
        """Return rows [start, stop), a view; rows past the end are left out."""
        start = min(start, self.num_rows)
        return ArrowBlock(rows=self.rows.slice(start, max(0, stop - start)), as_python=self.as_python)

    def to_batch(self) -> Any:
        """Return all rows: a RecordBatch, or a dict of column -> list."""
        if not self.as_python:
            return self.rows
        names = self.rows.schema.names
        return {name: python_objects(column, name) for name, column in zip(names, self.rows.columns, strict=True)}

    def split(self, batch_rows: int) -> Iterator[Any]:
        """Yield batches of `batch_rows` rows; the last batch may be shorter."""
        for start in range(0, self.num_rows, batch_rows):
            yield self.slice(start, start + batch_rows).to_batch()


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowShaper:
    """Shaper of record batches to `ArrowBlock`s of `schema`; implements `_core.block.Shaper`."""

    schema: pa.Schema
    as_python: bool

    def use_memory(self, memory: RecycledMemory) -> None:
        """Do nothing: record batches go through queues, not through shared memory."""

    def with_copied_columns(self, least_bytes: int) -> "ArrowShaper":  # noqa: ARG002
        """Return this shaper. See `use_memory`."""
        return self

    def block(self, parts: Iterable[pa.RecordBatch]) -> ArrowBlock:
        """Return the block of these columns, in the order of the schema.

        Raises:
            SchemaError: a column is missing or has another type. CorruptFileError: a text is not UTF-8.
        """
        came = list(parts)
        if self.as_python:  # blocks that are joined may have more categories than the index type allows
            came = without_categories(came)
        if not self.schema.names:
            return ArrowBlock(rows=came[0].select([]), as_python=self.as_python)
        columns = {name: (part, index) for part in came for index, name in enumerate(part.schema.names)}
        fields, arrays = [], []
        for wanted in self.schema:
            if wanted.name not in columns:
                raise SchemaError(f"a record batch lacks column {wanted.name!r}; it has {', '.join(columns)}")
            part, index = columns[wanted.name]
            field = part.schema.field(index)
            is_category = self.as_python and pa.types.is_dictionary(wanted.type)
            if field.type != (wanted.type.value_type if is_category else wanted.type):
                raise SchemaError(
                    f"column {field.name!r} is {field.type} in a record batch and {wanted.type} in the data set"
                )
            if self.as_python:
                check_text(field.name, part.column(index))
            fields.append(field)
            arrays.append(part.column(index))
        rows = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
        return ArrowBlock(rows=rows, as_python=self.as_python)

    def concat(self, blocks: Sequence[Any], spans: Int64s | None = None) -> ArrowBlock:
        """Return the rows of all blocks, one after the other, or the rows of the spans.

        Raises:
            SchemaError: together the blocks have more categories than the index type of a dictionary column allows, or
                more rows than the type of run ends allows.
        """
        blocks = cut_spans(blocks, spans)
        rows = blocks[0].rows if len(blocks) == 1 else _concat([block.rows for block in blocks])
        return ArrowBlock(rows=rows, as_python=self.as_python)

    def gather(self, blocks: Sequence[object], order: Int64s) -> ArrowBlock:
        """Return row order[i] of the blocks' concatenation, for all i.

        Raises:
            SchemaError: see `concat`. UnsupportedFeatureError: see `take_rows`.
        """
        return ArrowBlock(rows=take_rows(self.concat(blocks).rows, order), as_python=self.as_python)


def _concat(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    try:
        return pa.concat_batches(batches)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:  # ArrowNotImplementedError: run ends of tensors
        encoded = [field.name for field in batches[0].schema if type_holds(field.type, _is_encoded)]
        raise SchemaError(
            f"rows of several row groups do not join ({error}); categories or run ends are in the columns {encoded}. "
            "Write these columns with a wider index, or as plain values; columns of categories join with "
            'output_format="dict" too'
        ) from error


def _is_encoded(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(data_type) or pa.types.is_run_end_encoded(data_type))
