"""The same trips as an Iceberg table in an embedded SQLite catalog: read now, and as it was before a deletion."""

from pathlib import Path

import pyarrow.orc
from examples.demo.audit import AuditError
from pyiceberg.catalog import load_catalog

from torch_dataloader_utils import IcebergDataset

TABLE = "demo.trips"


def write_table(orc: Path, home: Path) -> tuple[dict[str, str], int]:
    """Make the table from the ORC copy, and delete the rides of the year 2023; gives catalog config and snapshot.

    The snapshot is the one before the deletion.
    """
    home.mkdir(parents=True)
    folder = home.resolve()
    config = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    trips = pyarrow.orc.read_table(orc)
    catalog = load_catalog(**config)
    catalog.create_namespace("demo")
    table = catalog.create_table(TABLE, trips.schema)
    table.append(trips)
    snapshot = table.current_snapshot()
    if snapshot is None:
        raise AuditError("the Iceberg table has no snapshot after an append")
    table.delete("year = 2023")
    catalog.close()
    return config, snapshot.snapshot_id


def audit_table(config: dict[str, str], snapshot_id: int, *, rows: int, deleted: int, num_ranks: int) -> str:
    """Read the table over some ranks, now and at the snapshot; every live row must come once."""
    now = _row_ids(config, num_ranks)
    before = _row_ids(config, num_ranks, snapshot_id=snapshot_id)
    if now != list(range(deleted, rows)) or before != list(range(rows)):
        raise AuditError(f"the Iceberg table gave {len(now)} rows now and {len(before)} before the deletion")
    return f"Iceberg table: {len(now):,} rows over {num_ranks} ranks, {len(before):,} before the deletion, each once"


def _row_ids(config: dict[str, str], num_ranks: int, snapshot_id: int | None = None) -> list[int]:
    row_ids: list[int] = []
    for rank in range(num_ranks):
        loader, _ = IcebergDataset.create_dataloader(
            TABLE, config, columns=["row_id"], batch_size=500, num_ranks=num_ranks, rank=rank, snapshot_id=snapshot_id
        )
        row_ids += [row_id for batch in loader for row_id in batch["row_id"].tolist()]
    return sorted(row_ids)
