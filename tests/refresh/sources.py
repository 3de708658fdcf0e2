"""Tables and directories that change while loaders read them; rows are numbered, so that each can be audited."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from tests.tables.iceberg.servers import sqlite_catalog
from torch_dataloader_utils import DeltaDataset, IcebergDataset, StructuredDataset

SCHEMA = pa.schema([("id", pa.int64())])


def numbered(rows: Sequence[int]) -> pa.Table:
    """A table of these rows."""
    return pa.table({"id": pa.array(rows, pa.int64())}, schema=SCHEMA)


@dataclass
class IcebergSource:
    """A table in a catalog of SQLite."""

    root: Path
    pin = "snapshot_id"

    @property
    def config(self) -> dict[str, str]:
        return sqlite_catalog(self.root)

    def _table(self) -> tuple[Catalog, Table]:
        catalog = load_catalog(**self.config)
        return catalog, catalog.load_table("t.rows")

    def create(self) -> None:
        """A table without rows."""
        self.root.mkdir(parents=True, exist_ok=True)
        catalog = load_catalog(**self.config)
        catalog.create_namespace("t")
        catalog.create_table("t.rows", SCHEMA)
        catalog.close()

    def append(self, rows: Sequence[int]) -> None:
        """One snapshot with these rows more."""
        catalog, table = self._table()
        table.append(numbered(rows))
        catalog.close()

    def compact(self) -> None:
        """All rows in one file; the old files are in earlier snapshots only."""
        catalog, table = self._table()
        table.overwrite(table.scan().to_arrow())
        catalog.close()

    def clear(self) -> None:
        """No rows."""
        catalog, table = self._table()
        table.delete("id >= 0")
        catalog.close()

    def expire(self) -> None:
        """Only the newest snapshot is kept, and only its files: what its manifests do not name is removed."""
        catalog, table = self._table()
        present = table.current_snapshot()
        old = [each.snapshot_id for each in table.snapshots() if each.snapshot_id != present.snapshot_id]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()
        kept = {unquote(urlparse(task.file.file_path).path) for task in table.scan().plan_files()}
        for file in self.root.rglob("*.parquet"):
            if str(file) not in kept:
                file.unlink()
        catalog.close()

    def snapshot_id(self) -> int:
        """The newest."""
        catalog, table = self._table()
        catalog.close()
        return table.current_snapshot().snapshot_id

    def rows(self) -> list[int]:
        """What pyiceberg reads."""
        catalog, table = self._table()
        catalog.close()
        return sorted(table.scan().to_arrow()["id"].to_pylist())

    def open(self, **options: Any) -> Any:
        """A loader and its data set."""
        return IcebergDataset.create_dataloader("t.rows", self.config, **options)


@dataclass
class CopiedTable:
    """A copy of an Iceberg table, without its catalog; its metadata name the files under `old_root`."""

    root: Path
    old_root: Path
    pin = "snapshot_id"

    def open(self, **options: Any) -> Any:
        """A loader and its data set."""
        rewrites = {f"file://{self.old_root}": f"file://{self.root}"}
        place = next(self.root.glob("warehouse/*/rows"))
        return IcebergDataset.create_dataloader(place, path_rewrites=rewrites, **options)


@dataclass
class DeltaSource:
    """A Delta table."""

    root: Path
    pin = "version"

    def create(self) -> None:
        """A table without rows."""
        DeltaTable.create(str(self.root), schema=SCHEMA)

    def append(self, rows: Sequence[int]) -> None:
        """One version with these rows more."""
        write_deltalake(str(self.root), numbered(rows), mode="append", schema_mode="merge")

    def compact(self) -> None:
        """All rows in one file."""
        DeltaTable(str(self.root)).optimize.compact()

    def clear(self) -> None:
        """No rows."""
        DeltaTable(str(self.root)).delete("id >= 0")

    def expire(self) -> None:
        """Only files of the newest version are kept."""
        DeltaTable(str(self.root)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    def snapshot_id(self) -> int:
        """The newest version."""
        return DeltaTable(str(self.root)).version()

    def rows(self) -> list[int]:
        """What deltalake reads."""
        return sorted(pa.table(DeltaTable(str(self.root)).scan())["id"].to_pylist())

    def open(self, **options: Any) -> Any:
        """A loader and its data set."""
        return DeltaDataset.create_dataloader(self.root, **options)


@dataclass
class DirectorySource:
    """A directory of Parquet files."""

    root: Path
    pin = None

    def create(self) -> None:
        """No file."""
        self.root.mkdir(parents=True)

    def _files(self) -> list[Path]:
        return sorted(self.root.glob("*.parquet"))

    def append(self, rows: Sequence[int]) -> None:
        """One file more."""
        pq.write_table(numbered(rows), self.root / f"{rows[0]:08d}.parquet", row_group_size=50)

    def compact(self) -> None:
        """All rows in one file, under the name of the last one; the others are gone."""
        files = self._files()
        table = pa.concat_tables(map(pq.read_table, files))
        pq.write_table(table, self.root / "part")
        (self.root / "part").rename(files[-1])
        for file in files[:-1]:
            file.unlink()

    def clear(self) -> None:
        """No rows."""
        for file in self._files():
            file.unlink()

    def expire(self) -> None:
        """Nothing is kept of what was there before."""

    def snapshot_id(self) -> None:
        """Directories have none."""

    def rows(self) -> list[int]:
        """What pyarrow reads."""
        return sorted(row for file in self._files() for row in pq.read_table(file)["id"].to_pylist())

    def open(self, **options: Any) -> Any:
        """A loader and its data set."""
        return StructuredDataset.create_dataloader(self.root, **options)


@dataclass
class Files:
    """Files of a format below a path or URL."""

    path: str
    file_format: str
    storage_options: dict[str, Any]
    pin = None

    def open(self, **options: Any) -> Any:
        """A loader and its data set."""
        return StructuredDataset.create_dataloader(
            self.path, self.file_format, storage_options=self.storage_options, **options
        )


KINDS: dict[str, Any] = {"iceberg": IcebergSource, "delta": DeltaSource, "directory": DirectorySource}
