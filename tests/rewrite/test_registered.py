"""The files of a shuffle as an Iceberg or Delta table: one commit, which may be repeated."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import StringType

from tests.rewrite.tables import contents, in_random_order, stored, write_files
from tests.tables.delta.reading import read_rows as read_delta
from torch_dataloader_utils import IcebergDataset, StructuredDataset, shuffle_table
from torch_dataloader_utils.errors import ConfigError

# Types that both tables have.
COLUMNS = ["row", "price", "name", "word", "amount", "items", "where", "tags"]
SIZES: dict[str, Any] = {"memory": 9_000, "file_bytes": 3_000, "row_group_bytes": 1_500}


def properties(folder: Path) -> dict[str, str]:
    return {"name": "lake", "type": "sql", "uri": f"sqlite:///{folder}/lake.db", "warehouse": f"file://{folder}/lake"}


def register(catalog: Any, target: Path) -> None:
    paths = sorted(map(str, target.glob("*.parquet")))
    table = catalog.create_table_if_not_exists("db.shuffled", schema=pq.read_schema(paths[0]))
    if table.current_snapshot() is None:
        table.add_files(paths)


def iceberg_rows(folder: Path, name: str, **options: Any) -> list[dict[str, Any]]:
    dataset = IcebergDataset(name, properties(folder), batch_size=1 << 20, output_format="arrow", **options)
    return [row for batch in dataset for row in batch.to_pylist()]


@pytest.fixture
def source(tmp_path: Path) -> StructuredDataset:
    write_files(tmp_path / "source", [[60, 41], [69]])
    return StructuredDataset(tmp_path / "source", columns=COLUMNS, output_format="arrow")


def test_an_iceberg_table_of_the_files_has_the_rows_in_order_and_a_second_registration_adds_none(
    source: StructuredDataset, tmp_path: Path
) -> None:
    report = shuffle_table(source, tmp_path / "out", seed=3, **SIZES)
    with SqlCatalog(**properties(tmp_path)) as catalog:
        catalog.create_namespace("db")
        for _ in range(2):
            register(catalog, tmp_path / "out")
        assert len(catalog.load_table("db.shuffled").snapshots()) == 1
        with pytest.raises(ValueError, match="already referenced"):
            catalog.load_table("db.shuffled").add_files([str(tmp_path / "out" / "part-00000.parquet")])
    assert report.num_files > 2
    assert iceberg_rows(tmp_path, "db.shuffled") == in_random_order(stored(tmp_path / "source", columns=COLUMNS), 3)


def test_columns_of_a_table_whose_fields_have_other_numbers_are_registered_by_their_names(tmp_path: Path) -> None:
    with SqlCatalog(**properties(tmp_path)) as catalog:
        catalog.create_namespace("db")
        rows = pa.table({"gone": range(40), "row": range(40), "where": [{"x": n} for n in range(40)]})
        table = catalog.create_table("db.source", schema=rows.schema)
        table.append(rows)
        with table.update_schema() as update:
            update.delete_column("gone")
            update.add_column("gone", StringType())
        dataset = IcebergDataset(
            "db.source", properties(tmp_path), columns=["gone", "where", "row"], output_format="arrow"
        )
        shuffle_table(dataset, tmp_path / "out", seed=5)
        register(catalog, tmp_path / "out")
    expected = in_random_order(iceberg_rows(tmp_path, "db.source", columns=["gone", "where", "row"]), 5)
    assert iceberg_rows(tmp_path, "db.shuffled") == expected
    assert expected[0]["gone"] is None


def test_a_delta_table_of_the_files_has_the_rows_in_order_and_stays_the_result_of_the_shuffle(
    source: StructuredDataset, tmp_path: Path
) -> None:
    report = shuffle_table(source, tmp_path / "out", seed=3, **SIZES)
    files = contents(tmp_path / "out")
    for _ in range(2):
        deltalake.convert_to_deltalake(str(tmp_path / "out"), mode="ignore")
    assert deltalake.DeltaTable(str(tmp_path / "out")).version() == 0
    assert read_delta(tmp_path / "out") == in_random_order(stored(tmp_path / "source", columns=COLUMNS), 3)
    again = shuffle_table(source, tmp_path / "out", seed=3, **SIZES)
    assert (again.num_files, again.checksums) == (report.num_files, report.checksums)
    assert {name: (tmp_path / "out" / name).read_bytes() for name in files} == files
    with pytest.raises(ConfigError, match="not the result of this shuffle"):
        shuffle_table(source, tmp_path / "out", seed=4, **SIZES)


# The process is killed at each step of a registration, and runs it again.
SCRIPT = """
import os, signal, sys
from pathlib import Path
from pyiceberg.catalog.sql import SqlCatalog
from tests.rewrite.test_registered import properties, register

folder = Path(sys.argv[1])

def dying(function, *, first):
    def run(*args, **options):
        if first:
            os.kill(os.getpid(), signal.SIGKILL)
        function(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    return run

def attempt(patch=None):
    pid = os.fork()
    if pid == 0:
        try:
            if patch is not None:
                name, first = patch
                setattr(SqlCatalog, name, dying(getattr(SqlCatalog, name), first=first))
            register(SqlCatalog(**properties(folder)), folder / "out")
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

steps = [("create_table", True), ("create_table", False), ("commit_table", True), ("commit_table", False)]
print(*[attempt(step) for step in steps], attempt(), attempt())
"""


@pytest.mark.full
@pytest.mark.processes
def test_a_registration_that_is_killed_at_any_step_is_repeated(source: StructuredDataset, tmp_path: Path) -> None:
    shuffle_table(source, tmp_path / "out", seed=3, **SIZES)
    with SqlCatalog(**properties(tmp_path)) as catalog:
        catalog.create_namespace("db")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py", tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout.split() == ["-9", "-9", "-9", "-9", "0", "0"], done.stderr
    assert iceberg_rows(tmp_path, "db.shuffled") == in_random_order(stored(tmp_path / "source", columns=COLUMNS), 3)
