"""Protocols between reading and shaping: a reader gives record batches, a shaper makes a block of rows of them.

The stream uses readers, shapers and blocks through these protocols and imports no stage. `read_block` makes the block
of one row group.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, Union

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.row_group_task import ALL_ROWS, GroupRows, RowGroupTask
from torch_dataloader_utils._core.token_budget import Lengths
from torch_dataloader_utils._runtime.reused_memory import RecycledMemory
from torch_dataloader_utils.errors import CorruptFileError, LoaderError, NullValueError, SchemaError

if TYPE_CHECKING:
    import pyarrow as pa


ReadPart: TypeAlias = Union["pa.RecordBatch", tuple[Any, ...]]
"""Record batch of a few columns; or a fact about the record batches that follow: a named tuple, for the shaper of the
same pipeline, which asks for the fact."""


class RowGroupReader(Protocol):
    """Reader of row groups; picklable, holds nothing live until the first read in a process, thread-safe."""

    def read_columns(self, task: RowGroupTask, rows: GroupRows = ALL_ROWS) -> Generator[ReadPart]:
        """Yield the live rows of one row group, projected, in file order: record batches of a few columns each.

        All record batches have the same rows; each comes as soon as it is decoded. At least one comes, without columns
        if no columns are asked for. Columns of numbers may come as a `NumberBatch` (`_arrow/number_batch.py`). Every
        column comes once, in any order; extra columns that are not delivered may come too.

        rows: Range of the live rows. Exactly these rows come, even if the format has to be decoded from its first row.

        The rows are checked when the iterator ends. An error about values may be thrown into the iterator: it raises
        the same error, or its real cause.

        Raises:
            DataError: the bytes differ from the plan; the message names file and row group.
            RowCountError: the number of live rows differs from `task.live_rows` (where that is known).
        """
        ...

    def read_together(self, tasks: Sequence[RowGroupTask]) -> "JoinedRows":
        """Return all live rows of several small row groups (at least one), joined.

        Raises:
            Exception: any error. Call `read_columns` for each row group to find the bad row group and get its message.
        """
        ...


class JoinedRows(NamedTuple):
    """Rows of several row groups, one after the other: record batches of a few columns each, of all rows.

    rows: Number of rows of each row group. by_one_call: Whether one call without Python's lock decoded all rows.
    """

    parts: Sequence[ReadPart]
    rows: Sequence[int]
    by_one_call: bool


class Block(Protocol):
    """Rows in the output format, immutable; slices are views."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        ...

    @property
    def num_bytes(self) -> int:
        """Memory held, for the decode-ahead budget."""
        ...

    def slice(self, start: int, stop: int) -> "Block":
        """Return rows [start, stop), a view that costs nothing if it has all rows; rows past the end are left out."""
        ...

    def to_batch(self) -> Any:
        """Return all rows as one batch of the user's output format."""
        ...

    def split(self, batch_rows: int) -> Iterator[Any]:
        """Yield batches of `batch_rows` consecutive rows; the last may be shorter. Cheaper than slicing."""
        ...


BlockT = TypeVar("BlockT", bound=Block)


class MeasuredBlock(Block, Protocol):
    """Block with a length for each row; windows may be ordered by these lengths."""

    @property
    def lengths(self) -> Lengths:
        """Lengths of the rows, shape [num_rows]."""
        ...


class Shaper(Protocol):
    """Converter of record batches into blocks of the output format; picklable, the same for every worker."""

    def use_memory(self, memory: RecycledMemory) -> None:
        """Use this memory, from now on, for everything that this process copies into large blocks."""
        ...

    def with_copied_columns(self, least_bytes: int) -> "Shaper":
        """Return a shaper that also copies columns of numbers otherwise left in the memory of record batches.

        The copies go to the same memory as stacks. Columns of fewer than `least_bytes` are not copied: all columns of
        one number a row count together, any other column on its own.
        """
        ...

    def block(self, parts: Iterable[Any]) -> Block:
        """Return the block of one row group, or of several (`JoinedRows`), from record batches of a few columns each.

        parts: All that the reader of the pipeline gives; see `ReadPart`.

        Each record batch is converted as it comes, while it is in a core's cache; after that rows are only sliced.
        """
        ...

    def concat(self, blocks: Sequence[Block], spans: Int64s | None = None) -> Block:
        """Return the rows of all blocks (at least one), or only the rows of the spans, one after the other.

        spans: Rows to take, (block, first row, number of rows) each, int64 [spans, 3], at least one. None: all rows.
        """
        ...

    def gather(self, blocks: Sequence[Block], order: Int64s) -> Block:
        """Return a block with row i = row order[i] of the concatenated blocks; order may leave out rows."""
        ...


def cut_spans(blocks: Sequence[BlockT], spans: Int64s | None) -> Sequence[BlockT]:
    """Return a block for each of the spans, or the blocks themselves without spans; see `Shaper.concat`."""
    if spans is None:
        return blocks
    return [blocks[number].slice(first, first + rows) for number, first, rows in spans.tolist()]


def read_block(reader: RowGroupReader, shaper: Shaper, task: RowGroupTask, rows: GroupRows = ALL_ROWS) -> Block:
    """Return the block of these rows of one row group.

    Raises:
        LoaderError: see RowGroupReader.read_columns and Shaper.block.
    """
    with closing(reader.read_columns(task, rows)) as columns:
        try:
            return shaper.block(columns)
        except LoaderError as error:
            if isinstance(error, SchemaError | NullValueError | CorruptFileError) and task.where not in str(error):
                error.args = (f"{task.where}: {error}",)
            columns.throw(error)  # values that do not fit may come from a file that was replaced
            raise
