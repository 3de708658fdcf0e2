"""The lengths of all rows of a data set, read once: for plans whose batches are limited by tokens, and for sort keys.

inventory, reader of one column  →  one number a plan row
"""

from io import BytesIO

import numpy as np

from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.iceberg import IcebergFile
from torch_dataloader_utils._core.inventory import Int64s, Inventory
from torch_dataloader_utils._core.rows import RowSpace
from torch_dataloader_utils._core.token_budget import Lengths, TokenBudget
from torch_dataloader_utils._runtime.parallel import OnProgress, map_watched
from torch_dataloader_utils._store.host_cache import HostCache, row_length_cache
from torch_dataloader_utils._store.identity import any_names_no_version
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.read.reader import Reader
from torch_dataloader_utils.shape.lengths import measure_rows

# Stands for what is no number of tokens (negative, NaN, infinity); exact as a float, far from overflow when rounded up.
_ENDLESS = 1 << 60
# A quarter of the directory: 67 million rows.
_MOST_KEPT_BYTES = 256 << 20


def read_lengths(inventory: Inventory, reader: Reader, share: Share, on_progress: OnProgress | None = None) -> Lengths:
    """The lengths of the live rows of this process's row groups, in order; read-only, int32 where that is wide enough.

    What was read is kept on this host under the inventory's fingerprint, so that another process, and the next job,
    need not read it. (Not under a filter: its text need not say all of it. Nor where a web server names no version of a
    file: another one of its size may have taken its place.)

    reader: of the one column that is measured. share: which row groups; nothing is exchanged.
    on_progress: called in the caller's thread after each row group with (row groups done, row groups to do).

    Raises:
        DataError, StoreError: see Reader.read.
    """
    groups = share.of(inventory.num_groups)
    is_known = not inventory.row_filter and not any_names_no_version(inventory.files.identities)
    kept = row_length_cache() if is_known else None
    rows = f"{reader.spec.columns} of rows {share.index, share.count}{_read_by(inventory)}"
    key = (inventory.fingerprint(), rows)
    found = None if kept is None else _load(kept, key)
    if found is not None and len(found) == int(inventory.groups.live_rows[groups.start :: groups.step].sum()):
        return found

    def measure(group: int) -> Lengths:
        return measure_rows(reader.read(inventory.task(group)).column(0))

    parts = map_watched(measure, groups, threads=share.threads, name="tdu-lengths", on_progress=on_progress)
    lengths = _narrow(np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32))
    if kept is not None and lengths.nbytes <= _MOST_KEPT_BYTES:
        _save(kept, key, lengths)
    return lengths


def read_token_counts(
    inventory: Inventory, reader: Reader, share: Share, on_progress: OnProgress | None = None
) -> Lengths:
    """Whole tokens of every plan row; floats are rounded up. Read-only, int32 where that is wide enough.

    reader, on_progress: as for `read_lengths`. share: which row groups this process reads.

    Raises:
        ConfigError: row counts are not known, so that rows have no numbers.
        DataError, StoreError: see Reader.read and Share.check_alike; all processes of the share raise it.
    """
    space = RowSpace.of(inventory.groups)
    if not space.exact:
        raise ConfigError(
            "max_tokens_per_batch needs exact row counts, and those of this data set are not known: leave count_rows "
            'at its default, or pass count_rows="auto".'
        )
    share.check_alike(inventory)
    read = share.together(lambda: _whole(read_lengths(inventory, reader, share, on_progress)))
    if share.count == 1:
        return _narrow(share.exchange(read))
    is_mine = np.zeros(inventory.num_groups, dtype=bool)
    is_mine[share.of(inventory.num_groups)] = True
    tokens = np.zeros(space.num_rows, dtype=np.int64)
    tokens[np.repeat(is_mine, np.diff(space.group_start))] = read
    return _narrow(share.exchange(tokens))


def check_rows_fit(tokens: Lengths, inventory: Inventory, budget: TokenBudget, column: str) -> None:
    """Raises ConfigError if a row alone exceeds the budget, or has no length; the message names the first one.

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
    is_number = widths[row] < _ENDLESS
    padding = "" if budget.padding_free else ", padding included"
    no_number = f"whose {column!r} is negative, not finite or beyond 2^60. "
    raise ConfigError(
        f"{len(too_long):,} rows do not fit into max_tokens_per_batch={budget.max_tokens:,}. The first is live row "
        f"{row - int(space.group_start[group])} of {task.where}, "
        + (f"with {widths[row]:,} tokens of {column!r}{padding}. " if is_number else no_number)
        + "Raise the limit, or leave such rows out with filters=."
    )


def _read_by(inventory: Inventory) -> str:
    """By which names files without field ids are read: a table may change them while its snapshot stays."""
    files = inventory.files.extras
    return f" by {files[0].table.names}" if files and isinstance(files[0], IcebergFile) else ""


def _whole(lengths: Lengths) -> Int64s:
    kind = lengths.dtype.kind
    if kind in "iu":
        whole = np.minimum(lengths, np.asarray(_ENDLESS, f"{kind}8"))
    else:
        whole = np.ceil(np.clip(np.where(np.isfinite(lengths), lengths, _ENDLESS), 0, _ENDLESS))
    whole = np.asarray(whole, dtype=np.int64)
    whole[lengths < 0] = _ENDLESS
    return whole


def _narrow(lengths: Lengths) -> Lengths:
    """The same lengths as int32 where all are whole and fit; read-only."""
    limits = np.iinfo(np.int32)
    if lengths.dtype.kind in "iu" and len(lengths) and limits.min <= lengths.min() <= lengths.max() <= limits.max:
        lengths = lengths.astype(np.int32, copy=False)
    lengths.flags.writeable = False
    return lengths


def _load(kept: HostCache, key: tuple[str, str]) -> Lengths | None:
    content = kept.get(*key)
    if content is None:
        return None
    lengths: Lengths = np.load(BytesIO(content), allow_pickle=False)
    lengths.flags.writeable = False
    return lengths


def _save(kept: HostCache, key: tuple[str, str], lengths: Lengths) -> None:
    file = BytesIO()
    np.save(file, lengths, allow_pickle=False)
    kept.put(*key, file.getvalue())
