"""An Iceberg table as training data: the present, the past, and what was added since.

    pip install ".[iceberg]"
    python examples/iceberg_time_travel.py

Makes a table in an embedded SQLite catalog (nothing else to install or run), changes it three times, and reads it
at different moments. Every loader reads one snapshot, whatever happens to the table meanwhile.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import load_catalog

from torch_dataloader_utils import IcebergDataset, plan_epoch, scan_iceberg

TABLE = "demo.rides"


def rides(day: int, count: int) -> pa.Table:
    """The rides of one day."""
    return pa.table(
        {
            "ride": pa.array(range(1000 * day, 1000 * day + count), pa.int64()),
            "day": pa.array([day] * count, pa.int32()),
            "fare": pa.array([2.5 + (7 * i) % 40 for i in range(count)], pa.float64()),
        }
    )


def make_table(config: dict[str, str]) -> list[int]:
    """Two days of rides, then one deleted fare, then a third day; the ids of the snapshots."""
    catalog = load_catalog(**config)
    catalog.create_namespace_if_not_exists("demo")
    table = catalog.create_table(TABLE, rides(1, 0).schema)
    table.append(rides(1, 600))
    table.append(rides(2, 400))
    table.delete("fare > 41")
    table.append(rides(3, 500))
    catalog.close()
    return [snapshot.snapshot_id for snapshot in table.snapshots()]


def count_rows(config: dict[str, str], **options: Any) -> int:
    """How many rides a loader delivers."""
    loader, _ = IcebergDataset.create_dataloader(TABLE, config, batch_size=128, num_workers=0, **options)
    return sum(batch.num_rows for batch in loader)


def main(folder: Path) -> None:
    """Make the table, and read it at four moments."""
    config = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    snapshots = make_table(config)
    print("now:                     ", count_rows(config))
    print("after the first day:     ", count_rows(config, snapshot_id=snapshots[0]))
    print("before the deletion:     ", count_rows(config, snapshot_id=snapshots[1]))
    print("added since the deletion:", count_rows(config, from_snapshot_id=snapshots[-2]))
    print("dear rides of day 3:     ", count_rows(config, filters=(pc.field("day") == 3) & (pc.field("fare") >= 40)))
    print()
    print(plan_epoch(scan_iceberg(TABLE, config), num_ranks=4, num_workers=2, batch_size=128).explain())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to make the table; a temporary folder by default")
    arguments = parser.parse_args()
    if arguments.folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
    else:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        main(arguments.folder)
