"""Tables on a store, read once a host: data and deletes come from the cache, and another version is read anew."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.faults.conftest import QUICK
from tests.store.moto_server import BUCKET, MotoS3
from tests.tables.iceberg.tables import TableWriter, field_of
from torch_dataloader_utils import DeltaDataset, HostCache, IcebergDataset, RemoteOptions

URL = f"s3://{BUCKET}/t"
ALL = set(range(4000))


def upload(root: Path, s3: MotoS3) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            s3.put(f"t/{path.relative_to(root)}", path.read_bytes())


def iceberg_table(tmp_path: Path, s3: MotoS3, deleted: tuple[int, ...]) -> None:
    """Four files of 10 row groups; rows deleted by position and by key."""
    writer = TableWriter(tmp_path / "t", path_prefix=URL)
    writer.evolve(field_of(1, "id", "long"), field_of(2, "x", "double"))
    files = [
        writer.append([{"id": i, "x": i * 0.37} for i in range(f * 1000, f * 1000 + 1000)], rows_per_group=100)
        for f in range(4)
    ]
    writer.delete_positions([(files[row // 1000], row % 1000) for row in deleted[:1]])
    writer.delete_equal([1], [{"id": row} for row in deleted[1:]])
    upload(writer.root, s3)


def delta_table(tmp_path: Path, s3: MotoS3, deleted: tuple[int, ...]) -> None:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    for number in range(4):
        ids = range(number * 1000, number * 1000 + 1000)
        rows = pa.table({"id": list(ids), "x": [i * 0.37 for i in ids]})
        deltalake.write_deltalake(tmp_path / "t", rows, mode="append")
    deltalake.DeltaTable(tmp_path / "t").delete(f"id in ({', '.join(map(str, deleted))})")
    upload(tmp_path / "t", s3)


TABLES = {"iceberg": (IcebergDataset, iceberg_table), "delta": (DeltaDataset, delta_table)}


def ids(loader: Any, epoch: int) -> list[int]:
    loader.set_epoch(epoch)
    return [row for batch in loader for row in batch["id"].tolist()]


def data_requests(s3: MotoS3) -> list[str]:
    """Requests for files of data and deletes."""
    return [path for method, path, _ in s3.requests if method == "GET" and ".parquet" in path]


@pytest.mark.processes
@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("backend", ["fsspec", "obstore"])
def test_a_warm_epoch_of_a_table_reads_nothing_of_its_data(s3: MotoS3, tmp_path: Path, kind: str, backend: Any) -> None:
    dataset, write = TABLES[kind]
    write(tmp_path, s3, (3, 77, 3999))
    remote = RemoteOptions(cache=HostCache(tmp_path / "cache", max_bytes="1GiB"), retry=QUICK, backend=backend)
    options: Any = {"batch_size": 64, "shuffle": True, "storage_options": s3.options, "remote": remote}
    loader, _ = dataset.create_dataloader(URL, num_workers=0, **options)
    assert sorted(ids(loader, 0)) == sorted(ALL - {3, 77, 3999})
    assert any(tmp_path.glob("cache/*/entries/*/*"))
    s3.requests.clear()
    order = ids(loader, 1)
    assert sorted(order) == sorted(ALL - {3, 77, 3999})
    assert data_requests(s3) == []
    again, _ = dataset.create_dataloader(URL, num_workers=1, **options)
    s3.requests.clear()
    assert ids(again, 1) == order
    assert data_requests(s3) == []


@pytest.mark.slow
@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", TABLES)
def test_a_new_version_with_other_deletes_is_what_comes(s3: MotoS3, tmp_path: Path, kind: str) -> None:
    dataset, write = TABLES[kind]
    remote = RemoteOptions(cache=HostCache(tmp_path / "cache", max_bytes="1GiB"), retry=QUICK)
    for number, deleted in enumerate([(1, 2), (5, 6, 7)]):
        s3.reset()
        write(tmp_path / f"{number}", s3, deleted)
        loader, _ = dataset.create_dataloader(URL, batch_size=64, storage_options=s3.options, remote=remote)
        assert sorted(ids(loader, 0)) == sorted(ALL - set(deleted))
