"""The values of the split-strategy protocol: the arguments of a plug-in, and its result."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch_dataloader_utils._core.inventory import Int64s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowGroups:
    """Live rows and projected bytes of each row group of a file, int64 [groups]: a strategy reads no footers."""

    rows: Int64s
    bytes: Int64s


@dataclass(frozen=True, slots=True)
class DataFileInfo:
    """One data file. record_count: Number of rows that a reader delivers, None when not known."""

    path: str
    file_size: int | None = None
    record_count: int | None = None
    row_groups: RowGroups | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class IcebergDataFileInfo(DataFileInfo):
    """One data file of an Iceberg table, with its partition values and the snapshot that it was planned from.

    Attributes:
        partition: Value of each field of the file's partition spec, by name, as the table stores the value: after the
            transform, dates as days since 1970 and times as microseconds. Empty where the file is not partitioned.
    """

    partition: dict[str, Any] | None = field(default=None, hash=False)
    snapshot_id: int | None = None


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows [offset, offset + length) of a file, counted in rows that a reader delivers."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Split:
    """A file, or a row range of it."""

    file: DataFileInfo
    row_range: RowRange | None = None


@dataclass(slots=True)
class Shard:
    """Splits of worker number `id`, in reading order.

    row_count, size_bytes: For the strategy's own use; the library does not read these numbers.
    """

    id: int
    splits: list[Split] = field(default_factory=list)
    row_count: int | None = None
    size_bytes: int | None = None


class SplitStrategy(Protocol):
    """Rule that decides who reads what; must be a pure function of its arguments and its own settings."""

    def generate(
        self, files: Sequence[DataFileInfo], num_workers: int, epoch: int = 0, num_ranks: int = 1, rank: int = 0
    ) -> list[Shard]:
        """Return the shards of one rank's workers. Over all ranks every row must come exactly once."""
        ...
