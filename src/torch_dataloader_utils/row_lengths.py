"""The lengths of all rows of a data set, read once: for plans whose batches are limited by tokens, and for sort keys.

inventory, reader of one column  →  one number a plan row
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from torch_dataloader_utils._core.buckets import Lengths
from torch_dataloader_utils._core.inventory import Int64s, Inventory
from torch_dataloader_utils._core.rows import RowSpace
from torch_dataloader_utils._core.token_budget import TokenBudget
from torch_dataloader_utils.counting import Exchange
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.read.reader import Reader
from torch_dataloader_utils.shape.lengths import measure_rows

# Stands for what is no number of tokens (NaN, infinity); exact as a float and far from overflow when rounded up.
_ENDLESS = 1 << 60


def measure_groups(inventory: Inventory, reader: Reader, groups: Iterable[int], threads: int) -> list[Lengths]:
    """The lengths of the live rows of each of these row groups, by `threads` threads.

    reader: of the one column that is measured.

    Raises:
        DataError, StoreError: see Reader.read.
    """

    def measure(group: int) -> Lengths:
        return measure_rows(reader.read(inventory.task(group)).column(0))

    with ThreadPoolExecutor(threads, thread_name_prefix="tdu-lengths") as pool:
        return list(pool.map(measure, groups))


def read_token_counts(
    inventory: Inventory, reader: Reader, exchange: Exchange, *, threads: int, part: tuple[int, int]
) -> Int64s:
    """Whole tokens of every plan row, int64 [rows]; floats are rounded up.

    part: (index, count): this process reads every count-th row group, and `exchange` adds up what all processes
        read (arrays of the same shape, zero where another one reads).

    Raises:
        ConfigError: row counts are not known, so that rows have no numbers.
        DataError, StoreError: see Reader.read.
    """
    space = RowSpace.of(inventory.groups)
    if not space.exact:
        raise ConfigError(
            "max_tokens_per_batch needs exact row counts, and those of this data set are not known: leave count_rows "
            'at its default, or pass count_rows="auto".'
        )
    index, count = part
    mine = range(index, inventory.num_groups, count)
    tokens = np.zeros(space.num_rows, dtype=np.int64)
    for group, lengths in zip(mine, measure_groups(inventory, reader, mine, threads), strict=True):
        tokens[space.group_start[group] : space.group_start[group + 1]] = _whole(lengths)
    return exchange(tokens)


def narrow_lengths(lengths: Lengths) -> Lengths:
    """The same lengths as int32 where all are whole and fit, so that a row costs 4 bytes; read-only."""
    limits = np.iinfo(np.int32)
    if lengths.dtype.kind in "iu" and len(lengths) and limits.min <= lengths.min() <= lengths.max() <= limits.max:
        lengths = lengths.astype(np.int32, copy=False)
    lengths.flags.writeable = False
    return lengths


def check_rows_fit(tokens: Int64s, inventory: Inventory, budget: TokenBudget, column: str) -> None:
    """Raises ConfigError if a row alone exceeds the budget; the message names the first one.

    tokens: of every plan row.
    """
    widths = budget.widths(tokens)
    too_long = np.flatnonzero(widths > budget.max_tokens)
    if len(too_long) == 0:
        return
    row = int(too_long[0])
    space = RowSpace.of(inventory.groups)
    group = int(space.group_of(too_long[:1])[0])
    task = inventory.task(group)
    is_finite = widths[row] < _ENDLESS
    raise ConfigError(
        f"{len(too_long):,} rows alone take more than max_tokens_per_batch={budget.max_tokens:,}. The first is live "
        f"row {row - int(space.group_start[group])} of {task.path} row group {task.ordinal}, with "
        + (f"{widths[row]:,} tokens of {column!r}, padding included. " if is_finite else f"no finite {column!r}. ")
        + "Raise the limit, or leave such rows out with filters=."
    )


def _whole(lengths: Lengths) -> Int64s:
    kind = lengths.dtype.kind
    if kind in "iu":
        whole = np.minimum(lengths, np.asarray(_ENDLESS, f"{kind}8"))
    else:
        whole = np.ceil(np.clip(np.where(np.isfinite(lengths), lengths, _ENDLESS), 0, _ENDLESS))
    return np.asarray(whole, dtype=np.int64)
