"""Cut a data set into chunks (neighbouring row groups of one file), and order the chunks of an epoch."""

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions
from torch_dataloader_utils._core.permute import Purpose, permutation
from torch_dataloader_utils._core.units import RowSpace, Units

_MOST_CHUNK_BYTES = 128 << 20

# With batches of about 1,024 rows, 1,024 chunks mix about as well as single rows do, and a chunk is still a long read.
_SHUFFLED_CHUNKS = 1024


def chunk_row_groups(space: RowSpace, options: PlanOptions) -> Units:
    """Return the chunks of a data set in file order, as plain units.

    A chunk takes row groups until it has `split_rows` rows or else `split_bytes` projected bytes. It lies in one file
    and has at least one row group. Without either option a chunk takes 128 MiB; with `shuffle` a 1,024th of the data
    set, if that is less, so that small data is shuffled too. Chunks depend on data and options, never on ranks or
    workers. Chunks without rows are left out.

        split_rows=4, files of groups (3, 3, 3) and (2)      6, 3 | 2
    """
    if options.split_rows is not None:
        measure, target = space.group_start, options.split_rows
    else:
        measure, target = space.byte_start, options.split_bytes or _default_bytes(space, options)
    # A chunk needs no more than everything, and adding a larger target could exceed int64.
    target = min(target, int(measure[-1]) + 1)
    first = _first_groups(measure, space, target)
    bounds = np.append(first, len(space.file))
    start, stop = space.group_start[bounds[:-1]], space.group_start[bounds[1:]]
    filled = stop > start
    return Units.plain(start[filled], stop[filled])


def _default_bytes(space: RowSpace, options: PlanOptions) -> int:
    if not options.shuffle:
        return _MOST_CHUNK_BYTES
    return min(max(1, int(space.byte_start[-1]) // _SHUFFLED_CHUNKS), _MOST_CHUNK_BYTES)


def keep_span(units: Units, options: PlanOptions) -> Units:
    """Cut the plain units to the plan rows [first_row, stop_row) of the options; leave out units outside the span."""
    if options.first_row == 0 and options.stop_row is None:
        return units
    start = np.maximum(units.start, options.first_row)
    stop = units.stop if options.stop_row is None else np.minimum(units.stop, options.stop_row)
    inside = stop > start
    return Units.plain(start[inside], stop[inside])


def _first_groups(measure: Int64s, space: RowSpace, target: int) -> Int64s:
    """Return the first row group of every chunk, ascending."""
    groups = len(space.file)
    if groups == 0:
        return np.zeros(0, dtype=np.int64)
    ends = np.flatnonzero(np.diff(space.file, append=-1)) + 1
    file_end = ends[np.searchsorted(ends, np.arange(groups), side="right")]
    full = np.searchsorted(measure, measure[:-1] + target, side="left")
    following = np.clip(full, np.arange(1, groups + 1), file_end).tolist()
    first, group = [], 0
    while group < groups:
        first.append(group)
        group = following[group]
    return np.array(first, dtype=np.int64)


def share_chunks(chunks: Units, options: PlanOptions) -> Units:
    """Return the plain chunks in the order of the host shares: permuted by the seed, then cut into equal ranges.

    There are `host_shares` ranges. Without the option, the chunks are returned as they are.

    chunks of 4, 4, 4 rows, permuted to 2 0 1, host_shares=2      chunk 2, rows 0-1 of chunk 0 | the rest of it, chunk 1
    """
    if options.host_shares is None:
        return chunks
    mixed = chunks.take(permutation(len(chunks), seed=options.seed, epoch=0, purpose=Purpose.HOST_SHARES))
    ends = np.cumsum(mixed.rows)
    bounds = part_bounds(mixed.num_rows, options.host_shares)
    stop = np.union1d(ends, bounds[bounds > 0])
    start = stop - np.diff(stop, prepend=0)
    chunk = ends.searchsorted(start, side="right")
    moved = mixed.stop[chunk] - ends[chunk]
    return Units.plain(start + moved, stop + moved)


def part_bounds(num_rows: int, parts: int) -> Int64s:
    """Return where equal parts of a sequence of rows begin and end, int64 [parts + 1].

    The bounds of n parts are among the bounds of every multiple of n parts.

    11 rows in 4 parts      0 2 5 8 11      in 2      0 5 11
    """
    return np.arange(parts + 1, dtype=np.int64) * num_rows // parts


def part_of_units(units: Units, parts: int) -> Int64s:
    """Return the number of the part (see `part_bounds`) in which each unit begins, int64 [units]."""
    rows = units.rows
    return part_bounds(units.num_rows, parts).searchsorted(np.cumsum(rows) - rows, side="right") - 1


def order_chunks(chunks: Units, options: PlanOptions, epoch: int, parts: int = 1) -> Units:
    """Return the chunks in this epoch's order: as stored, or permuted by (seed, epoch) with `shuffle`.

    parts: number of parts of equal rows. Parts keep their order, and chunks are permuted within their part.
    """
    if not options.shuffle:
        return chunks
    order = permutation(len(chunks), seed=options.seed, epoch=epoch, purpose=Purpose.CHUNKS)
    return chunks.take(order[part_of_units(chunks, parts)[order].argsort(kind="stable")])
