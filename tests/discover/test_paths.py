"""Which files a path, a pattern, a directory or a list of them names, and what a wrong one says."""

import logging
import os
import re

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

from tests.discover.datasets import SCHEMA, write_parquet
from torch_dataloader_utils.discover import scan_files
from torch_dataloader_utils.errors import (
    ConfigError,
    ConfigTypeError,
    CorruptFileError,
    NoDataError,
    SchemaError,
    UnsupportedFeatureError,
)


def names(inventory, root):
    return [path.removeprefix(f"{root}/") for path in inventory.files.paths]


@pytest.fixture
def root(tmp_path):
    for index, name in enumerate(["b/2.parquet", "b/1.parquet", "a/deep/3", "c.parquet"]):
        write_parquet(tmp_path / name, index, [3, 2])
    for name in ("_SUCCESS", "a/_SUCCESS", ".part.crc", "_temporary/0/x.parquet", "b/.ipynb_checkpoints/1.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"not data")
    (tmp_path / "b" / "empty").write_bytes(b"")
    return tmp_path


def test_a_directory_is_read_recursively_without_hidden_and_empty_files(root, caplog):
    with caplog.at_level(logging.DEBUG, logger="torch_dataloader_utils.discover.paths"):
        inventory = scan_files(root)
    assert names(inventory, root) == ["a/deep/3", "b/1.parquet", "b/2.parquet", "c.parquet"]
    assert inventory.num_rows == 20
    left_out = {record.getMessage().removeprefix(f"{root}/") for record in caplog.records}
    assert left_out == {
        "_SUCCESS is hidden; left out",
        "a/_SUCCESS is hidden; left out",
        ".part.crc is hidden; left out",
        "_temporary/0/x.parquet is hidden; left out",
        "b/.ipynb_checkpoints/1.parquet is hidden; left out",
        "b/empty is empty; left out",
    }


def test_a_file_a_pattern_a_relative_path_and_a_list_name_files(root, monkeypatch):
    assert names(scan_files(str(root / "a/deep/3")), root) == ["a/deep/3"]
    assert names(scan_files(f"{root}/b/*.parquet"), root) == ["b/1.parquet", "b/2.parquet"]
    assert names(scan_files(f"{root}/**/*.parquet"), root) == ["b/1.parquet", "b/2.parquet", "c.parquet"]
    assert names(scan_files([root / "c.parquet", f"{root}/a"]), root) == ["a/deep/3", "c.parquet"]
    monkeypatch.chdir(root)
    assert names(scan_files("b"), root) == ["b/1.parquet", "b/2.parquet"]


@pytest.mark.parametrize("path", ["c.parquet", "*.parquet"])
def test_a_relative_path_is_named_where_the_working_directory_is_gone(tmp_path, monkeypatch, path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(NoDataError, match=re.escape(f"{path} does not exist")):
        scan_files(path)


def test_a_file_named_by_itself_may_have_any_name(tmp_path):
    write_parquet(tmp_path / "_hidden", 0, [2])
    assert scan_files(tmp_path / "_hidden").num_rows == 2


def test_a_file_named_twice_counts_once(root, caplog):
    inventory = scan_files([root / "b", root / "b" / "1.parquet"])
    assert names(inventory, root) == ["b/1.parquet", "b/2.parquet"]
    assert "named more than once" in caplog.text


def test_names_with_wildcard_characters_are_files_if_they_exist(tmp_path):
    write_parquet(tmp_path / "part[1].parquet", 0, [2])
    assert scan_files(tmp_path / "part[1].parquet").num_rows == 2


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("{root}/nope", NoDataError, "does not exist"),
        ("{root}/*.nope", NoDataError, "matches no file"),
        ("{root}/none", NoDataError, "none: this directory is empty"),
        ("{root}/hidden", NoDataError, "no data file here; 2 hidden or empty"),
        ("events.parquet", NoDataError, "list its parent directory.$"),
        ([], NoDataError, "list of paths is empty"),
        ("", ConfigError, "a path is empty"),
        ([3], ConfigTypeError, "got int"),
        (["{root}/c.parquet", "memory://x"], ConfigError, "mixes stores"),
        (["{root}/c.parquet", "simplecache::file://{root}/c.parquet"], ConfigError, "mixes stores .*behind chained"),
        (["zip://c.csv::{root}/z.zip", "file://{root}/c.parquet"], ConfigError, "mixes stores .*behind chained"),
        ("nope://x", ConfigError, "no storage client knows nope://"),
    ],
)
def test_a_wrong_path_says_what_is_wrong(root, path, error, message):
    (root / "none").mkdir()
    (root / "hidden").mkdir()
    (root / "hidden" / "_SUCCESS").write_bytes(b"1")
    (root / "hidden" / "empty").write_bytes(b"")
    filled = (
        [p.format(root=root) if isinstance(p, str) else p for p in path]
        if isinstance(path, list)
        else path.format(root=root)
    )
    with pytest.raises(error, match=message):
        scan_files(filled)


def test_a_path_of_bytes_is_no_list_of_numbers():
    with pytest.raises(ConfigTypeError, match="got bytes"):
        scan_files(b"a.parquet")


@pytest.fixture
def upload(tmp_path):
    """Two Parquet files, between which a third is empty; beside them empty files that are no data."""
    for index, name in enumerate(("a.parquet", "c.parquet")):
        write_parquet(tmp_path / "up" / name, index, [3, 2])
    for name in ("b.parquet", "_SUCCESS", "_b.parquet", ".b.parquet", "000000_0", "_temporary/b.parquet"):
        (tmp_path / "up" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "up" / name).touch()
    return tmp_path / "up"


@pytest.mark.parametrize("path", ["{}", "{}/*", "{}/[bc]*", "{}/**/*.parquet", "{}/b.parquet", "{}/a*,{}/b.parquet"])
def test_an_empty_data_file_is_corrupt(upload, path):
    named = path.format(upload, upload).split(",")
    with pytest.raises(CorruptFileError, match=r"up/b\.parquet is empty \(0 bytes\).*Write it again or remove it"):
        scan_files(named if len(named) > 1 else named[0])


@pytest.mark.parametrize("ending", ["pq", "PARQUET", "orc", "arrow", "feather"])
def test_empty_data_files_are_known_by_their_ending(upload, ending):
    (upload / "b.parquet").rename(upload / f"z.{ending}")
    with pytest.raises(CorruptFileError, match="is empty"):
        scan_files(upload)


@pytest.mark.parametrize("name", ["000000_0", "_SUCCESS", "b.parquet"])
def test_an_empty_file_that_is_named_itself_is_meant(upload, name):
    with pytest.raises(CorruptFileError, match=f"{name} is empty"):
        scan_files([upload / "a.parquet", upload / name])


def test_empty_data_files_are_skipped_with_a_warning_where_that_is_asked_for(upload):
    with pytest.warns(UserWarning, match=r"left out 1 of 3 files.*b\.parquet: CorruptFileError"):
        inventory = scan_files(upload, on_error="skip")
    assert inventory.num_rows == 10
    with pytest.raises(NoDataError, match=r"not one of 1 files can be read.*is empty"):
        scan_files(upload / "b.parquet", on_error="skip")


def test_empty_files_that_are_no_data_are_left_out(upload):
    (upload / "b.parquet").unlink()
    assert names(scan_files(upload), upload) == ["a.parquet", "c.parquet"]


@pytest.mark.parametrize("target", ["gone", "link.parquet", "c.parquet/below"])
@pytest.mark.parametrize("path", ["{}", "{}/", "file://{}", "{}/*", "{}/*.parquet", "{}/**", "{}/link.parquet"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_link_that_leads_nowhere_is_named(root, path, target, on_error):
    (root / "link.parquet").symlink_to(root / target)
    with pytest.raises(NoDataError, match=rf"{root}/link\.parquet is a broken link: its target does not exist"):
        scan_files(path.format(root), on_error=on_error)


def test_links_that_lead_nowhere_are_left_out_where_files_are(root, caplog):
    for name in ("_latest", ".lock", "_temporary/y.parquet", "b/.ipynb_checkpoints/2.parquet"):
        (root / name).symlink_to(root / "gone")
    with caplog.at_level(logging.DEBUG, logger="torch_dataloader_utils.discover.paths"):
        assert scan_files(root).num_rows == 20
    assert f"{root}/_temporary/y.parquet is hidden; left out" in caplog.messages
    (root / "link.csv").symlink_to(root / "gone")
    assert scan_files(f"{root}/**/*.parquet").num_rows == 15


@pytest.mark.parametrize("path", ["{}", "{}/*", "{}/**"])
def test_pipes_sockets_and_devices_count_as_empty_files(root, path):
    os.mkfifo(root / "pipe")
    (root / "null").symlink_to(os.devnull)
    assert scan_files(f"{root}/b").num_rows == scan_files(f"{root}/b/*").num_rows == 10
    assert scan_files(root).num_rows == 20
    (root / "pipe").rename(root / "pipe.parquet")
    with pytest.raises(CorruptFileError, match=r"pipe\.parquet is empty"):
        scan_files(path.format(root))


@pytest.mark.parametrize(("format_name", "text"), [("jsonl", '{"x": 1}\n'), ("csv", "x\n1\n")])
def test_an_empty_text_file_has_no_rows(tmp_path, format_name, text):
    for name, content in (("a", ""), ("b", text), ("c", "")):
        (tmp_path / f"{name}.{format_name}").write_text(content)
    for path in (tmp_path, [tmp_path / f"{name}.{format_name}" for name in "abc"]):
        assert scan_files(path, format=format_name).num_rows == 1


def test_text_files_that_are_named_and_empty_are_said_to_be_empty(tmp_path):
    (tmp_path / "a.csv").touch()
    (tmp_path / "b.csv").touch()
    with pytest.raises(NoDataError, match=r"a\.csv: empty \(0 bytes\), so there are no rows here\. Check the path"):
        scan_files(tmp_path / "a.csv", format="csv")
    with pytest.raises(NoDataError, match=r"a\.csv and 1 more: empty \(0 bytes\)"):
        scan_files([tmp_path / "a.csv", tmp_path / "b.csv"], format="csv")
    with pytest.raises(NoDataError, match="2 hidden or empty files were left out"):
        scan_files(tmp_path, format="csv")


def test_storage_options_reach_the_client_and_no_text_of_the_inventory(root):
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/opts/a.parquet", (root / "c.parquet").read_bytes())
    # dirfs takes its options only if they are passed through.
    options = {"path": "/opts", "fs": AsyncFileSystemWrapper(memory)}
    inventory = scan_files("dir://a.parquet", storage_options=options)
    assert inventory.num_rows == 5
    assert "/opts" not in repr(inventory)
    memory.rm("/opts", recursive=True)


def test_hive_partitions_are_typed_and_come_last(tmp_path):
    for year, city in ((2024, "%C3%84"), (2023, "Z"), (2023, "__HIVE_DEFAULT_PARTITION__")):
        write_parquet(tmp_path / f"year={year}" / f"_city={city}" / "a.parquet", 0, [3])
    inventory = scan_files(tmp_path, partitioning="hive")
    schema = pa.ipc.read_schema(pa.py_buffer(inventory.schema))
    assert schema == pa.schema([*SCHEMA, ("year", pa.int64()), ("_city", pa.string())])
    assert [dict(inventory.task(i).partition_values) for i in range(3)] == [
        {"year": 2023, "_city": "Z"},
        {"year": 2023, "_city": None},
        {"year": 2024, "_city": "Ä"},
    ]
    plain = scan_files(tmp_path)
    assert plain.files.partitions == ()
    assert plain.notes == ('directories year=..., _city=... are not read as columns: partitioning="hive" reads them',)
    assert scan_files(tmp_path, columns=SCHEMA.names[:1]).notes == inventory.notes == ()


def test_the_named_directory_itself_is_no_partition_but_that_of_a_pattern_or_file_is(tmp_path):
    write_parquet(tmp_path / "run=7" / "k=1" / "a.parquet", 0, [1])

    def keys(path):
        return [column.name for column in scan_files(path, partitioning="hive").files.partitions]

    assert keys(tmp_path / "run=7") == ["k"]
    assert keys(f"{tmp_path}/run=*/k=*") == ["run", "k"]
    assert keys(tmp_path / "run=7" / "k=1" / "a.parquet") == ["run", "k"]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (["1", "-2"], pa.int64()),
        (["3000000000"], pa.int64()),
        (["01", "1"], pa.int64()),
        (["1", "x"], pa.string()),
        (["2024-01-01"], pa.string()),
        (["1.5"], pa.string()),
        (["+1"], pa.string()),
        (["9223372036854775808"], pa.string()),
        (["__HIVE_DEFAULT_PARTITION__"], pa.string()),
    ],
)
def test_partition_types_are_inferred_as_pyarrow_does_but_for_wider_integers(tmp_path, values, wanted):
    for value in values:
        write_parquet(tmp_path / f"k={value}" / "a.parquet", 0, [1])
    inventory = scan_files(tmp_path, partitioning="hive")
    assert pa.ipc.read_schema(pa.py_buffer(inventory.schema)).field("k").type == wanted


def test_a_partition_column_that_files_hold_too_takes_their_type(tmp_path):
    (tmp_path / "day=2024-05-01").mkdir()
    table = pa.table({"day": pa.array([None], pa.date32()), "x": [1]})
    pq.write_table(table, tmp_path / "day=2024-05-01" / "a.parquet")
    inventory = scan_files(tmp_path, partitioning="hive")
    assert pa.ipc.read_schema(pa.py_buffer(inventory.schema)) == pa.schema([("x", pa.int64()), ("day", pa.date32())])
    assert str(inventory.task(0).partition_values[0][1]) == "2024-05-01"
    (tmp_path / "day=monday").mkdir()
    pq.write_table(table, tmp_path / "day=monday" / "a.parquet")
    with pytest.raises(SchemaError, match=r"partition values of 'day'.*not date32"):
        scan_files(tmp_path, partitioning="hive")


@pytest.mark.parametrize("directory", ["p=%FE", "%FE=1"])
def test_partitions_that_are_no_text_are_named_and_never_merged(tmp_path, directory):
    write_parquet(tmp_path / directory / "a.parquet", 0, [1])
    with pytest.raises(UnsupportedFeatureError, match=rf"{directory}/a\.parquet: '%FE' .* is not UTF-8"):
        scan_files(tmp_path, partitioning="hive")
    with pytest.raises(ConfigError, match=r"filters \(q == 1\) does not fit the data"):
        scan_files(tmp_path, filters=pc.field("q") == 1)


def test_partitions_whose_bytes_are_no_text_are_named(tmp_path):
    write_parquet(tmp_path / "p=1" / "a.parquet", 0, [1])
    (tmp_path / "p=1").rename(tmp_path / os.fsdecode(b"p=\xff"))
    with pytest.raises(UnsupportedFeatureError, match=r"p=\\xff/a\.parquet.*not UTF-8"):
        scan_files(tmp_path, partitioning="hive")


def test_a_path_has_one_value_of_a_partition_column(tmp_path):
    write_parquet(tmp_path / "y=1" / "x=3" / "y=1" / "a.parquet", 0, [1])
    assert dict(scan_files(tmp_path, partitioning="hive").task(0).partition_values) == {"y": 1, "x": 3}
    write_parquet(tmp_path / "y=1" / "x=3" / "y=2" / "a.parquet", 0, [1])
    with pytest.raises(SchemaError, match=r"y=2/a\.parquet: its directories give .* 'y' twice, as '1' and as '2'"):
        scan_files(tmp_path, partitioning="hive")


def test_a_filter_on_a_partition_prunes_files_before_their_footers_are_read(tmp_path):
    for year in (2021, 2022, 2023):
        write_parquet(tmp_path / f"year={year}" / "a.parquet", year, [5])
    (tmp_path / "year=2022" / "a.parquet").write_bytes(b"broken, but nobody looks")
    inventory = scan_files(tmp_path, partitioning="hive", filters=pc.field("year") != 2022)
    assert inventory.groups.file.tolist() == [0, 2]
    assert inventory.groups.live_rows.tolist() == [5, 5]
    assert inventory.num_files == 3
    mixed = scan_files(tmp_path, partitioning="hive", filters=(pc.field("year") > 2022) & (pc.field("row") >= 0))
    assert mixed.groups.file.tolist() == [2]
    assert mixed.groups.live_rows.tolist() == [5]
