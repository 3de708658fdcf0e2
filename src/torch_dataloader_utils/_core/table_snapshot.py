"""The version of a table that was read, in one vocabulary for all table formats."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from torch_dataloader_utils._core.arguments import check_integer, is_integer
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """Snapshot of an Iceberg table, or version of a Delta table. Its text is part of fingerprints and states.

        "9c1f... snapshot 5 from None"    "5be0... version 3"    "5be0... version 3 from 2"

    Attributes:
        table: Id that the table gave itself; None for an Iceberg table that has no id.
        snapshot_id: Id of the snapshot, or number of the version; None for a table that has no snapshot.
        from_snapshot_id: For an increment: snapshot or version after which it begins; otherwise None.
        kind: Name of the concept in the format.
    """

    table: str | None
    snapshot_id: int | None
    from_snapshot_id: int | None = None
    kind: Literal["snapshot", "version"] = "snapshot"

    def __str__(self) -> str:
        start = "" if self.kind == "version" and self.from_snapshot_id is None else f" from {self.from_snapshot_id}"
        return f"{self.table} {self.kind} {self.snapshot_id}{start}"

    @classmethod
    def parse(cls, text: str) -> "TableSnapshot | None":
        """Return the snapshot of this text; None for any other text."""
        found = _TEXT.fullmatch(text)
        if found is None:
            return None
        table, kind, snapshot_id, start = found.groups()
        return cls(
            table=None if table == "None" else table,
            snapshot_id=None if snapshot_id == "None" else int(snapshot_id),
            from_snapshot_id=None if start in (None, "None") else int(start),
            kind="version" if kind == "version" else "snapshot",
        )

    @property
    def options(self) -> str:
        """Options of `create_dataloader` that read this snapshot.

        "snapshot_id=5, from_snapshot_id=3"    "version=3"
        """
        name = "snapshot_id" if self.kind == "snapshot" else "version"
        start = "" if self.from_snapshot_id is None else f", from_{name}={self.from_snapshot_id}"
        return f"{name}={self.snapshot_id}{start}"

    @property
    def next_start(self) -> int | None:
        """For an increment: snapshot after which the next increment begins. Otherwise None."""
        return None if self.from_snapshot_id is None else self.snapshot_id

    def may_follow(self, earlier: "TableSnapshot") -> bool:
        """Return whether an epoch over this snapshot may follow an epoch over `earlier`.

        No row of an increment is then lost or read twice. True for a later version of the same table, and for another
        snapshot of the same table (snapshot ids have no order). An increment must begin where the increment before it
        ended.
        """
        if self.table is None or (self.table, self.kind) != (earlier.table, earlier.kind):
            return False
        if None not in (self.from_snapshot_id, earlier.from_snapshot_id):
            return self.from_snapshot_id == earlier.snapshot_id
        if self.from_snapshot_id is not None or earlier.from_snapshot_id is not None:
            return False
        if self.kind == "version" and self.snapshot_id is not None and earlier.snapshot_id is not None:
            return self.snapshot_id > earlier.snapshot_id
        return self.snapshot_id != earlier.snapshot_id


_TEXT = re.compile(r"(.*) (snapshot|version) (-?\d+|None)(?: from (-?\d+|None))?", re.DOTALL)


def check_snapshot(name: str, found: TableSnapshot | None, kind: str, chosen: int | None, start: int | None) -> None:
    """Check that an inventory has the version that the other options choose: `chosen`, and an increment after `start`.

    Raises:
        ConfigError: the inventory has another snapshot, plain files, or a table of another format.
    """
    if found is None or found.kind != kind:
        raise ConfigError(f"inventory is not of a table that {name} reads. Pass the result of a scan of such a table.")
    if chosen not in (None, found.snapshot_id) or start not in (None, found.from_snapshot_id):
        raise ConfigError(
            f"inventory is of {found.options}, and the options beside it choose another {kind}. Leave these options "
            "out, or scan the table again."
        )


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def milliseconds_of(name: str, time: object) -> int:
    """Return a user's time, a datetime (a naive datetime is UTC) or milliseconds since 1970, as milliseconds.

    Raises:
        ConfigTypeError: neither a datetime nor a whole number. ConfigError: an integer that does not fit into 64 bits.
    """
    if isinstance(time, datetime):
        aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        return (aware - _EPOCH) // timedelta(milliseconds=1)
    if not is_integer(time):
        raise ConfigTypeError(f"{name}={time!r}: pass milliseconds since 1970 as a whole number, or a datetime.")
    return check_integer(name, time)


def time_text(milliseconds: int) -> str:
    """Return "2026-11-27 21:12:12.345 UTC"; the number of milliseconds if no datetime holds it."""
    try:
        return f"{_EPOCH + timedelta(milliseconds=milliseconds):%Y-%m-%d %H:%M:%S}.{milliseconds % 1000:03} UTC"
    except OverflowError:
        return f"{milliseconds} ms since 1970"
