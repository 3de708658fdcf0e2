"""What a reader gets: one row group of a file, which of its rows to read, and all facts that reading needs."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch_dataloader_utils._core.paths import redact
from torch_dataloader_utils._core.permute import EpochKey


def pinned(identity: str, changed_ns: int | None) -> str:
    """Return the identity to which reads within one job are pinned: with the time of a local file's last change.

    "2048-1700000000", 1700000005      "2048-1700000000@1700000005"
    """
    return identity if changed_ns is None else f"{identity}@{changed_ns}"


class SequencePlace(NamedTuple):
    """Place of the sequences of a row group; see `SequenceTable`."""

    rows: int
    lead: int
    halo: int


class GroupRows(NamedTuple):
    """Rows [start, stop) of a row group; a stop of None is the end, and rows beyond the end are left out."""

    start: int = 0
    stop: int | None = None

    def of(self, num_rows: int) -> tuple[int, int]:
        """Return start and stop in a row group of `num_rows` rows.

        rows [3, 9) of 5: (3, 5)      of 2: (2, 2)
        """
        stop = num_rows if self.stop is None else min(self.stop, num_rows)
        return min(self.start, stop), stop


ALL_ROWS = GroupRows()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroupTask:
    """Instruction to read one row group: all facts that a reader needs. Made when a group is read, never for planning.

    identity: With the time of the last change, where that time is known; see `pinned`.
    epoch_key: Key for readers that order rows by the epoch; None for a read outside of epochs.
    table: The table and its snapshot, as text; "" for plain files.
    packed_with: The next row groups, which are read with this row group: the others of its packing window, or those
        with rows of its sequences.
    sequence: Where sequences are, if `live_rows` counts sequences.
    """

    path: str
    file_size: int
    identity: str
    file_format: int
    ordinal: int
    first_row: int
    physical_rows: int
    live_rows: int
    byte_offset: int
    byte_length: int
    partition_values: tuple[tuple[str, object], ...] = ()
    extra: Any = None
    epoch_key: EpochKey | None = None
    table: str = ""
    packed_with: tuple["RowGroupTask", ...] = ()
    sequence: SequencePlace | None = None

    @property
    def where(self) -> str:
        """File and row group, as every message names them; without credentials."""
        how = "packed" if self.sequence is None else "read"
        more = f" (and the next {len(self.packed_with)}, {how} with it)" if self.packed_with else ""
        return f"{redact(self.path)} row group {self.ordinal}{more}"
