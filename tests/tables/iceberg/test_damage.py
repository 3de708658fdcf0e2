"""Damaged metadata and deletes: an error of ours that names the file, or the right rows; nothing else."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.faults.hostile_files import good
from tests.formats.encrypted import write_encrypted
from tests.tables.iceberg.reading import read_rows
from tests.tables.iceberg.tables import TableWriter, field_of, ids, numbered
from torch_dataloader_utils import Decoding, IcebergDataset, scan_iceberg
from torch_dataloader_utils.errors import CorruptFileError, FileChangedError, LoaderError, UnsupportedFeatureError
from torch_dataloader_utils.tables.iceberg.metadata_errors import unparsed


@pytest.fixture
def table(tmp_path: Path) -> TableWriter:
    writer = TableWriter(tmp_path, format_version=3)
    writer.evolve(field_of(1, "id", "long"), field_of(2, "name", "string"))
    first = writer.append([{"id": i, "name": f"n{i}"} for i in range(6)])
    second = writer.append([{"id": i, "name": f"n{i}"} for i in range(6, 9)])
    writer.delete_equal([1], [{"id": 4}])
    writer.delete_vectors({second: [0]})
    writer.delete_positions([(first, 1)])
    return writer


LIVE = [0, 2, 3, 5, 7, 8]


def kinds(table: TableWriter) -> dict[str, str]:
    """One file of each kind that the present snapshot needs."""
    avro = sorted(Path(table.root, "metadata").glob("*.avro"))
    return {
        "metadata": table.metadata,
        "manifest list": table.snapshots[-1]["manifest-list"],
        "manifest": str(avro[-2]),
        "data": table.live[0].path,
        "equality": table.live[2].path,
        "vector": table.live[3].path,
        "position": table.live[4].path,
    }


def truncated(content: bytes, step: int) -> bytes:
    return content[: len(content) * step // 12]


def flipped(content: bytes, step: int) -> bytes:
    place = min(len(content) - 1, len(content) * step // 12)
    return content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]


@pytest.mark.slow
@pytest.mark.cases(5)
@pytest.mark.parametrize("damage", [truncated, flipped])
@pytest.mark.parametrize("kind", ["metadata", "manifest list", "manifest", "data", "equality", "vector", "position"])
def test_damage_is_noticed_or_harmless(table: TableWriter, kind: str, damage: Callable[[bytes, int], bytes]) -> None:
    path = Path(kinds(table)[kind])
    content = path.read_bytes()
    refused = 0
    for step in range(12):
        path.write_bytes(damage(content, step))
        try:
            ids = sorted(row["id"] for row in read_rows(table.metadata, columns=["id"], decoding=Decoding(threads=1)))
        except LoaderError:
            refused += 1
        else:
            # Avro has no checksums: a flipped bit may turn one valid value into another, but not into a crash.
            assert ids == LIVE or kind in ("metadata", "manifest list", "manifest")
    # Of a Puffin file only the vectors are read.
    assert refused > (10 if damage is truncated and kind != "vector" else 0)


def test_a_missing_file_is_an_error_that_says_who_named_it(table: TableWriter) -> None:
    for kind in ("equality", "vector", "position", "manifest"):
        path = Path(kinds(table)[kind])
        moved = path.rename(path.with_suffix(".moved"))
        with pytest.raises(FileNotFoundError, match=rf"{table.metadata} names .*{path.name}.*pass path_rewrites"):
            read_rows(table.metadata)
        moved.rename(path)


def test_a_delete_file_that_was_replaced_after_planning_is_noticed(table: TableWriter) -> None:
    inventory = scan_iceberg(table.metadata, count_rows=False)
    path = Path(kinds(table)["equality"])
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(FileChangedError, match=path.name):
        IcebergDataset.create_dataloader(table.metadata, inventory=inventory)


@pytest.mark.parametrize("count", [1 << 31, 1 << 40, 1 << 62])
def test_a_count_of_rows_that_cannot_be_is_refused_before_it_is_planned_on(tmp_path: Path, count: int) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "id", "long"))
    path = Path(table.append([{"id": i} for i in range(5)]))
    (file,) = table.live
    table.live = [replace(file, arguments={**file.arguments, "record_count": count})]
    table.remove()
    with pytest.raises(CorruptFileError, match=rf"{path.name}: its metadata says that row group 0 has {count} rows"):
        scan_iceberg(table.metadata)


@pytest.mark.parametrize("lie", [{"group_rows": -5, "file_rows": -5}, {"group_rows": 1 << 40, "file_rows": 1 << 40}])
def test_a_footer_of_rows_that_cannot_be_is_refused_too(tmp_path: Path, lie: dict[str, int]) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "a", "long"))
    path = Path(table.append([{"a": i} for i in range(3)], with_split_offsets=False))
    path.write_bytes(good(**lie))
    with pytest.raises(
        CorruptFileError, match=rf"{path.name}: its metadata says that row group 0 has {lie['group_rows']}"
    ):
        scan_iceberg(table.metadata)


def test_a_data_file_whose_chunks_lie_elsewhere_is_refused_by_the_scan(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "a", "long"))
    path = Path(table.append([{"a": i} for i in range(3)], with_split_offsets=False))
    metadata = pq.read_metadata(path)
    metadata.set_file_path("elsewhere.parquet")
    metadata.write_metadata_file(path)
    with pytest.raises(UnsupportedFeatureError, match=rf"{path.name}: its column chunks lie in other files"):
        scan_iceberg(table.metadata)


@pytest.mark.parametrize("with_split_offsets", [False, True])
def test_a_data_file_with_encrypted_columns_is_refused(tmp_path: Path, with_split_offsets: bool) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "a", "long"))
    path = Path(table.append([{"a": i} for i in range(3)], with_split_offsets=with_split_offsets))
    write_encrypted(path, pq.read_table(path), ["a"])
    with pytest.raises(UnsupportedFeatureError, match=rf"{path.name}.*columns are encrypted"):
        read_rows(table.metadata)


def table_with_deletes(root: Path, by_position: bool) -> tuple[TableWriter, Path]:
    """A table of three rows, the first of them deleted, and its delete file."""
    table = TableWriter(root)
    table.evolve(field_of(1, "a", "long"))
    path = table.append([{"a": i} for i in range(3)])
    return table, Path(table.delete_positions([(path, 0)]) if by_position else table.delete_equal([1], [{"a": 0}]))


@pytest.mark.parametrize("by_position", [False, True])
def test_deletes_with_encrypted_columns_are_refused_as_such(tmp_path: Path, by_position: bool) -> None:
    table, deletes = table_with_deletes(tmp_path, by_position)
    content = pq.read_table(deletes)
    write_encrypted(deletes, content, content.schema.names)
    with pytest.raises(UnsupportedFeatureError, match=rf"{deletes.name}.*columns are encrypted"):
        read_rows(table.metadata)


@pytest.mark.parametrize("kind", ["manifest list", "manifest"])
def test_an_encrypted_table_is_refused_as_such(tmp_path: Path, kind: str) -> None:
    table = numbered(tmp_path)
    table.append(ids(0, 3))
    manifest_list = Path(table.snapshots[-1]["manifest-list"])
    manifest = next(path for path in manifest_list.parent.glob("*.avro") if path != manifest_list)
    (manifest if kind == "manifest" else manifest_list).write_bytes(b"AGS1" + b"\0\0\x10\0" + bytes(60))
    with pytest.raises(UnsupportedFeatureError, match="is encrypted"):
        scan_iceberg(table.metadata)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("by_position", [False, True])
def test_deletes_that_were_cut_are_refused_as_such(tmp_path: Path, by_position: bool, on_error: str) -> None:
    """Also with "skip": the rows that they delete are not damaged, and nobody knows which they are."""
    table, deletes = table_with_deletes(tmp_path, by_position)
    deletes.write_bytes(deletes.read_bytes()[:-10])
    with pytest.raises(CorruptFileError, match=rf"{deletes.name}.*not a Parquet file, or it was cut"):
        read_rows(table.metadata, on_error=on_error)


def test_a_data_file_of_a_partition_spec_that_is_not_there_is_refused(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "id", "long"), field_of(2, "p", "int"))
    table.partition_by((2, "identity"))
    path = table.append([{"id": 1}], partition=(5,), without_columns=("p",))
    metadata = json.loads(Path(table.metadata).read_text())
    specs = {"partition-specs": [{"spec-id": 7, "fields": []}], "default-spec-id": 7}
    Path(table.metadata).write_text(json.dumps(metadata | specs))
    with pytest.raises(CorruptFileError, match=f"{Path(path).name} has partition spec 0, which the table lacks"):
        scan_iceberg(table.metadata)


def test_a_data_file_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "id", "long"))
    path = table.append([{"id": 1}])
    table.live *= 2
    table.remove()
    with pytest.raises(CorruptFileError, match=f"{Path(path).name} is in the snapshot twice"):
        scan_iceberg(table.metadata)


@pytest.mark.parametrize(
    "error", [KeyError("key-id"), KeyError("value-id"), ValueError("Cannot convert field, missing field-id: {}")]
)
def test_manifests_without_ids_are_not_called_damaged(error: Exception) -> None:
    found = unparsed("m.avro", "manifest", error)
    assert isinstance(found, UnsupportedFeatureError)
    assert "keys or values without ids" in str(found)


def test_a_data_file_that_is_gone_names_the_snapshot_that_may_have_expired(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "v", "long"))
    table.append([{"v": 1}])
    loader, _ = IcebergDataset.create_dataloader(table.metadata, num_workers=0)
    for file in (tmp_path / "data").iterdir():
        file.unlink()
    with pytest.raises(FileChangedError, match="snapshot has expired"):
        list(loader)
