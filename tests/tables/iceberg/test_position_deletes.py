"""Position deletes in all formats: of which files and snapshots they delete rows, and exact counts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.tables.iceberg.arrow_memory import counted_memory
from tests.tables.iceberg.reading import in_order, pyiceberg_rows, read_rows
from tests.tables.iceberg.tables import TableWriter, ids, numbered
from torch_dataloader_utils import plan_epoch, scan_iceberg
from torch_dataloader_utils.discover.roots import PathIndex
from torch_dataloader_utils.errors import CorruptFileError


def read_ids(table: TableWriter, **options: object) -> list[int]:
    return [row["id"] for row in read_rows(table.metadata, **options)]


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
@pytest.mark.parametrize("delete_format", ["parquet", "orc"])
def test_unsorted_repeated_and_spread_deletes_in_all_formats(
    tmp_path: Path, file_format: str, delete_format: str
) -> None:
    table = numbered(tmp_path)
    first = table.append(ids(0, 50), rows_per_group=8, file_format=file_format)
    second = table.append(ids(50, 90), rows_per_group=8, file_format=file_format)
    table.delete_positions([(second, 3), (first, 49), (first, 0), (second, 3), (first, 20)], file_format=delete_format)
    table.delete_positions([(first, 20), (first, 21)], file_format=delete_format)
    gone = {0, 20, 21, 49, 53}
    assert sorted(read_ids(table)) == [number for number in range(90) if number not in gone]
    if "orc" not in (file_format, delete_format):
        assert in_order(read_rows(table.metadata)) == in_order(pyiceberg_rows(table.metadata))


@pytest.mark.parametrize("names", [("file_path", "pos"), ("pos", "file_path"), ("a", "b")])
@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", "dictionary"])
def test_delete_files_of_all_encodings_with_columns_found_by_id(
    tmp_path: Path, encoding: str, names: tuple[str, str]
) -> None:
    table = numbered(tmp_path)
    first, second = table.append(ids(0, 10)), table.append(ids(10, 20))
    path = table.delete_positions([(first, 3), (second, 0), (first, 9)])
    as_dictionary = encoding == "dictionary"
    options = {} if as_dictionary else {"column_encoding": {names[0]: encoding}}
    pq.write_table(pq.read_table(path).rename_columns(names), path, use_dictionary=as_dictionary, **options)
    assert sorted(read_ids(table)) == [number for number in range(20) if number not in {3, 9, 10}]


@pytest.mark.slow
def test_the_paths_of_many_deletes_take_no_memory_as_texts(tmp_path: Path) -> None:
    table = numbered(tmp_path)
    first, second = (table.append(ids(start, start + 150_000), rows_per_group=150_000) for start in (0, 150_000))
    table.delete_positions([((first, second)[row % 3 == 0], row) for row in range(150_000)])
    with counted_memory() as counted:
        assert scan_iceberg(table.metadata).num_rows == 150_000
    assert counted.max_memory() < 150_000 * len(first)


def test_files_with_deletes_are_split_into_row_groups_and_counted_exactly(tmp_path: Path) -> None:
    table = numbered(tmp_path)
    path = table.append(ids(0, 40), rows_per_group=10)
    table.delete_positions([(path, row) for row in [*range(10, 20), 35]])
    inventory = scan_iceberg(table.metadata)
    assert inventory.groups.live_rows.tolist() == [10, 10, 9]
    assert inventory.groups.first_row.tolist() == [0, 20, 30]
    assert plan_epoch(inventory, num_ranks=4, batch_size=2, split_rows=1).rank_rows == (8, 7, 7, 7)
    assert sorted(read_ids(table, num_ranks=3, batch_size=4, split_rows=1)) == [
        *range(10),
        *range(20, 35),
        *range(36, 40),
    ]


def test_a_delete_applies_to_files_of_its_own_and_earlier_snapshots_only(tmp_path: Path) -> None:
    table = numbered(tmp_path)
    path = table.append(ids(0, 4))
    table.delete_positions([(path, 1)])
    entry = table.live[0]
    table.live[0] = type(entry)(**{**vars(entry), "sequence_number": 9})  # the file is newer than the delete
    table.append(ids(4, 5))
    assert sorted(read_ids(table)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("with_older_file", [True, False])
def test_a_delete_touches_a_file_of_its_own_commit(tmp_path: Path, with_older_file: bool) -> None:
    # As writers of streams do it: rows that a commit adds and, later in the same commit, takes back.
    table = numbered(tmp_path)
    older = [table.append(ids(0, 4))] if with_older_file else []
    added = table.append(ids(4, 8))
    table.delete_positions([(path, 1) for path in (*older, added)])
    table.live[-2] = replace(table.live[-2], sequence_number=table.live[-1].sequence_number)
    table.append(ids(8, 9))
    assert sorted(read_ids(table)) == [*([0, 2, 3] if with_older_file else []), 4, 6, 7, 8]


def test_a_delete_file_that_names_an_older_file_and_a_newer_one_touches_the_older_one(tmp_path: Path) -> None:
    table = numbered(tmp_path)
    older, newer = table.append(ids(0, 4)), table.append(ids(4, 8))
    table.delete_positions([(older, 1), (newer, 1)])
    (place,) = [number for number, entry in enumerate(table.live) if entry.path == newer]
    table.live[place] = replace(table.live[place], sequence_number=9)
    table.append(ids(8, 9))
    assert sorted(read_ids(table)) == [0, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("data_prefix", "delete_prefix", "rewrites"),
    [
        ("/warehouse/t", "hdfs://host:8020/warehouse/t", ["/warehouse/t"]),
        ("file:///warehouse/t", "/warehouse/t", ["file:///warehouse/t"]),
        ("hdfs://a/warehouse/t", "hdfs://b/warehouse/t", ["hdfs://a/warehouse/t"]),
        ("s3://bucket/t", "s3a://bucket/t", ["s3://bucket/t", "s3a://bucket/t"]),
        ("s3://bucket/t", "s3a://bucket/t", ["s3://"]),
    ],
)
def test_no_delete_is_lost_to_the_spelling_of_a_path(
    tmp_path: Path, data_prefix: str, delete_prefix: str, rewrites: list[str]
) -> None:
    table = numbered(
        tmp_path / "bucket" / "t" if rewrites == ["s3://"] else tmp_path / "warehouse" / "t", path_prefix=data_prefix
    )
    path = table.append(ids(0, 6))
    table.delete_positions([(path.replace(data_prefix, delete_prefix), 2)])
    target = f"{tmp_path}/" if rewrites == ["s3://"] else str(table.root)
    if rewrites == ["s3://"]:
        # After this rewrite only the deletes still have a scheme and a bucket of their own.
        assert sorted(read_ids(table, path_rewrites={"s3://": target, "s3a://": target})) == [0, 1, 3, 4, 5]
    assert sorted(
        read_ids(table, path_rewrites=dict.fromkeys([data_prefix], str(table.root)) | {delete_prefix: str(table.root)})
    ) == [0, 1, 3, 4, 5]


def test_a_rewrite_touches_whole_names_only(tmp_path: Path) -> None:
    table = numbered(tmp_path / "events")
    path = table.append(ids(0, 6))
    table.delete_positions([(path, 2)])
    moved = (tmp_path / "events").rename(tmp_path / "events-2")
    metadata = table.metadata.replace(str(tmp_path / "events"), str(moved))
    rows = read_rows(metadata, path_rewrites={str(tmp_path / "events"): str(moved)})
    assert sorted(row["id"] for row in rows) == [0, 1, 3, 4, 5]
    with pytest.raises(TypeError, match="path_rewrites is a list: pass a dict"):
        read_rows(metadata, path_rewrites=["events"])


def test_a_delete_that_differs_in_scheme_and_host_finds_its_file_without_a_rewrite(tmp_path: Path) -> None:
    table = numbered(tmp_path)
    path = table.append(ids(0, 6))
    table.delete_positions([(f"hdfs://namenode:8020{path}", 2)])
    table.delete_positions([(f"file://{path}", 3)])
    assert sorted(read_ids(table)) == [0, 1, 4, 5]


def test_a_delete_that_could_mean_two_files_is_refused() -> None:
    index = PathIndex.of(["s3://a/t/x.parquet", "s3://b/t/x.parquet", "s3://b/t/y.parquet"])
    assert index.find("s3a://b/t/x.parquet") == 1
    assert index.find("hdfs://host/t/y.parquet") == 2
    assert index.find("s3://b/t/z.parquet") is None
    with pytest.raises(CorruptFileError, match="2 data files differ from that in scheme, host or slashes only"):
        index.find("hdfs://host/t/x.parquet")


def test_a_file_of_an_earlier_snapshot_inherits_no_sequence_number(tmp_path: Path) -> None:
    # It would be that of the newest snapshot, and no delete would touch the file any more.
    table = numbered(tmp_path)
    path = table.append(ids(0, 5))
    table.delete_positions([(path, 1)])
    table.live[0] = replace(table.live[0], sequence_number=None)
    table.append(ids(5, 9))
    with pytest.raises(CorruptFileError, match=rf"the entry of {path} has no sequence number"):
        scan_iceberg(table.metadata)


def test_dangling_deletes_are_ignored_counted_and_explained(tmp_path: Path) -> None:
    table = numbered(tmp_path)
    first = table.append(ids(0, 5))
    table.append(ids(5, 9))
    table.delete_positions([(first, 1), (first, 2), ("/elsewhere/x.parquet", 0)])
    table.remove(first)
    inventory = scan_iceberg(table.metadata)
    assert inventory.num_rows == 4
    assert "dangling deletes ignored: 3" in plan_epoch(inventory).explain()
    assert sorted(read_ids(table)) == [5, 6, 7, 8]


def test_rows_without_a_path_mean_the_file_that_the_manifest_names(tmp_path: Path) -> None:
    table = numbered(tmp_path, format_version=3)
    path = table.append(ids(0, 5))
    table.delete_positions([(None, 1), (path, 2)], referenced=path)
    table.delete_positions([(None, 3)])
    assert sorted(read_ids(table)) == [0, 3, 4]


@pytest.mark.parametrize("row", [5, -1, 1 << 40])
def test_a_deleted_row_that_the_file_does_not_have_is_an_error(tmp_path: Path, row: int) -> None:
    table = numbered(tmp_path)
    path = table.append(ids(0, 5))
    table.delete_positions([(path, row)])
    with pytest.raises(CorruptFileError, match=f"row {row} is deleted, and the file has 5 rows"):
        scan_iceberg(table.metadata)


def test_a_state_does_not_fit_another_snapshot_with_as_many_rows(tmp_path: Path) -> None:
    table = numbered(tmp_path)
    path = table.append(ids(0, 9))
    table.delete_positions([(path, 1)])
    before = scan_iceberg(table.metadata)
    table.live = table.live[:1]
    table.delete_positions([(path, 2)])
    after = scan_iceberg(table.metadata)
    assert np.array_equal(before.groups.live_rows, after.groups.live_rows)
    assert before.fingerprint() != after.fingerprint()


def test_objects_whose_keys_differ_in_slashes_only_are_two_files() -> None:
    index = PathIndex.of(["s3://b/t//x.parquet", "s3://b/t/x.parquet", "s3://b/t/y.parquet"])
    assert [index.find(f"s3://b/t{key}") for key in ("//x.parquet", "/x.parquet", "//y.parquet")] == [0, 1, 2]
    with pytest.raises(CorruptFileError, match="2 data files differ from that in scheme, host or slashes only"):
        index.find("s3://b/t/./x.parquet")


def test_locations_are_literal() -> None:
    # Delta's paths are URIs, Iceberg's locations are not: each of these is another object.
    keys = ["a%6C.p", "al.p", "a b.p", "a%20b.p", "a+b.p", "a%2Fb.p", "a/b.p", "q?x#y.p", "q.p"]
    index = PathIndex.of(f"s3://b/t/{key}" for key in keys)
    assert [index.find(f"s3a://b/t/{key}") for key in keys] == list(range(len(keys)))
    assert [index.find(f"hdfs://host/t/{key}") for key in keys] == list(range(len(keys)))
    assert index.find("s3://b/t/%61l.p") is None
