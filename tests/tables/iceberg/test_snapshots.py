"""Which snapshot is read, and under which schema: times, branches, tags, increments."""

import datetime
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.tables.iceberg.reading import pyiceberg_rows, read_rows
from tests.tables.iceberg.tables import TableWriter, field_of
from torch_dataloader_utils import IcebergDataset, scan_iceberg
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.table_snapshot import time_text
from torch_dataloader_utils.datasets.iceberg_source import IcebergSource, open_alike
from torch_dataloader_utils.datasets.options import ScanOptions
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, ConfigTypeError, NoDataError
from torch_dataloader_utils.tables.iceberg.table_scan import scan_table


def history(root: Path) -> TableWriter:
    """Snapshots 1001 (a: 0 to 3), 1002 (a: 4, 5), 1003 (0 deleted), 1004 (renamed to b: 6)."""
    table = TableWriter(root)
    table.evolve(field_of(1, "a", "int"))
    path = table.append([{"a": i} for i in range(4)])
    table.append([{"a": i} for i in (4, 5)])
    table.delete_positions([(path, 0)])
    table.evolve(field_of(1, "b", "long"))
    table.append([{"b": 6}])
    table.refs = {
        "audit": {"snapshot-id": 1002, "type": "branch"},
        "v1": {"snapshot-id": 1001, "type": "tag"},
    }
    table.write_metadata()
    return table


def values(table: TableWriter, **options: object) -> tuple[str, list[int]]:
    rows = read_rows(table.metadata, **options)
    (name,) = rows[0]
    return name, sorted(row[name] for row in rows)


@pytest.mark.slow
def test_time_travel_reads_under_the_schema_of_that_time(tmp_path: Path) -> None:
    table = history(tmp_path)
    assert values(table) == ("b", [1, 2, 3, 4, 5, 6])
    assert values(table, snapshot_id=1002) == ("a", [0, 1, 2, 3, 4, 5])
    assert values(table, snapshot_id=1003) == ("a", [1, 2, 3, 4, 5])
    assert values(table, tag="v1") == ("a", [0, 1, 2, 3])
    assert values(table, as_of_timestamp=1_700_000_002_999) == ("a", [0, 1, 2, 3, 4, 5])
    assert values(table, as_of_timestamp=np.int64(1_700_000_002_999)) == ("a", [0, 1, 2, 3, 4, 5])
    at = datetime.datetime.fromtimestamp(1_700_000_003, tz=datetime.UTC)
    assert values(table, as_of_timestamp=at) == ("a", [1, 2, 3, 4, 5])
    assert values(table, as_of_timestamp=at.replace(tzinfo=None)) == ("a", [1, 2, 3, 4, 5])
    for snapshot_id in (1001, 1002, 1003):
        oracle = sorted(row["a"] for row in pyiceberg_rows(table.metadata, snapshot_id))
        assert values(table, snapshot_id=snapshot_id) == ("a", oracle)


def test_of_two_snapshots_in_one_millisecond_the_later_one_is_meant(tmp_path: Path) -> None:
    table = history(tmp_path)
    table.snapshots[1]["timestamp-ms"] = table.snapshots[0]["timestamp-ms"]
    table.write_metadata()
    assert values(table, as_of_timestamp=table.snapshots[0]["timestamp-ms"]) == ("a", [0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize("log", [None, []])
def test_without_a_log_a_time_means_an_ancestor_of_the_present_snapshot(
    tmp_path: Path, log: list[object] | None
) -> None:
    table = history(tmp_path)
    # Snapshot 1003 was rolled back: 1004 follows 1002.
    table.snapshots[-1]["parent-snapshot-id"] = 1002
    table.write_metadata()
    metadata = json.loads(Path(table.metadata).read_text())
    del metadata["snapshot-log"]
    Path(table.metadata).write_text(json.dumps(metadata | ({} if log is None else {"snapshot-log": log})))
    first = metadata["snapshots"][0]["timestamp-ms"]
    assert values(table, as_of_timestamp=first) == ("a", [0, 1, 2, 3])
    assert values(table, as_of_timestamp=first + 2_500) == ("a", [0, 1, 2, 3, 4, 5])
    known = rf"had no snapshot at {time_text(first - 1)}, .* the first known snapshot is of {time_text(first)}\."
    with pytest.raises(NoDataError, match=known):
        scan_iceberg(table.metadata, as_of_timestamp=first - 1)


def test_a_snapshot_that_is_its_own_ancestor_has_no_other(tmp_path: Path) -> None:
    table = history(tmp_path)
    table.snapshots[0]["parent-snapshot-id"] = 1004
    table.write_metadata()
    with pytest.raises(ConfigError, match="from_snapshot_id=7 is no ancestor of snapshot 1004"):
        scan_iceberg(table.metadata, from_snapshot_id=7)


def test_a_branch_is_read_under_the_tables_present_schema(tmp_path: Path) -> None:
    assert values(history(tmp_path), branch="audit") == ("b", [0, 1, 2, 3, 4, 5])


def test_an_increment_is_what_was_appended_in_between(tmp_path: Path) -> None:
    table = history(tmp_path)
    assert values(table, from_snapshot_id=1001, allow_rewrites=True) == ("b", [4, 5, 6])
    assert values(table, from_snapshot_id=1001, snapshot_id=1002) == ("a", [4, 5])
    assert values(table, from_snapshot_id=1003) == ("b", [6])
    with pytest.raises(ConfigError, match=r"written anew by 1003 \(delete\).* from_snapshot_id=1003 or later"):
        scan_iceberg(table.metadata, from_snapshot_id=1001)
    notes = scan_iceberg(table.metadata, from_snapshot_id=1001, allow_rewrites=True).notes
    assert notes == ("increment: only appends are read; left out are the changes of 1003 (delete)",)
    with pytest.raises(NoDataError, match="nothing to read"):
        read_rows(table.metadata, from_snapshot_id=1002, snapshot_id=1003, allow_rewrites=True)
    with pytest.raises(ConfigError, match="no ancestor"):
        read_rows(table.metadata, from_snapshot_id=1003, snapshot_id=1002)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"snapshot_id": 5}, "no snapshot 5"),
        ({"branch": "v1"}, "no branch 'v1'"),
        ({"tag": "nope"}, "it has v1"),
        ({"tag": "v1", "branch": "main"}, "pass one of them"),
        ({"as_of_timestamp": 1}, "had no snapshot at 1970-01-01 00:00:00.001 UTC"),
        ({"snapshot_id": "1001"}, "snapshot_id='1001': pass a whole number"),
        ({"from_snapshot_id": "1001"}, "from_snapshot_id='1001': pass a whole number"),
    ],
)
def test_wrong_choices_say_what_there_is(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scan_iceberg(history(tmp_path).metadata, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"branch": ["main"]}, r"branch=\['main'\]: pass the name of one branch"),
        ({"tag": 1}, "tag=1: pass the name of one tag"),
        ({"as_of_timestamp": "2024-01-01"}, "as_of_timestamp='2024-01-01': pass milliseconds since 1970"),
        ({"as_of_timestamp": True}, "as_of_timestamp=True: pass milliseconds since 1970"),
        ({"as_of_timestamp": 1.5}, "as_of_timestamp=1.5: pass milliseconds since 1970"),
        ({"allow_empty": "yes"}, "allow_empty='yes': pass True or False"),
        ({"path_rewrites": {"/old": 3}}, "path_rewrites has '/old': 3: pass a text for a text"),
    ],
)
def test_options_of_another_type_are_refused(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigTypeError, match=message):
        scan_iceberg(str(tmp_path), **options)


def test_nothing_to_read_is_an_error_or_an_empty_loader_by_option(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "a", "long"))
    table.write_metadata()
    with pytest.raises(FileNotFoundError, match=r"no snapshot.*allow_empty"):
        IcebergDataset.create_dataloader(table.metadata)
    for branch in (None, "main"):
        loader, _ = IcebergDataset.create_dataloader(table.metadata, branch=branch, allow_empty=True, num_workers=0)
        assert len(loader) == 0
        assert list(loader) == []


def test_a_present_snapshot_that_the_metadata_lack_is_no_empty_table(tmp_path: Path) -> None:
    path = Path(history(tmp_path).metadata)
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps(metadata | {"current-snapshot-id": 77, "refs": {}}))
    with pytest.raises(ConfigError, match=r"no snapshot 77; its latest are .*1004"):
        scan_iceberg(str(path), allow_empty=True)


def test_a_path_that_is_no_table_says_what_names_are_for(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "demo.events"):
        with pytest.raises(NoDataError, match=r"is not an Iceberg table.*pass catalog_config"):
            scan_iceberg(str(place))
    (tmp_path / "metadata").mkdir()
    with pytest.raises(NoDataError, match="is not an Iceberg table"):
        scan_iceberg(str(tmp_path))


def test_a_table_directory_means_its_newest_metadata(tmp_path: Path) -> None:
    table = history(tmp_path)
    assert scan_iceberg(str(tmp_path)).num_rows == 6
    assert scan_iceberg(tmp_path).num_rows == 6
    (tmp_path / "metadata" / "version-hint.text").write_text("2")
    assert scan_iceberg(str(tmp_path)).num_files >= 1
    with pytest.raises(NoDataError):
        scan_iceberg(str(tmp_path / "nowhere"))
    (tmp_path / "empty" / "metadata").mkdir(parents=True)
    (tmp_path / "empty" / "metadata" / "x.txt").write_text("")
    with pytest.raises(NoDataError, match="not an Iceberg table"):
        scan_iceberg(str(tmp_path / "empty"))
    assert table.snapshot_id == 1004


def test_of_two_metadata_files_of_one_version_the_one_written_last_counts(tmp_path: Path) -> None:
    newest = Path(history(tmp_path).metadata)
    version = newest.name.partition(".")[0].removeprefix("v")
    # Older, smaller by name and by size (999 bytes are a greater text than 1000), and of other rows.
    older = newest.with_name(f"{version}-aa.metadata.json")
    metadata = json.loads(newest.read_text())
    older.write_text(json.dumps(metadata | {"current-snapshot-id": 1001, "refs": {}}))
    newest.write_text(json.dumps(metadata).ljust(10_000))
    older.write_text(older.read_text().ljust(9_999))
    os.utime(older, ns=(0, 1_000))
    os.utime(newest, ns=(0, 2_000))
    assert scan_iceberg(str(tmp_path)).num_rows == 6
    os.utime(older, ns=(0, 3_000))
    assert scan_iceberg(str(tmp_path)).num_rows == 4
    os.utime(older, ns=(0, 2_000))
    with pytest.raises(ConfigError, match=rf"several newest metadata files \({older.name} and {newest.name}\).*Pass"):
        scan_iceberg(str(tmp_path))
    assert scan_iceberg(str(newest)).num_rows == 6


class Timeless(MemoryFileSystem):
    """A store that does not say when its files were written."""

    protocol = "timeless"

    def ls(self, path: str, detail: bool = True, **options: object) -> list[Any]:
        found = super().ls(path, detail=detail, **options)
        return [{**each, "created": None} for each in found] if detail else found

    def info(self, path: str, **options: object) -> dict[str, Any]:
        return {**super().info(path, **options), "created": None}


def test_where_a_store_does_not_say_when_metadata_were_written_the_file_has_to_be_named() -> None:
    fsspec.register_implementation("timeless", Timeless, clobber=True)
    files = Timeless()
    for name in ("00002-aa.metadata.json", "00002-bb.metadata.json"):
        files.pipe_file(f"/t/metadata/{name}", b"{}")
    with pytest.raises(ConfigError, match=r"its store does not say which was written last\. Pass the path"):
        scan_iceberg("timeless://t")
    files.rm("/t", recursive=True)


@pytest.mark.parametrize("renamed", ["before the run", "after the run"])
def test_a_state_of_a_snapshot_that_was_read_under_another_schema_than_its_own_says_how_to_resume(
    tmp_path: Path, renamed: str
) -> None:
    def make(**options: object) -> Any:
        return IcebergDataset.create_dataloader(table.metadata, batch_size=2, num_workers=0, **options)[0]

    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "x", "long"))
    table.append([{"x": row} for row in range(10)])
    first = table.snapshot_id
    if renamed == "before the run":
        table.evolve(field_of(1, "y", "long"))
    loader = make()
    next(iter(loader))
    state = loader.state_dict()
    if renamed == "after the run":
        table.evolve(field_of(1, "y", "long"))
        with pytest.raises(CheckpointMismatchError, match=r"columns changed.*Pass snapshot_id="):
            make().load_state_dict(state)
    table.append([{"y": 10}])
    with pytest.raises(CheckpointMismatchError, match=r"Tables move on: pass snapshot_id=100"):
        make().load_state_dict(state)
    fits = {"snapshot_id": first}
    if renamed == "before the run":
        with pytest.raises(CheckpointMismatchError, match=r"if you did, pass branch= with a branch"):
            make(**fits).load_state_dict(state)
        table.refs["resume"] = {"snapshot-id": first, "type": "branch"}
        table.write_metadata()
        fits = {"branch": "resume"}
    resumed = make(**fits)
    resumed.load_state_dict(state)
    assert sum(batch.num_rows for batch in resumed) == 8


def seen_by_ranks(table: TableWriter, commit: Callable[[], object], **options: object) -> list[Inventory]:
    """What two ranks scan, where somebody commits after rank 0 looked and before rank 1 does."""
    given: list[np.ndarray] = []

    def tell(counts: np.ndarray) -> np.ndarray:
        given.append(counts)
        return counts

    def scan(share: Share) -> Inventory:
        source = IcebergSource(table=table.metadata, **options)
        return scan_table(*open_alike(source, source.scan_options(ScanOptions()), share))

    first = scan(Share(index=0, count=2, exchange=tell))
    commit()
    return [first, scan(Share(index=1, count=2, exchange=lambda counts: counts + given[0]))]


def test_ranks_of_a_process_group_read_the_snapshot_that_rank_0_found(tmp_path: Path) -> None:
    table = history(tmp_path)
    seen = seen_by_ranks(table, lambda: table.append([{"b": 7}]))
    assert [each.num_rows for each in seen] == [6, 6]


@pytest.mark.parametrize(
    ("options", "name"), [({}, "b"), ({"branch": "audit"}, "b"), ({"snapshot_id": 1002}, "a"), ({"tag": "v1"}, "a")]
)
def test_they_read_it_under_the_schema_that_rank_0_found(tmp_path: Path, options: dict[str, object], name: str) -> None:
    table = history(tmp_path)
    seen = seen_by_ranks(table, lambda: table.evolve(field_of(1, "c", "long"), field_of(2, "d", "long")), **options)
    assert [pa.ipc.read_schema(pa.BufferReader(each.schema)).names for each in seen] == [[name], [name]]


def test_a_schema_that_was_removed_meanwhile_is_an_error_that_names_it(tmp_path: Path) -> None:
    table = history(tmp_path)

    def replace_schemas() -> None:
        table.evolve(field_of(1, "c", "long"))
        metadata = json.loads(Path(table.metadata).read_text())
        metadata["schemas"] = metadata["schemas"][-1:]
        Path(table.metadata).write_text(json.dumps(metadata))

    with pytest.raises(ConfigError, match=r"has no schema 1, which rank 0 found; it has \[2\]"):
        seen_by_ranks(table, replace_schemas)


def test_a_table_that_was_empty_when_rank_0_looked_is_empty_for_all(tmp_path: Path) -> None:
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "a", "long"))
    table.write_metadata()
    seen = seen_by_ranks(table, lambda: table.append([{"a": 1}]), allow_empty=True)
    assert [each.num_rows for each in seen] == [0, 0]
