"""`open_loader` finds what a path holds, and says what is wrong with what it is given."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config

from tests.tables.iceberg.servers import sqlite_catalog
from torch_dataloader_utils import (
    DeltaDataset,
    IcebergDataset,
    StructuredDataset,
    TableDataLoader,
    open_loader,
    scan_files,
)
from torch_dataloader_utils.errors import (
    ConfigError,
    ConfigTypeError,
    CorruptFileError,
    NoDataError,
    UnsupportedFeatureError,
)

ROWS = pa.table({"x": pa.array(range(100), pa.int64()), "y": np.arange(100) / 4})


def write_stream(rows: pa.Table, path: Path) -> None:
    with pa.ipc.new_stream(path, rows.schema) as stream:
        stream.write_table(rows)


WRITERS: dict[str, Callable[[Path], Any]] = {
    "parquet": lambda path: pq.write_table(ROWS, path, row_group_size=30),
    "orc": lambda path: pyarrow.orc.write_table(ROWS, str(path)),
    "csv": lambda path: pyarrow.csv.write_csv(ROWS, path),
    "jsonl": lambda path: ROWS.to_pandas().to_json(path, orient="records", lines=True),
    "feather": lambda path: pyarrow.feather.write_feather(ROWS, str(path), compression="uncompressed"),
    "arrows": lambda path: write_stream(ROWS, path),
    "ipc": lambda path: pyarrow.feather.write_feather(ROWS, str(path)),
}


def values(loader: TableDataLoader[Any]) -> list[int]:
    return sorted(x for batch in loader for x in batch["x"].tolist())


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Properties of a catalog with the table db.events, which pyiceberg's configuration calls "prod"."""
    place = sqlite_catalog(tmp_path)
    for key, value in place.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__PROD__{key.upper()}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # pyiceberg reads it once
    opened = load_catalog("prod")
    opened.create_namespace("db")
    opened.create_table("db.events", ROWS.schema).append(ROWS)
    yield {"name": "prod", **place}
    opened.close()


@pytest.mark.parametrize("ending", WRITERS)
def test_the_names_of_files_say_their_format(tmp_path: Path, ending: str) -> None:
    (tmp_path / "data").mkdir()
    WRITERS[ending](tmp_path / "data" / f"part-0.{ending}")
    for path in (tmp_path / "data", tmp_path / "data" / "*", [tmp_path / "data" / f"part-0.{ending}"]):
        loader = open_loader(path, batch_size=32)
        assert isinstance(loader.dataset, StructuredDataset)
        assert values(loader) == list(range(100))
        assert len(loader) == 4


@pytest.mark.parametrize("ending", ["parquet", "orc", "feather"])
def test_files_without_endings_show_their_format_by_their_first_bytes(tmp_path: Path, ending: str) -> None:
    WRITERS[ending](tmp_path / "000000_0")
    assert values(open_loader(tmp_path)) == list(range(100))


def test_hive_directories_become_columns_unless_they_are_refused(tmp_path: Path) -> None:
    for year in (2023, 2024):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(ROWS, tmp_path / f"year={year}" / "part.parquet")
    loader = open_loader(tmp_path, batch_size=200)
    (batch,) = loader
    assert sorted(set(batch["year"].tolist())) == [2023, 2024]
    (batch,) = open_loader(tmp_path, partitioning=None, batch_size=200)
    assert list(batch) == ["x", "y"]
    (batch,) = open_loader(tmp_path / "year=2023")
    assert list(batch) == ["x", "y"]
    # It is the loader that create_dataloader makes: its states load there, and the other way round.
    other, _ = StructuredDataset.create_dataloader(tmp_path, partitioning="hive", batch_size=200)
    other.load_state_dict(loader.state_dict())
    assert scan_files(tmp_path, "auto", partitioning="auto").fingerprint() == loader.plan.inventory.fingerprint()


def test_newer_files_are_looked_at_again(tmp_path: Path) -> None:
    WRITERS["csv"](tmp_path / "a.csv")
    loader = open_loader(tmp_path)
    WRITERS["csv"](tmp_path / "b.csv")
    assert loader.dataset.refresh()
    assert len(values(loader)) == 200


def test_tables_are_found_by_their_log_or_metadata(tmp_path: Path, catalog: dict[str, str]) -> None:
    write_deltalake(tmp_path / "delta", ROWS)
    write_deltalake(tmp_path / "delta", ROWS.slice(0, 10), mode="overwrite")
    for path in (tmp_path / "delta", f"{tmp_path}/delta/", f"file://{tmp_path}/delta"):
        loader = open_loader(path)
        assert isinstance(loader.dataset, DeltaDataset)
        assert values(loader) == list(range(10))
    assert len(values(open_loader(tmp_path / "delta", version=0))) == 100
    assert len(values(open_loader(tmp_path / "delta", format="delta"))) == 10
    assert len(values(open_loader(tmp_path / "delta", allow_bare_files=True))) == 110
    table = tmp_path / "warehouse" / "db" / "events"
    metadata = next(iter(sorted((table / "metadata").glob("*.metadata.json"), reverse=True)))
    for where, options in [
        (table, {}),
        (metadata, {}),
        ("prod.db.events", {}),
        ("db.events", {"catalog_config": catalog}),
        ("db.events", {"catalog_config": {"name": "prod"}}),
    ]:
        loader = open_loader(where, **options)
        assert isinstance(loader.dataset, IcebergDataset)
        assert values(loader) == list(range(100))


def test_a_file_with_the_name_of_a_table_is_a_file(
    tmp_path: Path, catalog: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    WRITERS["parquet"](tmp_path / "prod.db.events")
    assert isinstance(open_loader("prod.db.events").dataset, StructuredDataset)


def test_a_remote_path_is_looked_at_too() -> None:
    import fsspec

    remote = fsspec.filesystem("memory")
    with remote.open("/open_loader/year=2024/a.parquet", "wb") as file:
        pq.write_table(ROWS, file)
    (batch,) = open_loader("memory://open_loader")
    assert list(batch) == ["x", "y", "year"]
    with pytest.raises(NoDataError, match="does not exist"):
        open_loader("memory://nothing_here")


@pytest.mark.parametrize("pattern", ["t/**/*.parquet", "t/year=2024/month=0?/a.parquet"])
def test_directories_of_a_pattern_are_columns(pattern: str, tmp_path: Path) -> None:
    for month in ("01", "02"):
        folder = tmp_path / f"t/year=2024/month={month}"
        folder.mkdir(parents=True)
        WRITERS["parquet"](folder / "a.parquet")
    (tmp_path / "t/README.txt").write_text("An export.")
    (batch,) = open_loader(tmp_path / pattern)
    assert batch["year"].unique().tolist() == [2024]
    assert batch["month"].tolist() == [1] * 100 + [2] * 100
    (batch,) = open_loader(tmp_path / "t/year=2024/month=01/*.parquet")
    assert list(batch) == ["x", "y"]


def test_an_open_table_is_answered_with_its_path(tmp_path: Path, catalog: dict[str, str]) -> None:
    write_deltalake(tmp_path / "delta", ROWS)
    table, iceberg = DeltaTable(tmp_path / "delta"), load_catalog("prod")
    opened = iceberg.load_table("db.events")
    for data, told in ((table, "table.table_uri"), (opened, "table.metadata_location, or its name")):
        with pytest.raises(ConfigTypeError, match=f"a loader reads files: pass {told}"):
            open_loader(data)  # type: ignore[arg-type]
    assert values(open_loader(table.table_uri)) == values(open_loader(opened.metadata_location)) == list(range(100))
    iceberg.close()
    place = catalog["uri"].removeprefix("sqlite:///")
    with pytest.raises(ConfigError, match=r'a database of SQLite.*"type": "sql", "uri": "sqlite:///'):
        open_loader(place)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (pd.DataFrame({"x": [1]}), r'a pandas DataFrame, .*frame\.to_parquet\("data\.parquet"\)'),
        (pl.DataFrame({"x": [1]}), r"a polars DataFrame, .*frame\.write_parquet\("),
        (pl.LazyFrame({"x": [1]}), r"a polars LazyFrame, .*frame\.write_parquet\("),
        (pa.table({"x": [1]}), r"a pyarrow Table, .*write_table\(table, "),
        (datasets.Dataset.from_dict({"x": [1]}), r"a datasets Dataset, .*dataset\.to_parquet\("),
        ({"x": [1]}, r"a dict, .*write_table\(pyarrow\.table\(\.\.\.\)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_data_in_memory_is_answered_with_how_to_write_it(data: Any, told: str) -> None:
    for make in (open_loader, StructuredDataset.create_dataloader, scan_files):
        for path in (data, [data]):
            with pytest.raises(ConfigTypeError, match=f"path is {told}"):
                make(path)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("path", "error", "told"),
    [
        ("empty", NoDataError, "empty: this directory is empty. Check the path"),
        ("data/*.orc", NoDataError, "the pattern matches no file"),
        ("nothing", NoDataError, "nothing does not exist"),
        ("data/a.parqet", NoDataError, "does not exist"),
        ("s4://bucket/data", ConfigError, "no storage client knows s4://"),
        ("mixed", ConfigError, r'files of 2 formats: parquet \(.*a\.parquet\), csv .* such as "mixed/\*\.parquet"'),
        ("odd", ConfigError, r"odd/a does not show its format, .* If it is one of parquet, orc, .* pass format="),
        ("notes", CorruptFileError, r'choose the files by a pattern, such as "notes/\*\.parquet"'),
        ("lake", UnsupportedFeatureError, "lake/delta is the directory of a Delta table. Read it with open_loader"),
        ("db.events", NoDataError, r'db is no catalog .*\(prod\)\. .*pass "catalog\.db\.table", or catalog_config='),
        ("test.db.events", NoDataError, r"test is no catalog of pyiceberg's configuration \(prod\)"),
        ("prod.db.event", NoDataError, "the catalog has no table db.event"),
        (None, ConfigTypeError, "a path is a str or os.PathLike"),
        ("", ConfigError, "a path is empty"),
    ],
)
def test_a_wrong_path_says_what_is_wrong(
    path: Any, error: type, told: str, tmp_path: Path, catalog: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "data", "mixed", "odd", "notes"):
        (tmp_path / name).mkdir()
    for name in ("data", "mixed", "notes"):
        WRITERS["parquet"](tmp_path / name / "a.parquet")
    WRITERS["csv"](tmp_path / "mixed" / "b.csv")
    Path("odd/a").write_text("hello")
    Path("notes/README.md").write_text("hello")
    write_deltalake(tmp_path / "lake" / "delta", ROWS)
    with pytest.raises(error, match=told):
        open_loader(path)


def test_a_name_of_a_table_where_files_are_read_names_the_other_door(tmp_path: Path) -> None:
    with pytest.raises(NoDataError, match="If it is a table of an Iceberg catalog, call open_loader with"):
        StructuredDataset.create_dataloader("db.events")
    with pytest.raises(NoDataError, match=r"parent directory\.$"):
        StructuredDataset.create_dataloader(["db.events", "db.clicks"])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"version": 3}, r"version= is an option of DeltaDataset, and .*data is read by StructuredDataset"),
        ({"verson": 3}, "Unknown option 'verson'; did you mean 'version'"),
        ({"batchsize": 3}, "did you mean 'batch_size'"),
    ],
)
def test_an_option_that_does_not_fit_says_so(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    (tmp_path / "data").mkdir()
    WRITERS["parquet"](tmp_path / "data" / "a.parquet")
    with pytest.raises(ConfigError, match=told):
        open_loader(tmp_path / "data", **options)


def test_options_of_files_are_refused_for_tables(tmp_path: Path) -> None:
    write_deltalake(tmp_path, ROWS)
    with pytest.raises(ConfigError, match=re.escape("missing= is an option of StructuredDataset, and")):
        open_loader(tmp_path, missing="null")


def test_a_loader_that_is_taken_for_a_batch_says_so(tmp_path: Path) -> None:
    WRITERS["parquet"](tmp_path / "a.parquet")
    first, _ = StructuredDataset.create_dataloader(tmp_path)  # as `for batch in ...create_dataloader(...)` sees it
    with pytest.raises(ConfigTypeError, match=r"TableDataLoader\['x'\]: this is a loader, not a batch\. .* two values"):
        first["x"]
