"""How row groups become blocks of rows: a reader gives record batches, a shaper makes a block of them.

The protocols of all three, through which the stream uses stages that it does not import, and `read_block`, which makes
the block of one row group.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch_dataloader_utils._core.inventory import ALL_ROWS, GroupRows, Int64s, RowGroupTask
from torch_dataloader_utils._core.token_budget import Lengths
from torch_dataloader_utils._runtime.reused_memory import RecycledMemory
from torch_dataloader_utils.errors import CorruptFileError, LoaderError, NullValueError, SchemaError

if TYPE_CHECKING:
    import pyarrow as pa


class RowGroupReader(Protocol):
    """Reads row groups; picklable, holds nothing live until the first read in a process, thread-safe."""

    def read_columns(self, task: RowGroupTask, rows: GroupRows = ALL_ROWS) -> Generator["pa.RecordBatch"]:
        """Live rows of one row group, projected, in file order: record batches of a few columns each.

        All of them have the same rows; each comes as soon as it is decoded. There is at least one, without columns if
        none are asked for. Every column comes once, in any order; some may come that are not delivered.

        rows: which of the live rows; exactly those come, also where a format has to be decoded from its first row on.

        The rows are checked when the iterator ends. An error about values may be thrown into it: it raises that error,
        or its real cause.

        Raises:
            DataError: the bytes are not what was planned; the message names file and row group.
            RowCountError: another number of live rows than `task.live_rows` (where that is known).
        """
        ...

    def read_together(self, tasks: Sequence[RowGroupTask]) -> "JoinedRows":
        """All live rows of several small row groups (at least one), joined.

        Raises:
            Exception: one of them is not as planned, or they do not join; `read_columns` of each raises the error of
                the row group that it is about.
        """
        ...


class JoinedRows(NamedTuple):
    """Rows of several row groups, one after the other: record batches of a few columns each, of all rows.

    rows: how many each row group has. by_one_call: whether one call without Python's lock decoded them.
    """

    parts: Sequence["pa.RecordBatch"]
    rows: Sequence[int]
    by_one_call: bool


class Block(Protocol):
    """Rows in the output format, immutable; slices are views."""

    @property
    def num_rows(self) -> int:
        """How many rows."""
        ...

    @property
    def num_bytes(self) -> int:
        """Memory held, for the decode-ahead budget."""
        ...

    def slice(self, start: int, stop: int) -> "Block":
        """Rows [start, stop), a view that costs nothing if it is of all of them; rows past the end are left out."""
        ...

    def to_batch(self) -> Any:
        """All rows as one batch of the user's output format."""
        ...

    def split(self, batch_rows: int) -> Iterator[Any]:
        """Batches of `batch_rows` consecutive rows, the last one shorter if it must be; cheaper than slicing."""
        ...


class MeasuredBlock(Block, Protocol):
    """A block whose rows have lengths, by which windows may be ordered."""

    @property
    def lengths(self) -> Lengths:
        """One number a row, shape [num_rows]."""
        ...


class Shaper(Protocol):
    """Turns record batches into blocks of the output format; picklable and stateless."""

    def use_memory(self, memory: RecycledMemory) -> None:
        """Put everything that this process copies into large blocks into this memory, from now on."""
        ...

    def with_copied_columns(self, least_bytes: int) -> "Shaper":
        """A shaper that copies columns of numbers which otherwise would stay in the record batches' memory.

        They go to the same memory as stacks. Not copied is what takes fewer than `least_bytes`: all columns of one
        number a row together, any other column on its own.
        """
        ...

    def block(self, parts: Iterable["pa.RecordBatch"]) -> Block:
        """The block of one row group, or of several (`JoinedRows`), from record batches of a few columns each.

        Each is converted as it comes, while it is in a core's cache; after that rows are only sliced.
        """
        ...

    def concat(self, blocks: Sequence[Block]) -> Block:
        """The rows of all blocks, one after the other (at least one block)."""
        ...

    def gather(self, blocks: Sequence[Block], order: Int64s) -> Block:
        """Row i of the result is row order[i] of the blocks' concatenation; order may be shorter than it."""
        ...


def read_block(reader: RowGroupReader, shaper: Shaper, task: RowGroupTask, rows: GroupRows = ALL_ROWS) -> Block:
    """The block of these rows of one row group.

    Raises:
        LoaderError: see RowGroupReader.read_columns and Shaper.block.
    """
    with closing(reader.read_columns(task, rows)) as columns:
        try:
            return shaper.block(columns)
        except LoaderError as error:
            if isinstance(error, SchemaError | NullValueError | CorruptFileError) and task.where not in str(error):
                error.args = (f"{task.where}: {error}",)
            columns.throw(error)  # values that do not fit may be those of a file that was replaced
            raise
