"""`NumberedRows`: random access to the rows of columnar files, as a map-style data set."""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, SupportsIndex

import numpy as np
import pyarrow as pa
from torch.utils.data import Dataset

from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils._core.arguments import parse_bytes
from torch_dataloader_utils._core.block import Block, read_block
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import Int64s, Inventory
from torch_dataloader_utils._core.option_fields import Checked, option
from torch_dataloader_utils._core.token_budget import Lengths
from torch_dataloader_utils._core.units import RowSpace
from torch_dataloader_utils._runtime.parallel import map_watched
from torch_dataloader_utils._store.process_local import ProcessLocal
from torch_dataloader_utils.datasets.options import TableOptions
from torch_dataloader_utils.datasets.rank_agreement import Ranks
from torch_dataloader_utils.datasets.row_counts import read_lengths
from torch_dataloader_utils.datasets.source import Source, find_inventory
from torch_dataloader_utils.datasets.table_rows import build_rows, read_spec
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.shape.column_blocks import split_rows
from torch_dataloader_utils.shape.lengths import check_has_lengths
from torch_dataloader_utils.stream.block_cache import BlockCache, CacheInfo
from torch_dataloader_utils.tables.reader import Reader, make_reader

# Rows made at once by iterating: enough to hide the cost of a gather, few enough to hold as dicts.
_ITERATED_ROWS = 1024


@dataclass(frozen=True, kw_only=True)
class RowOptions(Checked):
    """Options of `RowDataset` alone."""

    cache_bytes: int | str = option(
        "256MiB",
        'Size of the decoded row groups that each process keeps, an int or text such as "1GiB"; the last used one '
        "stays in any case.",
        parse_bytes,
        tier="everyday",
    )
    length_column: str | None = option(
        None, "Column of `sort_key` and `lengths`: numbers (the value), lists (items) or text (bytes).", tier="everyday"
    )


class NumberedRows(Dataset[Any]):
    """Live rows of an inventory by their number; see `RowDataset`."""

    def _begin(self, source: Source, options: TableOptions, row_options: RowOptions) -> None:
        """Run the first two of the five steps of `build`, inventory and rows."""
        found, access = find_inventory(source, options, Ranks())
        rows = build_rows(found, options, access, Share(threads=options.threads))
        self._inventory, self._reader, self._shaper = rows.inventory, rows.reader, rows.shaper
        self._space = RowSpace.of(rows.inventory.groups)
        self._threads = options.threads
        self._cache_bytes = int(row_options.cache_bytes)
        self._schema = rows.selected
        self._length_reader: Reader | None = None
        if row_options.length_column is not None:
            check_has_lengths(decode_schema(found.schema), row_options.length_column, "length_column")
            self._length_reader = make_reader(read_spec(found, options, access, (row_options.length_column,)))
        # Lengths travel to workers with the data set, decoded row groups do not.
        self._known_lengths: Lengths | None = None
        self._cache: ProcessLocal[BlockCache] = ProcessLocal()
        self._measured: ProcessLocal[Lengths] = ProcessLocal()

    @property
    def inventory(self) -> Inventory:
        """Files and row groups, with live rows counted. Pass it on to plan or open the same data again."""
        return self._inventory

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._inventory}>"

    def __len__(self) -> int:
        """Return the number of live rows, after deletes and filter."""
        return self._space.num_rows

    def __getitem__(self, index: SupportsIndex) -> Any:
        """Return one row. A negative index counts from the end, as in a list.

        Raises:
            IndexError: outside the data set. TypeError: not a whole number.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Any]:
        """Return rows in the order of the indices. A repeated index gives its row again. Each row group is read once.

        DataLoader asks for batches with this.
        """
        positions = self._positions(indices)
        return split_rows(self._gather(positions).to_batch(), len(positions))

    def __iter__(self) -> Iterator[Any]:
        """Yield all rows in order, row group by row group."""
        for start in range(0, len(self), _ITERATED_ROWS):
            yield from self.__getitems__(range(start, min(start + _ITERATED_ROWS, len(self))))

    def take(self, indices: Sequence[SupportsIndex]) -> Any:
        """Return the rows at `indices` as one batch of the output format, without making single rows first.

        The fast way to random batches, ten times and more for many columns:

            DataLoader(range(len(rows)), batch_size=64, sampler=sampler, collate_fn=rows.take)

        Raises:
            IndexError: outside the data set. TypeError: not a list of whole numbers.
        """
        return self._gather(self._positions(indices)).to_batch()

    @property
    def lengths(self) -> Lengths:
        """Length of every row, shape [len(self)], read-only; int32 if the integers fit.

        The length column is read once, when the lengths are first needed. Lengths that were read before a DataLoader is
        made travel to its workers; otherwise each worker that needs lengths reads the column itself.

        Raises:
            ConfigError: the data set has no length_column.
        """
        if self._known_lengths is None:
            self._known_lengths = self._measured.get(self._measure)
        return self._known_lengths

    def sort_key(self, index: SupportsIndex) -> int | float:
        """Return the length of a row, from `length_column` alone (see `lengths`).

        Raises:
            IndexError: outside the data set. TypeError: not a whole number.
        """
        return self.lengths[self._positions([index])[0]].item()  # type: ignore[no-any-return]

    def cache_info(self) -> CacheInfo:
        """Return the counts of this process's row group cache. If it has many misses, pass a larger `cache_bytes`."""
        return self._blocks.info()

    @property
    def _blocks(self) -> BlockCache:
        return self._cache.get(partial(BlockCache, self._cache_bytes))

    def _positions(self, indices: Sequence[SupportsIndex]) -> Int64s:
        """Return row numbers in [0, len(self))."""
        total = len(self)
        positions = _whole_numbers(indices, total)
        wrong = np.flatnonzero((positions < -total) | (positions >= total))
        if len(wrong):
            raise _no_such_row(int(positions[wrong[0]]), total)
        return np.where(positions < 0, positions + total, positions)

    def _gather(self, positions: Int64s) -> Block:
        """Return a block of these rows, in this order, in memory of its own."""
        if len(positions) == 0:
            return self._shaper.block([pa.RecordBatch.from_pylist([], schema=self._schema)])
        group = self._space.group_of(positions)
        by_group = np.argsort(group, kind="stable")
        groups, first = np.unique(group[by_group], return_index=True)
        wanted = np.split(positions[by_group] - self._space.group_start[group[by_group]], first[1:])
        parts = self._gather_groups(groups.tolist(), wanted)
        if len(parts) == 1:
            return parts[0]
        place = np.empty_like(by_group)
        place[by_group] = np.arange(len(by_group))
        return self._shaper.gather(parts, place)

    def _gather_groups(self, groups: list[int], wanted: list[Int64s]) -> list[Block]:
        blocks = self._blocks
        missing = sum(not blocks.holds(group) for group in groups)
        if missing < 2 or self._threads < 2:
            return list(map(self._gather_group, groups, wanted))
        pairs, threads = list(zip(groups, wanted, strict=True)), min(self._threads, missing)
        return map_watched(lambda pair: self._gather_group(*pair), pairs, threads=threads, name="tdu-rows")

    def _gather_group(self, group: int, rows: Int64s) -> Block:
        """Return copies of rows: a row that the caller keeps does not keep its row group."""
        return self._shaper.gather([self._blocks.get(group, self._decode)], rows)

    def _decode(self, group: int) -> Block:
        return read_block(self._reader, self._shaper, self._inventory.task(group))

    def _measure(self) -> Lengths:
        if self._length_reader is None:
            raise ConfigError("sort_key and lengths need a length: pass length_column= to RowDataset.")
        reader = self._length_reader
        what = str(reader.spec.columns)
        return read_lengths(self._inventory, reader.read, Share(threads=self._threads), what=what)


def _whole_numbers(indices: Any, total: int) -> Int64s:
    """Return the indices as int64. An index beyond int64 is an IndexError, as in Python's lists."""
    try:
        return np.fromiter(map(operator.index, indices), dtype=np.int64, count=len(indices))
    except TypeError as error:
        raise ConfigTypeError(
            f"rows {indices!r}: pass whole numbers, a list of them to take(); rows[3] is one row."
        ) from error
    except OverflowError as error:
        raise _no_such_row(max(map(operator.index, indices), key=abs), total) from error


def _no_such_row(row: int, total: int) -> IndexError:
    return IndexError(f"Row {row} is not in a data set of {total} rows: pass one in [{-total}, {total}).")
