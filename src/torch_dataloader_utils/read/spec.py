"""`ReadSpec`: what a reader delivers of every row group of a data set."""

from dataclasses import dataclass, field
from typing import Any

from torch_dataloader_utils._store import StoreAccess

# The largest that fits a string column's 32-bit offsets; real row groups are 0.1 to 1 GB.
MAX_ROW_GROUP_BYTES = (2 << 30) - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadSpec:
    """What a reader delivers; frozen and picklable.

    schema: the data set's full Arrow schema as IPC bytes, partition columns included, as an Inventory holds it.
    columns: names of the columns delivered, in their order; () delivers row counts alone; None is all of them.
    row_filter: a pyarrow.compute.Expression over any columns of the schema, delivered or not; rows for which it
        is false or null are dropped.
    partition_columns: columns that no file holds; their values come with the task.
    access: how files are reached; unused for local ones.
    page_checksums: whether pages that carry a CRC-32 (Parquet) are checked against it. Files without checksums
        cost nothing; measured in docs/design/0004-read.md for files with them.
    max_row_group_bytes: decoded size above which a row group is refused instead of read.
    """

    schema: bytes
    columns: tuple[str, ...] | None = None
    row_filter: Any = None
    partition_columns: tuple[str, ...] = ()
    access: StoreAccess = field(default_factory=StoreAccess)
    page_checksums: bool = True
    max_row_group_bytes: int = MAX_ROW_GROUP_BYTES
