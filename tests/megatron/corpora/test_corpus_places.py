"""Corpora from data sets (Iceberg tables, filtered rows), and corpora in stores."""

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import IntegerType, ListType, NestedField

from tests.megatron.corpora.corpora import read_corpus
from tests.tables.iceberg.tables import TableWriter
from torch_dataloader_utils import IcebergDataset, StructuredDataset, pack_tokens
from torch_dataloader_utils._store import StoreAccess
from torch_dataloader_utils.errors import ConfigError, StoreError
from torch_dataloader_utils.megatron.corpora import build_corpus
from torch_dataloader_utils.megatron.corpora.corpus_build.part_sources import plan_parts
from torch_dataloader_utils.megatron.corpora.corpus_build.part_store import JoinedFile, RemoteParts

DOCUMENTS = [[row] * (1 + row % 4) for row in range(30)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(3):
        rows = range(10 * number, 10 * number + 10)
        table = pa.table({"row": list(rows), "tokens": pa.array([DOCUMENTS[row] for row in rows])})
        pq.write_table(table, data / f"{number}.parquet", row_group_size=4)
    return data


@pytest.mark.parametrize("output", ["corpus", "deeper/corpus", "../data/corpus", "../link/corpus"])
def test_a_corpus_among_its_sources_is_refused_at_the_first_call(folder: Path, output: str) -> None:
    (folder.parent / "link").symlink_to(folder)
    for sources in (folder, [folder / "0.parquet", f"file://{folder}/"]):
        with pytest.raises(ConfigError, match=r"would lie inside its source .*Give an output_prefix outside, or"):
            build_corpus(sources, folder / output, column="tokens")
    assert {path.name for path in folder.iterdir()} == {"0.parquet", "1.parquet", "2.parquet"}


def test_a_remote_corpus_among_its_sources_is_refused(folder: Path, remote: Any) -> None:
    remote.put(str(folder), "/data", recursive=True)
    with pytest.raises(ConfigError, match="would lie inside its source memory://data/:"):
        build_corpus("memory://data/", "memory://data/corpus", column="tokens")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sources", "output"), [("data", "data/_built"), ("data", "data2"), ("data", "data"), ("data/*.parquet", "data/c")]
)
def test_a_corpus_lies_where_no_call_takes_it_for_a_source(folder: Path, sources: str, output: str) -> None:
    for overwrite in (False, True):
        build_corpus(
            str(folder.parent / sources), folder.parent / output, column="tokens", part_bytes=1, overwrite=overwrite
        )
    assert read_corpus(str(folder.parent / output)) == DOCUMENTS


@pytest.fixture
def remote() -> Any:
    filesystem = fsspec.filesystem("memory")
    filesystem.rm("/", recursive=True) if filesystem.ls("/") else None
    yield filesystem
    filesystem.rm("/", recursive=True) if filesystem.ls("/") else None


@pytest.mark.slow
def test_an_iceberg_table_without_its_deleted_rows(tmp_path: Path) -> None:
    table = TableWriter(tmp_path / "table")
    table.evolve(NestedField(1, "ids", ListType(2, IntegerType(), element_required=False), required=False))
    path = table.append([{"ids": document} for document in DOCUMENTS], rows_per_group=7)
    first = table.snapshot_id
    table.evolve(NestedField(1, "tokens", ListType(2, IntegerType(), element_required=False), required=False))
    table.delete_positions([(path, row) for row in (0, 8, 9)])
    report = build_corpus(IcebergDataset(table.metadata), tmp_path / "out", column="tokens", eod=99, part_bytes=1)
    live = [[*document, 99] for row, document in enumerate(DOCUMENTS) if row not in (0, 8, 9)]
    assert read_corpus(str(tmp_path / "out")) == live
    assert report.document_count == 27
    # An older snapshot has its own deletes, and its own names.
    before = IcebergDataset(table.metadata, snapshot_id=first)
    build_corpus(before, tmp_path / "before", column="ids", eod=99)
    assert read_corpus(str(tmp_path / "before")) == [[*document, 99] for document in DOCUMENTS]


def test_parts_of_a_data_set_are_bound_to_its_fingerprint(folder: Path) -> None:
    dataset = StructuredDataset(str(folder))
    parts = plan_parts(dataset, "tokens", 1, None, StoreAccess(), output_prefix="out")
    fingerprint = dataset.plan.inventory.fingerprint()
    assert all(part.describe()["version"] == fingerprint for part in parts)


@pytest.mark.processes
def test_a_data_set_gives_the_rows_of_its_filter_for_all_ranks(folder: Path, tmp_path: Path) -> None:
    dataset = StructuredDataset(str(folder), filters=pc.field("row") >= 13, columns=["row"], num_ranks=2, rank=1)
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as executor:
        build_corpus(dataset, tmp_path / "out", column="tokens", executor=executor)
    assert read_corpus(str(tmp_path / "out")) == DOCUMENTS[13:]
    for options in ({"pack": pack_tokens("tokens", 4)}, {"transform": len}):
        with pytest.raises(ConfigError, match="stored rows"):
            build_corpus(StructuredDataset(str(folder), **options), tmp_path / "no", column="tokens")


def test_a_span_of_the_rows_of_a_data_set_is_refused(folder: Path, tmp_path: Path) -> None:
    shard = StructuredDataset(str(folder)).shard_rows(2, 0, contiguous=True)
    with pytest.raises(ConfigError, match="this data set is a contiguous shard"):
        build_corpus(shard, tmp_path / "out", column="tokens")


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [1, 2])
def test_a_remote_corpus_is_that_of_a_local_disk(folder: Path, tmp_path: Path, remote: Any, outputs: int) -> None:
    options: dict[str, Any] = {"column": "tokens", "vocabulary_size": 100, "output_count": outputs, "part_bytes": 1}
    local = build_corpus(folder, tmp_path / "out", **options)
    with ThreadPoolExecutor(2) as executor:
        report = build_corpus(folder, "memory://corpora/out", executor=executor, **options)
    assert (report.token_count, report.document_count) == (local.token_count, local.document_count)
    for ours, theirs in zip(report.prefixes, local.prefixes, strict=True):
        for ending in ("bin", "idx"):
            key = ours.removeprefix("memory:/")
            assert remote.cat_file(f"{key}.{ending}") == Path(f"{theirs}.{ending}").read_bytes()
    assert len(remote.find("/corpora")) == 2 * outputs
    with pytest.raises(ConfigError, match="exists"):
        build_corpus(folder, "memory://corpora/out", **options)


def test_a_remote_build_goes_on_with_the_parts_that_are_done(
    folder: Path, remote: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"column": "tokens", "part_bytes": 1}
    build_corpus(folder / "0.parquet", "memory://corpora/out", **options)

    def fail(*_: Any) -> None:
        raise StoreError("the store is gone")

    with monkeypatch.context() as patched:
        patched.setattr(JoinedFile, "read", fail)
        with pytest.raises(StoreError, match="gone"):
            build_corpus(folder, "memory://corpora/out", overwrite=True, **options)
    # Neither the old corpus nor half of the new one.
    assert not remote.exists("/corpora/out.idx")
    remote.pipe_file("/corpora/out.parts/notes.txt", b"mine")
    report = build_corpus(folder, "memory://corpora/out", **options)
    assert report.reused_parts == 9
    assert read_corpus("memory://corpora/out") == DOCUMENTS
    assert sorted(remote.find("/corpora")) == ["/corpora/out.bin", "/corpora/out.idx", "/corpora/out.parts/notes.txt"]


def test_remote_parts_of_a_build_that_was_killed_after_it_joined_them_go_with_the_next_call(
    folder: Path, remote: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: RemoteParts) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RemoteParts, "remove", die)
    with pytest.raises(KeyboardInterrupt):
        build_corpus(folder, "memory://corpora/out", column="tokens", part_bytes=1)
    monkeypatch.undo()
    assert len(remote.find("/corpora/out.parts")) == 27
    with pytest.raises(ConfigError, match="exists"):
        build_corpus(folder, "memory://corpora/out", column="tokens", part_bytes=1)
    assert sorted(remote.find("/corpora")) == ["/corpora/out.bin", "/corpora/out.idx"]


def test_errors_of_a_store_are_ours(folder: Path, monkeypatch: pytest.MonkeyPatch, remote: Any) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(type(remote), "pipe_file", fail)
    with pytest.raises(StoreError, match="run the same call again"):
        build_corpus(folder, "memory://corpora/out", column="tokens")
