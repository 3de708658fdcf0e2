import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.discover.datasets import write_parquet
from torch_dataloader_utils._core.inventory import UNKNOWN, FileTable, GroupTable, Inventory
from torch_dataloader_utils._core.strings import StringColumn
from torch_dataloader_utils.discover import load_inventory, save_inventory, scan_files, with_live_rows
from torch_dataloader_utils.errors import (
    ConfigError,
    ConfigTypeError,
    CorruptFileError,
    NoDataError,
    StoreError,
    UnsupportedFeatureError,
)


def made(files: int, groups_per_file: int, **options) -> Inventory:
    count = files * groups_per_file
    numbers = np.arange(count, dtype=np.int64)
    table = GroupTable(
        file=np.repeat(np.arange(files, dtype=np.int32), groups_per_file),
        ordinal=np.tile(np.arange(groups_per_file, dtype=np.int32), files),
        first_row=numbers,
        physical_rows=numbers + 1,
        live_rows=numbers + 1,
        projected_bytes=numbers * 3,
        byte_offset=numbers * 5,
        byte_length=numbers * 7,
    )
    file_table = FileTable(
        paths=StringColumn.of(options.pop("paths", [f"/data/part-{i:07}.parquet" for i in range(files)])),
        sizes=np.arange(files, dtype=np.int64),
        identities=StringColumn.of(f"etag-{i}" for i in range(files)),
        formats=np.ones(files, dtype=np.uint8),
        extras=options.pop("extras", ()),
    )
    return Inventory(
        files=file_table,
        groups=table,
        schema=pa.schema([("x", pa.int8())]).serialize().to_pybytes(),
        source="made",
        **options,
    )


def same(a: Inventory, b: Inventory) -> bool:
    arrays = all(np.array_equal(getattr(a.groups, n), getattr(b.groups, n)) for n in a.groups.__slots__)
    return arrays and a.fingerprint() == b.fingerprint() and (a.source, a.projection) == (b.source, b.projection)


def test_partition_values_keep_their_types(tmp_path):
    for key in ("2024-01-01", "__HIVE_DEFAULT_PARTITION__"):
        path = tmp_path / "d" / f"day={key}" / "a.parquet"
        write_parquet(path, 0, [2])
        table = pq.ParquetFile(path).read().append_column("day", pa.array([None, None], pa.date32()))
        pq.write_table(table, path)
    inventory = scan_files(tmp_path / "d", partitioning="hive", columns=["row"])
    save_inventory(inventory, tmp_path / "i")
    loaded = load_inventory(tmp_path / "i")
    assert same(inventory, loaded)
    assert [c.values for c in loaded.files.partitions] == [c.values for c in inventory.files.partitions]
    assert list(loaded.files.identities) == list(inventory.files.identities)


@pytest.mark.parametrize(("files", "groups"), [(0, 0), (3, 0), (1, 5), (100, 50)])
def test_any_size_round_trips(tmp_path, files, groups):
    inventory = made(files, groups)
    save_inventory(inventory, tmp_path / "i")
    assert same(inventory, load_inventory(tmp_path / "i"))


def test_a_remote_store_will_do():
    inventory = made(2, 2)
    save_inventory(inventory, "memory://saved/i.parquet")
    assert same(inventory, load_inventory("memory://saved/i.parquet"))


def test_extras_and_signed_urls_are_not_saved(tmp_path):
    with pytest.raises(UnsupportedFeatureError, match="scan the table again"):
        save_inventory(made(1, 1, extras=({"deletes": 1},)), tmp_path / "i")
    with pytest.raises(ConfigError, match="credentials") as caught:
        save_inventory(made(1, 1, paths=["https://h/a?sig=canary"]), tmp_path / "i")
    assert "canary" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [3, None, b"i"])
def test_a_path_that_is_none_is_refused(path):
    for call in (lambda: save_inventory(made(1, 1), path), lambda: load_inventory(path)):
        with pytest.raises(ConfigTypeError, match=r"a path is a str or os\.PathLike"):
            call()


def test_what_is_no_inventory_is_not_saved(tmp_path):
    with pytest.raises(ConfigTypeError, match="inventory is a dict: pass what scan_files gives"):
        save_inventory({}, tmp_path / "i")
    with pytest.raises(ConfigTypeError, match="A prefix of allowed_roots=5: pass a path"):
        load_inventory(tmp_path / "inventory", allowed_roots=[5])
    with pytest.raises(ConfigTypeError, match="allowed_roots is a int: pass a list"):
        load_inventory(tmp_path / "i", allowed_roots=3)


def test_a_file_that_is_no_inventory_or_a_newer_one_says_so(tmp_path):
    write_parquet(tmp_path / "data", 0, [1])
    with pytest.raises(ConfigError, match="no saved inventory"):
        load_inventory(tmp_path / "data")
    save_inventory(made(1, 1), tmp_path / "i")
    table = pq.read_table(tmp_path / "i")
    about = table.schema.metadata[b"torch_dataloader_utils.inventory"].replace(b'"version": 1', b'"version": 2')
    pq.write_table(table.replace_schema_metadata({b"torch_dataloader_utils.inventory": about}), tmp_path / "i")
    with pytest.raises(ConfigError, match="version 2"):
        load_inventory(tmp_path / "i")
    (tmp_path / "i").write_bytes(b"cut")
    with pytest.raises(CorruptFileError):
        load_inventory(tmp_path / "i")
    with pytest.raises(NoDataError):
        load_inventory(tmp_path / "nope")


def test_a_directory_that_is_not_there_is_a_store_error_and_leaves_nothing(tmp_path):
    with pytest.raises(StoreError, match="cannot write"):
        save_inventory(made(1, 1), tmp_path / "no" / "i")
    assert list(tmp_path.iterdir()) == []


def test_counted_rows_replace_unknown_ones_and_empty_groups_leave():
    inventory = with_live_rows(made(1, 4), np.array([UNKNOWN, 0, 3, 1]))
    assert inventory.groups.ordinal.tolist() == [0, 2, 3]
    assert inventory.groups.live_rows.tolist() == [1, 3, 1]
    assert inventory.groups.first_row.tolist() == [0, 2, 3]


def test_counts_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="3 live row counts for 4"):
        with_live_rows(made(1, 4), np.zeros(3, dtype=np.int64))
    with pytest.raises(ConfigError, match="3 live rows of 2 in row group 1"):
        with_live_rows(made(1, 4), np.array([1, 3, 3, 3]))


@pytest.mark.parametrize(
    ("path", "roots", "fits"),
    [
        ("/data/a.parquet", ["/data"], True),
        ("/data/../etc/a.parquet", ["/data"], False),
        ("/data-2/a.parquet", ["/data"], False),
        ("s3://b/t/a.parquet", ["/data", "s3a://b/t"], True),
        ("s3://b/t/../u/a.parquet", ["s3://b/t"], False),
        ("simplecache::/etc/a.parquet", ["/"], False),
        ("simplecache::s3://b/t/a.parquet", ["s3://"], False),
    ],
)
def test_files_outside_of_allowed_roots_are_refused(tmp_path, path, roots, fits):
    saved = str(tmp_path / "i")
    save_inventory(made(1, 1, paths=[path]), saved)
    if fits:
        assert load_inventory(saved, allowed_roots=roots).num_files == 1
    else:
        with pytest.raises(UnsupportedFeatureError, match="is named by the inventory but lies outside"):
            load_inventory(saved, allowed_roots=roots)
    assert load_inventory(saved).num_files == 1


def test_one_root_is_not_taken_letter_by_letter(tmp_path):
    save_inventory(made(1, 1), str(tmp_path / "i"))
    with pytest.raises(ConfigTypeError, match="one string"):
        load_inventory(str(tmp_path / "i"), allowed_roots="/data")
