"""Facts of rows that only reading can give, before the plan: live rows, bad row groups, lengths and token counts."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._arrow.row_filter import filter_text
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s, Inventory, RowGroupTask, short_digest
from torch_dataloader_utils._core.skipping import BAD_DATA, log_left_out, report_left_out
from torch_dataloader_utils._core.table_file import IcebergFile
from torch_dataloader_utils._core.token_budget import Lengths, TokenBudget
from torch_dataloader_utils._core.units import RowSpace
from torch_dataloader_utils._runtime.parallel import OnProgress, map_watched
from torch_dataloader_utils._runtime.threads import available_cpus
from torch_dataloader_utils._store import StoreAccess, redact
from torch_dataloader_utils._store.identity import any_names_no_version
from torch_dataloader_utils.cache.kept_files import KeptFiles, row_length_cache
from torch_dataloader_utils.discover import with_live_rows
from torch_dataloader_utils.errors import ConfigError, NoDataError
from torch_dataloader_utils.shape.lengths import measure_rows
from torch_dataloader_utils.tables.projection import ReadSpec
from torch_dataloader_utils.tables.reader import Reader, make_reader


def count_live_rows(
    inventory: Inventory, reader: Reader, share: Share, on_progress: OnProgress | None = None
) -> Inventory:
    """The inventory with every row group counted; reads the filter's columns of the groups that need it, once.

    share: which of those groups this process counts.
    on_progress: called in the caller's thread after each row group with (row groups done, row groups of this process).

    Raises:
        DataError, StoreError: see Reader.read and Share.check_alike; all processes of the share raise it.
    """
    unknown = np.flatnonzero(inventory.groups.live_rows == UNKNOWN)
    if len(unknown) == 0:
        return inventory
    share.check_alike(inventory)
    mine = unknown[share.of(len(unknown))]
    counted = np.zeros(len(inventory.groups), dtype=np.int64)
    counted[mine] = share.together(
        lambda: map_watched(
            lambda group: reader.count_rows(inventory.task(group)),
            mine.tolist(),
            threads=share.threads,
            name="tdu-count",
            on_progress=on_progress,
        )
    )
    found = np.full(len(inventory.groups), UNKNOWN, dtype=np.int64)
    found[unknown] = share.exchange(counted)[unknown]
    return with_live_rows(inventory, found)


def count_alone(
    inventory: Inventory,
    filters: Any,
    access: StoreAccess,
    on_progress: OnProgress | None = None,
) -> Inventory:
    """`count_live_rows` by this process alone; filters: those that the inventory was scanned with.

    Raises:
        DataError, StoreError: see Reader.read.
    """
    spec = ReadSpec(
        schema=inventory.schema,
        columns=(),
        row_filter=filters,
        partition_columns=tuple(column.name for column in inventory.files.partitions),
        access=access,
    )
    return count_live_rows(inventory, make_reader(spec), Share(threads=available_cpus()), on_progress)


def under_filter(inventory: Inventory, filters: Any) -> Inventory:
    """The inventory for use with `filters`; with row counts only if it was scanned with the same filter.

    An inventory that was scanned without a filter suits every filter; its rows then have to be counted again.

    Raises:
        ConfigError: the inventory was scanned with another filter.
    """
    text = filter_text(filters)
    if inventory.row_filter == text:
        return inventory
    if inventory.row_filter:
        raise ConfigError(
            f"The inventory was scanned with filters={inventory.row_filter}, this call has filters={text or None}. "
            "Scan with the same filter, or without one."
        )
    unknown = np.full(len(inventory.groups), UNKNOWN, dtype=np.int64)
    return replace(inventory, row_filter=text, groups=replace(inventory.groups, live_rows=unknown), nulls={})


def leave_out_bad_groups(
    inventory: Inventory, reader: Reader, share: Share, on_progress: OnProgress | None = None
) -> Inventory:
    """The inventory without the row groups that `reader` cannot read; the others have their live rows counted.

    Each row group left out is logged, and noted in the inventory.

    share: which row groups this process reads.
    on_progress: called in the caller's thread after each row group with (row groups done, row groups of this process).

    Raises:
        NoDataError: nothing is left. DataError, StoreError: what is not damage (see BAD_DATA) is never skipped, nor is
            damage in a file of deletes; all processes of the share raise it. DataError: see Share.check_alike too.
    """
    share.check_alike(inventory)
    mine = share.of(inventory.num_groups)
    verdicts = share.together(
        lambda: map_watched(
            lambda group: _check(inventory, reader, group),
            mine,
            threads=share.threads,
            name="tdu-verify",
            on_progress=on_progress,
        )
    )
    found = np.zeros((2, inventory.num_groups), dtype=np.int64)
    found[:, mine] = np.array(verdicts, dtype=np.int64).reshape(-1, 2).T
    live_rows, fault = share.exchange(found)
    bad = np.flatnonzero(fault)
    if len(bad) == 0:
        return with_live_rows(inventory, live_rows)
    if len(bad) == inventory.num_groups:
        raise NoDataError(f"{inventory.source}: not one of {len(bad)} row groups can be read. The log has each reason.")
    notes = _report(inventory, bad, fault)
    kept = with_live_rows(inventory, np.where(fault > 0, 0, live_rows))
    return replace(kept, notes=(*inventory.notes, *notes), nulls={})


def _check(inventory: Inventory, reader: Reader, group: int) -> tuple[int, int]:
    """(live rows, 0), or (0, number of the fault)."""
    task = inventory.task(group)
    try:
        return reader.read(task).num_rows, 0
    except BAD_DATA as error:
        if redact(task.path) not in str(error):
            raise  # it is about a file of deletes, without which nobody knows which of these good rows live
        log_left_out(error)
        return 0, next(i for i, kind in enumerate(BAD_DATA, start=1) if isinstance(error, kind))


def _report(inventory: Inventory, bad: Int64s, fault: Int64s) -> tuple[str, ...]:
    rows = inventory.groups.physical_rows[bad]
    return report_left_out(
        (f"{inventory.task(group).where}: {BAD_DATA[int(fault[group]) - 1].__name__}" for group in bad.tolist()),
        count=len(bad),
        total=inventory.num_groups,
        units="row groups",
        rows=int(rows.sum()) if (rows != UNKNOWN).all() else None,
    )


def null_counts(inventory: Inventory) -> Counter[str]:
    """Return the number of nulls of each column that are surely delivered, by metadata and partition values."""
    counts, groups = Counter(inventory.nulls), inventory.groups
    for column in inventory.files.partitions:
        is_null = np.array([value is None for value in column.values], dtype=np.bool_)
        counts[column.name] = int(groups.live_rows[is_null[column.codes[groups.file]]].clip(min=0).sum())
    return counts


# Stands for a length that is negative, NaN or infinite; exact as a float, far from overflow when rounded up.
_ENDLESS = 1 << 60
# A quarter of what the directory may hold: 67 million rows.
_MOST_KEPT_BYTES = 256 << 20


def read_lengths(
    inventory: Inventory,
    read: Callable[[RowGroupTask], pa.RecordBatch],
    share: Share,
    on_progress: OnProgress | None = None,
    *,
    what: str,
) -> Lengths:
    """The lengths of the live rows of this process's row groups, in order; read-only, int32 where that is wide enough.

    What was read is kept on this host under the inventory's fingerprint, so that another process, and the next job,
    need not read it. (Not with a filter, whose text may be incomplete; and not if a web server gives no version of a
    file, which may then have been replaced by one of the same size.)

    read: gives the rows of a row group with one column, which is measured. what: that column, as text, and all else
        that decides its lengths. share: which row groups; nothing is exchanged.
    on_progress: called in the caller's thread after each row group with (row groups done, row groups to do).

    Raises:
        DataError, StoreError: see Reader.read.
    """
    groups = share.of(inventory.num_groups)
    is_known = not inventory.row_filter and not any_names_no_version(inventory.files.identities)
    kept = row_length_cache() if is_known else None
    changed = inventory.files.changed_ns
    # A local file may be overwritten and given its old time back; a digest of all bytes does not change with it.
    version = "" if changed is None or inventory.files.contents is not None else short_digest(changed)
    key = (inventory.fingerprint(), f"{what} of rows {share.index, share.count}{_read_by(inventory)} {version}")
    found = None if kept is None else _load(kept, key)
    if found is not None and len(found) == int(inventory.groups.live_rows[groups.start :: groups.step].sum()):
        return found

    def measure(group: int) -> Lengths:
        return measure_rows(read(inventory.task(group)).column(0))

    parts = map_watched(measure, groups, threads=share.threads, name="tdu-lengths", on_progress=on_progress)
    lengths = _narrow(np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32))
    if kept is not None and lengths.nbytes <= _MOST_KEPT_BYTES:
        _save(kept, key, lengths)
    return lengths


def read_token_counts(
    inventory: Inventory, reader: Reader, share: Share, on_progress: OnProgress | None = None
) -> Lengths:
    """Whole tokens of every plan row; floats are rounded up. Read-only, int32 where that is wide enough.

    reader: of the one column that is measured. share: which row groups this process reads. on_progress: as for
        `read_lengths`.

    Raises:
        ConfigError: row counts are not known, so that rows have no numbers.
        DataError, StoreError: see Reader.read and Share.check_alike; all processes of the share raise it.
    """
    space = RowSpace.of(inventory.groups)
    if not space.exact:
        raise ConfigError(
            "max_tokens of token_batches= needs exact row counts, and those of this data set are not known: leave "
            'count_rows at its default, or pass count_rows="auto".'
        )
    share.check_alike(inventory)
    what = str(reader.spec.columns)
    read = share.together(lambda: _whole(read_lengths(inventory, reader.read, share, on_progress, what=what)))
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
        f"{len(too_long):,} rows do not fit into max_tokens={budget.max_tokens:,} of token_batches. The first is live "
        f"row {row - int(space.group_start[group])} of {task.where}, "
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


def _load(kept: KeptFiles, key: tuple[str, str]) -> Lengths | None:
    content = kept.get(*key)
    if content is None:
        return None
    lengths: Lengths = np.load(BytesIO(content), allow_pickle=False)
    lengths.flags.writeable = False
    return lengths


def _save(kept: KeptFiles, key: tuple[str, str], lengths: Lengths) -> None:
    file = BytesIO()
    np.save(file, lengths, allow_pickle=False)
    kept.put(*key, file.getvalue())
