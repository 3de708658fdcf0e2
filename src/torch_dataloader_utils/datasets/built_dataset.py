"""`BuiltDataset`: a data set that looks for newer data; and `DataChange`, the result of a look."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, Unpack

import numpy as np
from torch.utils.data import get_worker_info

from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils.datasets.build import Found, build_stages
from torch_dataloader_utils.datasets.options import TableOptions
from torch_dataloader_utils.datasets.rank_agreement import Ranks, check_refreshable
from torch_dataloader_utils.datasets.source import find_inventory
from torch_dataloader_utils.errors import ConfigError, FileChangedError, SchemaError, plural
from torch_dataloader_utils.plan.problems import warn_about
from torch_dataloader_utils.samples.token_packing import PackTokensKeywords, pack_tokens
from torch_dataloader_utils.stream.dataset import Stages, TableDataset

_log = logging.getLogger(__name__)


Files = dict[tuple[str, str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChange:
    """Result of `dataset.refresh()`; false if the data is the same. Its text is a note of the next plans.

    Attributes:
        before, after: Sources of both inventories, with their snapshots.
        added_files, removed_files: Numbers of files. A file that was replaced counts as both.
        added_rows, removed_rows: Numbers of live rows, including rows of unchanged files that deletes removed (or gave
            back). None if rows are not counted.
        new_columns: Columns that the data has now and did not have before. They are not read.
    """

    before: str
    after: str
    is_changed: bool
    added_files: int = 0
    removed_files: int = 0
    added_rows: int | None = 0
    removed_rows: int | None = 0
    new_columns: tuple[str, ...] = ()

    @classmethod
    def between(cls, before: Inventory, after: Inventory) -> "DataChange":
        """Return the change from one inventory to another."""
        old, new = _rows_of_files(before), _rows_of_files(after)
        added, removed = new.keys() - old.keys(), old.keys() - new.keys()
        more = [new[file] - old[file] for file in new.keys() & old.keys()]
        is_counted = before.rows_are_known and after.rows_are_known
        return cls(
            before=before.source,
            after=after.source,
            is_changed=before.fingerprint() != after.fingerprint(),
            added_files=len(added),
            removed_files=len(removed),
            added_rows=sum(map(new.__getitem__, added)) + sum(n for n in more if n > 0) if is_counted else None,
            removed_rows=sum(map(old.__getitem__, removed)) - sum(n for n in more if n < 0) if is_counted else None,
            new_columns=_new_columns(before, after),
        )

    def __bool__(self) -> bool:
        return self.is_changed

    def __str__(self) -> str:
        if not self:
            return f"refreshed: {self.after} has not changed"
        files = f"{plural(self.added_files, 'file')} added, {self.removed_files:,} removed"
        rows = "rows not counted"
        if self.added_rows is not None and self.removed_rows is not None:
            rows = f"{plural(self.added_rows, 'row')} added, {self.removed_rows:,} removed"
        move = "" if self.before == self.after else f" after {self.before}"
        new = f"; new columns, which are not read: {', '.join(self.new_columns)}" if self.new_columns else ""
        return f"refreshed: {self.after}{move}: {files}; {rows}{new}"


def _new_columns(before: Inventory, after: Inventory) -> tuple[str, ...]:
    known = frozenset(decode_schema(before.schema).names)
    return tuple(name for name in decode_schema(after.schema).names if name not in known)


def check_continues(before: Inventory, after: Inventory, columns: Sequence[str]) -> None:
    """Check that an epoch over `after` may follow one over `before`, with these columns.

    Raises:
        SchemaError: a column is gone, or has another type.
        FileChangedError: an increment of another table. Its earlier versions may have unread rows.
    """
    read, newest = before.snapshot, after.snapshot
    if read and newest and newest.from_snapshot_id is not None and newest.table != read.table:
        raise FileChangedError(
            f"{after.source}: the table was replaced by another one since {before.source}, so its increment does not "
            "follow. Make a new loader of what is to be read of it."
        )
    old, new = decode_schema(before.schema), decode_schema(after.schema)
    for name in columns:
        was, is_now = (schema.field(name).type if name in schema.names else None for schema in (old, new))
        if was != is_now:
            raise SchemaError(
                f"{after.source}: column {name!r} is {is_now or 'not there'} now, and was {was or 'not there'} in "
                f"{before.source}. The loader goes on with the columns that it was made with: pass columns=, or make a "
                "new loader. (Options of scan_files, such as schema=, that made inventory= are not known here.)"
            )


def _rows_of_files(inventory: Inventory) -> Files:
    """Return the number of live rows of each file, by path and identity."""
    files, rows = inventory.files, np.zeros(inventory.num_files, dtype=np.int64)
    np.add.at(rows, inventory.groups.file, inventory.groups.live_rows)
    known = files.identities if files.contents is None else files.contents
    return dict(zip(zip(files.paths, known, strict=True), rows.tolist(), strict=True))


class BuiltDataset(TableDataset):
    """Data set that `build` made, and that can be built again: with packed samples, or of newer data."""

    _built_from: tuple[Found, TableOptions] | None = None
    # Delivered also if the data gains columns.
    _columns: tuple[str, ...] = ()
    # With refresh="epoch", the epoch that the present data are for; None for the next one that is asked for.
    _epoch_of_data: int | None = None

    def _begin(self, stages: Stages, found: Found, options: TableOptions) -> Self:
        """Make this data set; see `make` of `build`."""
        TableDataset.__init__(self, stages)
        self._built_from = found, options
        names = decode_schema(found.inventory.schema).names if options.columns is None else options.columns
        self._columns = tuple(names)
        self.progress.files_may_change = options.refresh is not None
        return self

    @property
    def snapshot_id(self) -> int | None:
        """Id of the snapshot (or Delta's version) that is read now; None for plain files or without a snapshot."""
        snapshot = self.planner.inventory.snapshot
        return None if snapshot is None else snapshot.snapshot_id

    def refresh(self) -> DataChange:
        """Look for newer data, and read it from the next epoch on. Call this on every rank, between epochs.

        Newer data is the newest snapshot of the table or its branch, the next increment, or the present files of the
        path. In a process group, all ranks get the data that rank 0 finds. After an error the data stays the same.
        Columns that the data gains are not read: batches keep their columns.

        Returns:
            The change; false if nothing changed. The change is logged, and `plan.explain()` shows it.

        Raises:
            ConfigError: inside an epoch; in a blend, or in a copy in another process; several ranks without a process
                group; a rank that goes on without it. A column of `columns` or `filters` is gone.
            SchemaError: a column that is delivered is gone, or has another type now.
            FileChangedError: another table has replaced this table before the next increment.
            NoDataError, DataError, StoreError: see `create_dataloader`.
        """
        if self._built_from is None or self.keeps_data:
            raise ConfigError(
                "refresh of a data set that a blend reads, or of a copy in another process: its data stays the same. "
                "Refresh before the data set goes there, and make a new blend."
            )
        self.progress.check_between_epochs()
        found, options = self._built_from
        ranks, present = self._ranks, self.planner.inventory
        is_shared = check_refreshable(ranks.num_ranks, ranks.peers)
        if is_shared and self.compared is not None:
            self.compared.meet("refresh()")
        # Ranks were checked when this data set was made.
        asked = replace(
            options,
            check_ranks=False,
            broadcast_inventory=is_shared or options.broadcast_inventory,
            identity=options.identity if found.inventory.files.contents is None else "content",
        )
        source = found.source.newest(found.inventory)
        inventory, access = find_inventory(source, asked, ranks)
        if inventory.fingerprint() == found.inventory.fingerprint():
            change = DataChange(before=present.source, after=present.source, is_changed=False)
        else:
            check_continues(found.inventory, inventory, self._columns)
            newer = Found(inventory=inventory, access=access, source=source)
            stages = build_stages(newer, replace(asked, columns=self._columns), ranks)
            change = DataChange.between(present, stages.planner.inventory)
            noted = replace(stages.planner.inventory, notes=(*stages.planner.inventory.notes, str(change)))
            planner = replace(stages.planner, inventory=noted)
            self.change_data(replace(stages, planner=planner, compared=self.stages.compared))
            self._built_from = newer, options
            warn_about(self.plan)
        self._epoch_of_data = None
        _log.info("%s", change)
        return change

    def set_epoch(self, epoch: int) -> None:
        """See TableDataset.set_epoch. With refresh="epoch", a new epoch begins with the newest data."""
        if self._epoch_of_data is None and self.progress.has_begun_in_workers:
            self._epoch_of_data = self.epoch
        super().set_epoch(epoch)
        if self._follows and self._epoch_of_data not in (None, self.epoch):
            self.refresh()
        self._epoch_of_data = self.epoch

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See TableDataset.load_state_dict."""
        super().load_state_dict(state)
        # A state at the start of an epoch: that epoch has not looked for its data yet.
        is_new = self.epoch > 0 and not self.next_position.segments
        self._epoch_of_data = self.epoch - 1 if is_new else self.epoch

    def before_pass(self) -> None:
        """With refresh="epoch", refresh for an epoch that set_epoch has not begun."""
        if self._follows and (self.progress.has_finished or self._epoch_of_data not in (None, self.epoch)):
            self.refresh()
        self._epoch_of_data = self.epoch

    @property
    def _ranks(self) -> Ranks:
        return Ranks(num_ranks=self.topology.num_ranks, rank=self.rank, peers=self.stages.peers)

    @property
    def _follows(self) -> bool:
        """Whether this process refreshes itself. Workers of a DataLoader never do."""
        return self._built_from is not None and self._built_from[1].refresh is not None and get_worker_info() is None

    def pack_tokens(self, column: str, sequence_length: int, **packing: Unpack[PackTokensKeywords]) -> TableDataset:
        """Return a new data set, at epoch 0, with documents of a list column as samples of one length.

        All options but `columns` stay; `batch_size` and `shuffle_rows` then count samples. `create_dataloader(...,
        pack=pack_tokens(...))` makes the same data set, and a loader.

        Args: see `torch_dataloader_utils.pack_tokens`.

        Raises:
            ConfigError: a value out of range, a column that holds no tokens, options that do not go with packing.
            DataError, StoreError: counting samples needed a read, and it failed.
        """
        if self._built_from is None:
            raise ConfigError("pack_tokens on a copy in another process: pack before the data set goes there.")
        found, options = self._built_from
        # Ranks were checked when this data set was made.
        options = replace(
            options, pack=pack_tokens(column, sequence_length, **packing), columns=None, check_ranks=False
        )
        return TableDataset(build_stages(found, options, self._ranks))

    def __getstate__(self) -> dict[str, Any]:
        # Worker processes only iterate: they need neither a second inventory nor the caller's options.
        return {name: value for name, value in self.__dict__.items() if name != "_built_from"}
