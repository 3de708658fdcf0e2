"""Directories of Delta, Hudi and Iceberg tables are no data sets of plain files, unless one says so."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import ClassVar

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.shell import one_line, tdu
from torch_dataloader_utils import IcebergDataset, RowDataset, StructuredDataset, scan_files
from torch_dataloader_utils._store import LocalStore
from torch_dataloader_utils.discover.table_directories import check_plain
from torch_dataloader_utils.errors import StoreError, UnsupportedFeatureError

CORPORA = Path(__file__).resolve().parents[3] / "shared" / "corpora"
MARKERS = {"delta": "_delta_log/0.json", "hudi": ".hoodie/hoodie.properties", "iceberg": "metadata/v1.metadata.json"}
ADVICE = {"delta": "DeltaDataset", "hudi": "Export a snapshot", "iceberg": "IcebergDataset"}
DATA = "data/year=2024/month=1/a.parquet"


@pytest.fixture(params=["local", "remote"])
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A directory with a table of each format in it, and one of plain files."""
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "file")
    files = fsspec.filesystem("file" if request.param == "local" else "memory")
    root = f"{tmp_path}/w" if request.param == "local" else "memory://test_table_directories"
    for name in [*MARKERS, "plain"]:
        files.makedirs(f"{root}/{name}/{DATA}".rpartition("/")[0], exist_ok=True)
        files.pipe(f"{root}/{name}/{DATA}", (tmp_path / "file").read_bytes())
        if name in MARKERS:
            files.makedirs(f"{root}/{name}/{MARKERS[name]}".rpartition("/")[0], exist_ok=True)
            files.pipe(f"{root}/{name}/{MARKERS[name]}", b"{}")
    return root


@pytest.mark.parametrize("kind", MARKERS)
@pytest.mark.parametrize(
    "below",
    [
        "",
        "/data",
        "/data/",
        "/data/year=2024",
        "/data/year=2024/month=1",
        "/**/*.parquet",
        "/data/*/*/*.parquet",
        "/dat?/*/*/*.parquet",
    ],
)
def test_a_directory_of_a_table_is_refused_with_what_reads_it(warehouse: str, kind: str, below: str) -> None:
    path = f"{warehouse}/{kind}{below}"
    with pytest.raises(
        UnsupportedFeatureError, match=rf"/{kind} is the directory of .*{ADVICE[kind]}.*allow_bare_files"
    ):
        scan_files(path)
    if (kind, below) != ("iceberg", ""):  # whose metadata files are not hidden
        assert scan_files(path, allow_bare_files=True).num_rows == 2
    assert scan_files(f"{warehouse}/plain{below}").num_rows == 2


def test_a_directory_with_a_table_somewhere_below_is_refused(warehouse: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match="is the directory of"):
        scan_files(warehouse)


@pytest.mark.parametrize("kind", MARKERS)
def test_a_pattern_that_matches_the_table_itself_is_refused(warehouse: str, kind: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=rf"/{kind} is the directory of "):
        scan_files(f"{warehouse}/{kind[:-1]}?/*/*/*/*.parquet")
    assert scan_files(f"{warehouse}/plai?/**/*.parquet").num_rows == 2


def test_iceberg_data_is_read_bare_where_the_message_says(tmp_path: Path) -> None:
    for name in ("data", "metadata"):
        (tmp_path / name).mkdir()
    (tmp_path / "metadata/v1.metadata.json").write_text("{}")
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "data/a.parquet")
    with pytest.raises(UnsupportedFeatureError, match=f"pass {tmp_path}/data with allow_bare_files=True"):
        scan_files(tmp_path)
    assert scan_files(tmp_path / "data", allow_bare_files=True).num_rows == 2


@pytest.mark.parametrize("kind", MARKERS)
def test_a_file_that_is_named_itself_is_read(warehouse: str, kind: str) -> None:
    file = f"{warehouse}/{kind}/{DATA}"
    assert scan_files(file).num_rows == scan_files([file]).num_rows == 2


@pytest.mark.parametrize("make", [StructuredDataset, RowDataset, StructuredDataset.create_dataloader])
def test_every_way_in_refuses_and_allows(tmp_path: Path, make: type[StructuredDataset]) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / "0.json").write_text("{}")
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(UnsupportedFeatureError, match="a Delta table"):
        make(tmp_path)
    made = make(tmp_path, allow_bare_files=True)
    assert len(made[0] if isinstance(made, tuple) else made) > 0


def test_the_shell_refuses_and_allows(tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / "0.json").write_text("{}")
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    assert "a Delta table" in one_line(tdu("scan", str(tmp_path), "--format", "parquet", code=1))
    assert "a.parquet" in tdu("scan", str(tmp_path), "--allow-bare-files", "--files").output


class RemoteLikeStore(LocalStore):
    """Counts what a remote store would list."""

    listed: ClassVar[list[str]] = []
    error: ClassVar[Exception | None] = None

    @property
    def is_local(self) -> bool:
        return False

    def directories(self, path: str, names: Sequence[str]) -> tuple[str, ...]:
        self.listed.append(path)
        if self.error is not None:
            raise self.error
        return super().directories(path, names)


@pytest.mark.parametrize(
    ("below", "wanted"),
    [("", []), ("/y", []), ("/y/year=1", ["/y"]), ("/y/year=1/month=1", ["/y/year=1", "/y"]), ("/y/*/*/*", ["/y"])],
)
def test_plain_directories_in_stores_cost_no_listing(tmp_path: Path, below: str, wanted: list[str]) -> None:
    (tmp_path / "y/year=1/month=1").mkdir(parents=True)
    (tmp_path / "y/year=1/month=1/x").write_bytes(b"x")
    RemoteLikeStore.listed.clear()
    store = RemoteLikeStore()
    check_plain(store, [store.list_files(f"{tmp_path}{below}")])
    assert store.listed == [f"{tmp_path}{each}" for each in wanted]


def test_many_directories_of_a_pattern_cost_few_listings(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"d{number}").mkdir()
        (tmp_path / f"d{number}/x").write_bytes(b"x")
    RemoteLikeStore.listed.clear()
    store = RemoteLikeStore()
    check_plain(store, [store.list_files(f"{tmp_path}/*/x")])
    assert len(store.listed) == 16


@pytest.mark.parametrize(
    ("cause", "raises"), [(PermissionError("403"), False), (FileNotFoundError("404"), False), (OSError("503"), True)]
)
def test_what_may_not_be_listed_is_passed_over_and_an_outage_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: OSError, raises: bool
) -> None:
    (tmp_path / "y=1").mkdir()
    (tmp_path / "y=1/x").write_bytes(b"x")
    error = StoreError("cannot list")
    error.__cause__ = cause
    monkeypatch.setattr(RemoteLikeStore, "error", error)
    store = RemoteLikeStore()
    listings = [store.list_files(f"{tmp_path}/y=1")]
    with pytest.raises(StoreError, match="cannot list") if raises else nullcontext():
        check_plain(store, listings)


@pytest.mark.skipif(not CORPORA.is_dir(), reason="the corpora are not beside the checkout")
def test_all_tables_of_the_corpora_are_refused() -> None:
    tables = sorted(path.parent for path in CORPORA.rglob("_delta_log"))
    tables += [
        path.parent for path in (CORPORA / "duckdb-iceberg").rglob("metadata") if any(path.glob("*.metadata.json"))
    ]
    with_data = [table for table in tables if any(table.rglob("*.parquet"))]
    assert len(with_data) > 40
    for table in with_data:
        with pytest.raises(UnsupportedFeatureError, match="is the directory of"):
            scan_files(table)


@pytest.mark.skipif(not CORPORA.is_dir(), reason="the corpora are not beside the checkout")
def test_iceberg_tables_are_read_as_tables() -> None:
    prefix = "data/persistent"
    root = CORPORA / "duckdb-iceberg" / prefix
    dataset = IcebergDataset(str(root / "uuid"), path_rewrites={prefix: str(root)})
    assert dataset.plan.inventory.num_rows == 10
    with pytest.raises(UnsupportedFeatureError, match="IcebergDataset"):
        StructuredDataset(root / "uuid" / "data")
