"""Which version of a table was read, for all table formats in one vocabulary."""

import re
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """A snapshot of an Iceberg table, or a version of a Delta table. Its text is part of fingerprints and states.

        "9c1f... snapshot 5 from None"    "5be0... version 3"    "5be0... version 3 from 2"

    Attributes:
        table: the id that the table gave itself; None for an Iceberg table that has none.
        snapshot_id: the id of the snapshot, or the number of the version; None for a table that has no snapshot.
        from_snapshot_id: of an increment, the snapshot or version after which it begins; else None.
        kind: what the format calls it.
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
        """The snapshot of this text; None for any other text."""
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
        """The options of `create_dataloader` that read it.

        "snapshot_id=5, from_snapshot_id=3"    "version=3"
        """
        name = "snapshot_id" if self.kind == "snapshot" else "version"
        start = "" if self.from_snapshot_id is None else f", from_{name}={self.from_snapshot_id}"
        return f"{name}={self.snapshot_id}{start}"

    def may_follow(self, earlier: "TableSnapshot") -> bool:
        """Whether an epoch over this one may come after one over `earlier`, with no row of an increment lost or twice.

        It is a later version of the same table, or another snapshot of it, whose ids have no order; of increments, each
        begins where the one before it ended.
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
