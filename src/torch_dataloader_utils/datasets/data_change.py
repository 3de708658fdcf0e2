"""What a refresh changed: files and rows of the inventory before and after it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._formats.arrow_schema import decode_schema
from torch_dataloader_utils.errors import FileChangedError, SchemaError, plural

Files = dict[tuple[str, str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChange:
    """The result of `dataset.refresh()`; false if the data are the same. Its text is the note of the next plans.

    Attributes:
        before, after: the sources of both inventories, with their snapshots.
        added_files, removed_files: a file that was replaced is both.
        added_rows, removed_rows: live rows; of files that stay, those that deletes took away (or gave back). None where
            rows are not counted.
    """

    before: str
    after: str
    is_changed: bool
    added_files: int = 0
    removed_files: int = 0
    added_rows: int | None = 0
    removed_rows: int | None = 0

    @classmethod
    def between(cls, before: Inventory, after: Inventory) -> "DataChange":
        """The change from one inventory to another."""
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
        return f"refreshed: {self.after}{move}: {files}; {rows}"


def check_continues(before: Inventory, after: Inventory, columns: Sequence[str] | None) -> None:
    """Check that an epoch over `after` may follow one over `before`.

    Raises:
        SchemaError: the columns to deliver (None: all) are others, or of other types.
        FileChangedError: an increment of another table, in whose earlier versions there may be rows nobody has read.
    """
    read, newest = before.snapshot, after.snapshot
    if read and newest and newest.from_snapshot_id is not None and newest.table != read.table:
        raise FileChangedError(
            f"{after.source}: the table was replaced by another one since {before.source}, so its increment does not "
            "follow. Make a new loader of what is to be read of it."
        )
    old, new = decode_schema(before.schema), decode_schema(after.schema)
    for name in columns or tuple(dict.fromkeys([*old.names, *new.names])):
        was, is_now = (schema.field(name).type if name in schema.names else None for schema in (old, new))
        if was != is_now:
            raise SchemaError(
                f"{after.source}: column {name!r} is {is_now or 'not there'} now, and was {was or 'not there'} in "
                f"{before.source}. The loader goes on with the columns that it was made with: pass columns=, or make a "
                "new loader. (Options of scan_files, such as schema=, that made inventory= are not known here.)"
            )


def _rows_of_files(inventory: Inventory) -> Files:
    """Live rows of each file by path and identity."""
    files, rows = inventory.files, np.zeros(inventory.num_files, dtype=np.int64)
    np.add.at(rows, inventory.groups.file, inventory.groups.live_rows)
    known = files.identities if files.contents is None else files.contents
    return dict(zip(zip(files.paths, known, strict=True), rows.tolist(), strict=True))
