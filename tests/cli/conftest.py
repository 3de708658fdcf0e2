"""Tables that commands look at."""

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from tests.cli.shell import write_parquet
from tests.tables.iceberg.servers import sqlite_catalog


@pytest.fixture
def table(tmp_path):
    """1,500 rows in three files of two, three and four row groups."""
    folder = tmp_path / "table"
    folder.mkdir()
    for number, (rows, group_rows) in enumerate([(400, 200), (500, 200), (600, 150)]):
        write_parquet(folder / f"part-{number}.parquet", rows, group_rows)
    return folder


@pytest.fixture
def lake(tmp_path):
    """(catalog options, path of the metadata) of db.events: 300 rows, of which a delete leaves 290."""
    properties = sqlite_catalog(tmp_path)
    catalog = load_catalog("default", **properties)
    try:
        catalog.create_namespace("db")
        rows = pa.table(
            {"id": pa.array(range(300), pa.int64()), "v": pa.array([n % 7 for n in range(300)], pa.int64())}
        )
        table = catalog.create_table("db.events", rows.schema)
        table.append(rows)
        table.delete("id < 10")
        yield properties, table.metadata_location
    finally:
        catalog.close()
