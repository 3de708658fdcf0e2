"""Saved inventories: the same after loading, without secrets; damaged or foreign files are errors."""

from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.discover.datasets import write_parquet
from torch_dataloader_utils._core.inventory import UNKNOWN, FileTable, GroupTable, Inventory, StringColumn
from torch_dataloader_utils._core.table_snapshot import TableSnapshot
from torch_dataloader_utils.discover import load_inventory, save_inventory, scan_files, with_live_rows
from torch_dataloader_utils.discover.sealed_parquet import sealed_parquet
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


def test_an_inventory_is_saved_to_where_a_link_leads(tmp_path):
    (tmp_path / "versions").mkdir()
    link, target = tmp_path / "latest", tmp_path / "versions" / "1"
    link.symlink_to("versions/1")
    for inventory in (made(1, 1), made(2, 3)):
        save_inventory(inventory, link)
        assert link.is_symlink()
        assert same(load_inventory(target), inventory)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


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


def test_what_a_scan_left_out_and_the_version_of_a_table_are_saved_too(tmp_path):
    snapshot = TableSnapshot(table="a b", snapshot_id=3, kind="version")
    inventory = made(1, 1, snapshot=snapshot, notes=("on_error=skip left out 1 of 2 files", "b.parquet: bad"))
    save_inventory(inventory, tmp_path / "i")
    loaded = load_inventory(tmp_path / "i")
    assert same(inventory, loaded)
    assert loaded.notes == inventory.notes
    assert loaded.snapshot == snapshot


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
        with pytest.raises(ConfigTypeError, match=r"^path=.*: pass a path, as a str or an os\.PathLike"):
            call()


def test_what_is_no_inventory_is_not_saved(tmp_path):
    with pytest.raises(ConfigTypeError, match=r"inventory is a dict: pass the result of scan_files\(path\)"):
        save_inventory({}, tmp_path / "i")
    with pytest.raises(ConfigTypeError, match="A prefix of allowed_roots=5: pass a path"):
        load_inventory(tmp_path / "inventory", allowed_roots=[5])
    with pytest.raises(ConfigTypeError, match="allowed_roots is an int: pass a list"):
        load_inventory(tmp_path / "i", allowed_roots=3)


def test_a_file_that_is_no_inventory_or_a_newer_one_says_so(tmp_path):
    write_parquet(tmp_path / "data", 0, [1])
    with pytest.raises(ConfigError, match="not a saved inventory"):
        load_inventory(tmp_path / "data")
    save_inventory(made(1, 1), tmp_path / "i")
    table = pq.read_table(tmp_path / "i")
    about = table.schema.metadata[b"torch_dataloader_utils.inventory"].replace(b'"version": 1', b'"version": 4')
    table = table.replace_schema_metadata({b"torch_dataloader_utils.inventory": about})
    (tmp_path / "i").write_bytes(sealed_parquet(table))
    with pytest.raises(ConfigError, match="version 4"):
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


@pytest.fixture
def partitioned(tmp_path) -> Inventory:
    """Everything that is saved: partition values of several types, a projection, a filter, files of several groups."""
    for year, city in ((2024, "%C3%84"), (2023, "Z"), (2023, "__HIVE_DEFAULT_PARTITION__")):
        write_parquet(tmp_path / "d" / f"year={year}" / f"city={city}" / "a.parquet", 0, [3, 5, 2])
    return scan_files(tmp_path / "d", partitioning="hive", columns=["row"], filters=pc.field("row") >= 0)


def damaged(content: bytes, random: np.random.Generator, most_bits: int) -> bytes:
    flipped = bytearray(content)
    for bit in random.choice(8 * len(content), random.integers(1, most_bits + 1), replace=False).tolist():
        flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


@pytest.mark.slow
@pytest.mark.parametrize("most_bits", [1, 4])
def test_flipped_bits_of_a_saved_inventory_are_found(tmp_path, partitioned, most_bits):
    path = tmp_path / "i"
    save_inventory(partitioned, path)
    content, random = path.read_bytes(), np.random.default_rng(0)
    in_footer = content[-4 - int.from_bytes(content[-8:-4], "little") :]
    # Of several bits, some may be of the seal's name and some of the inventory's: then nothing shows what it was.
    refusals = CorruptFileError if most_bits == 1 else (CorruptFileError, ConfigError)
    found = 0
    for number in range(600):
        part = in_footer if number % 2 else content
        path.write_bytes(content[: len(content) - len(part)] + damaged(part, random, most_bits))
        try:
            assert same(load_inventory(path), partitioned)
        except refusals as error:
            assert str(path) in str(error)  # noqa: PT017 - loading rightly is an answer too
            found += 1
    assert found > 590


@pytest.mark.slow
def test_every_bit_of_the_seal_may_flip(tmp_path, partitioned):
    path = tmp_path / "i"
    save_inventory(partitioned, path)
    content = path.read_bytes()
    start = content.rindex(b"torch_dataloader_utils.seal")
    for bit in range(8 * start, 8 * (start + 80)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(CorruptFileError):
            load_inventory(path)


def test_a_saved_inventory_that_is_cut_or_longer_is_corrupt(tmp_path, partitioned):
    path = tmp_path / "i"
    save_inventory(partitioned, path)
    content = path.read_bytes()
    for other in (*(content[:size] for size in range(0, len(content), 37)), content + b" ", content[1:], content * 2):
        path.write_bytes(other)
        with pytest.raises(CorruptFileError):
            load_inventory(path)


def test_a_saved_inventory_that_another_tool_wrote_again_is_not_the_one_that_was_saved(tmp_path, partitioned):
    save_inventory(partitioned, tmp_path / "i")
    pq.write_table(pq.read_table(tmp_path / "i"), tmp_path / "i")
    with pytest.raises(CorruptFileError, match="seal"):
        load_inventory(tmp_path / "i")


def test_the_same_inventory_is_saved_as_the_same_bytes(tmp_path, partitioned):
    for name in ("a", "b"):
        save_inventory(partitioned, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.slow
def test_damage_under_a_seal_is_never_a_foreign_error(tmp_path, partitioned):
    path = tmp_path / "i"
    save_inventory(partitioned, path)
    content, random = path.read_bytes(), np.random.default_rng(0)
    place = content.rindex(b"blake2b-128:") + len(b"blake2b-128:")
    footer = int.from_bytes(content[-8:-4], "little") + 8
    for number in range(1500):
        part = content[-footer:] if number % 3 else content
        changed = bytearray(content[: len(content) - len(part)] + damaged(part, random, 3))
        changed[place : place + 32] = b"0" * 32
        changed[place : place + 32] = blake2b(changed, digest_size=16).hexdigest().encode()
        path.write_bytes(changed)
        try:
            inventory = load_inventory(path)
        except (CorruptFileError, ConfigError):
            continue  # a ConfigError where the name or the version of the format was hit
        inventory.fingerprint()
        [inventory.task(group) for group in range(inventory.num_groups)]


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.drop_columns("path"),
        lambda table: table.drop_columns("partition_codes.year"),
        lambda table: table.set_column(1, "size", table["size"].cast(pa.float64())),
        lambda table: table.set_column(0, "path", pa.array([b"\xff"] * 3).view(pa.string())),
        lambda table: table.set_column(2, "identity", pa.array(["a", None, "b"])),
        lambda table: table.set_column(3, "format", pa.array([1, 9, 1], pa.uint8())),
        lambda table: table.set_column(6, "ordinal", pa.array([[0, 1], [0, 1, 2, 3], [0, 1, 2]], pa.list_(pa.int32()))),
        lambda table: table.set_column(4, "partition_codes.year", pa.array([0, 2, 1], pa.int32())),
        lambda table: metadata_changed(table, b'"schema": "', b'"schema": "////'),
        lambda table: metadata_changed(table, b'"schema": "', b'"schemas": "'),
        lambda table: metadata_changed(table, b'"source": "', b'"source": 3, "x": "'),
        lambda table: metadata_changed(table, b'"notes": [', b'"notes": [3'),
        lambda table: metadata_changed(table, b'[["year"', b'[["yeah"'),
        lambda table: metadata_changed(table, b'{"version', b'[{"version'),
    ],
)
def test_a_sealed_inventory_that_does_not_fit_together_is_corrupt(tmp_path, partitioned, change):
    """Anybody can seal a file: a seal is for damage, not against people."""
    save_inventory(partitioned, tmp_path / "i")
    (tmp_path / "i").write_bytes(sealed_parquet(change(pq.read_table(tmp_path / "i"))))
    with pytest.raises(CorruptFileError, match="the saved inventory does not decode"):
        load_inventory(tmp_path / "i")


def metadata_changed(table: pa.Table, old: bytes, new: bytes) -> pa.Table:
    metadata = {key: text.replace(old, new) for key, text in table.schema.metadata.items()}
    assert metadata != table.schema.metadata
    return table.replace_schema_metadata(metadata)
