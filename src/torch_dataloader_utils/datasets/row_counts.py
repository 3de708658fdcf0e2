"""Facts that need a read before the plan: live rows, bad row groups, lengths and token counts."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._arrow.row_filter import filter_text
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s, Inventory, short_digest
from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils._core.skipping import BAD_DATA, log_left_out, report_left_out
from torch_dataloader_utils._core.table_file import TableFile
from torch_dataloader_utils._core.token_budget import Lengths, TokenBudget
from torch_dataloader_utils._core.units import RowSpace
from torch_dataloader_utils._runtime.parallel import OnProgress, map_watched
from torch_dataloader_utils._runtime.threads import available_cpus
from torch_dataloader_utils._store import StoreAccess, redact
from torch_dataloader_utils._store.identity import any_names_no_version
from torch_dataloader_utils.cache.kept_values import KeptValues, user_cache
from torch_dataloader_utils.discover import with_live_rows
from torch_dataloader_utils.errors import ConfigError, NoDataError
from torch_dataloader_utils.shape.lengths import measure_rows
from torch_dataloader_utils.tables.projection import ReadSpec
from torch_dataloader_utils.tables.reader import Reader, make_reader


def count_live_rows(
    inventory: Inventory, reader: Reader, share: Share, on_progress: OnProgress | None = None
) -> Inventory:
    """Return the inventory with every row group counted. Reads the columns of the filter once in uncounted row groups.

    Args:
        share: Part of the uncounted row groups that this process counts.
        on_progress: Called in the caller's thread after each row group with (row groups done, row groups of this
            process).

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
    """Run `count_live_rows` in this process alone; filters: the filter of the inventory's scan.

    Raises:
        DataError, StoreError: see Reader.read.
    """
    spec = ReadSpec(
        schema=inventory.schema,
        columns=(),
        row_filter=filters,
        partition_columns=tuple(column.name for column in inventory.files.partitions),
        access=access,
        holdout=inventory.holdout,
    )
    return count_live_rows(inventory, make_reader(spec), Share(threads=available_cpus()), on_progress)


def under_filter(inventory: Inventory, filters: Any) -> Inventory:
    """Return the inventory for use with `filters`. Row counts stay only if it was scanned with the same filter.

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
    """Return the inventory without the row groups that `reader` cannot read, with live rows counted.

    Each row group left out is logged, and noted in the inventory.

    Args:
        share: Part of the row groups that this process reads.
        on_progress: Called in the caller's thread after each row group with (row groups done, row groups of this
            process).

    Raises:
        NoDataError: nothing is left. DataError, StoreError: errors other than damage (see BAD_DATA) and damage in a
            file of deletes are never skipped; all processes of the share raise them. DataError: see Share.check_alike.
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
    """Return (live rows, 0), or (0, number of the fault)."""
    task = inventory.task(group)
    try:
        return reader.read(task).num_rows, 0
    except BAD_DATA as error:
        if redact(task.path) not in str(error):
            raise  # about a file of deletes: without it, the live rows of this good row group are not known
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
    """Return the lengths of the live rows of this process's row groups, in order; read-only, int32 if they fit.

    Lengths are kept, see `KeptArray`.

    Args:
        read: Function that returns the rows of a row group with one column, to be measured.
        what: Text of that column, and of all else that decides its lengths.
        share: Part of the row groups that this process reads. Nothing is exchanged.
        on_progress: Called in the caller's thread after each row group with (row groups done, row groups to do).

    Raises:
        DataError, StoreError: see Reader.read.
    """
    groups = share.of(inventory.num_groups)
    kept = KeptArray.of(inventory, f"lengths of {what} of rows {share.index, share.count}")
    found = kept.get()
    if found is not None and len(found) == int(inventory.groups.live_rows[groups.start :: groups.step].sum()):
        return found

    def measure(group: int) -> Lengths:
        return measure_rows(read(inventory.task(group)).column(0))

    parts = map_watched(measure, groups, threads=share.threads, name="tdu-lengths", on_progress=on_progress)
    lengths = _narrow(np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32))
    kept.put(lengths)
    return lengths


def read_token_counts(
    inventory: Inventory, reader: Reader, share: Share, on_progress: OnProgress | None = None
) -> Lengths:
    """Return the whole tokens of every plan row; floats are rounded up. Read-only, int32 if the tokens fit.

    Args:
        reader: Reader of one column, to be measured.
        share: Part of the row groups that this process reads.
        on_progress: See `read_lengths`.

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
    """Check that each row fits alone into the budget.

    Args:
        tokens: Tokens of every plan row.

    Raises:
        ConfigError: a row exceeds the budget, or has no length. The message names the first row.
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
    """Return the names by which files without field ids are read. A table may change its names within a snapshot."""
    files = inventory.files.extras
    return f" by {files[0].table.names}" if files and isinstance(files[0], TableFile) else ""


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
    """Return the lengths as int32 if all are whole and fit; read-only."""
    limits = np.iinfo(np.int32)
    if lengths.dtype.kind in "iu" and len(lengths) and limits.min <= lengths.min() <= lengths.max() <= limits.max:
        lengths = lengths.astype(np.int32, copy=False)
    lengths.flags.writeable = False
    return lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptArray:
    """Numbers about the live rows of one inventory, kept on this host for other processes and later jobs.

    Nothing is kept with a filter, since its text may be incomplete, nor for files without a version from their web
    server, since a file may have been replaced by another file of the same size.
    """

    kept: KeptValues
    what: str

    @classmethod
    def of(cls, inventory: Inventory, what: str) -> "KeptArray":
        """Return the numbers of this inventory. what: Text of all else that decides them."""
        is_known = not inventory.row_filter and not any_names_no_version(inventory.files.identities)
        changed = inventory.files.changed_ns
        # A local file may be overwritten and given its old time back; a digest of all bytes does not change with it.
        version = "" if changed is None or inventory.files.contents is not None else short_digest(changed)
        return cls(
            kept=KeptValues(cache=user_cache() if is_known else None, path=inventory.fingerprint()),
            what=f"{what}{_read_by(inventory)} {version}",
        )

    def get(self) -> Lengths | None:
        """Return the numbers, read-only, if they are kept."""
        content = self.kept.get(self.what)
        if content is None:
            return None
        numbers: Lengths = np.load(BytesIO(content), allow_pickle=False)
        numbers.flags.writeable = False
        return numbers

    def put(self, numbers: Lengths) -> None:
        """Keep the numbers, unless they take too much of the directory."""
        if self.kept.cache is not None and numbers.nbytes <= _MOST_KEPT_BYTES:
            file = BytesIO()
            np.save(file, numbers, allow_pickle=False)
            self.kept.put(self.what, file.getvalue())
