"""`tdu scan`: what is there, saved inventories, and what the layout will cost."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.shell import one_line, tdu, tdu_json, write_parquet
from torch_dataloader_utils import load_inventory, scan_files
from torch_dataloader_utils._core.inventory import FileTable, GroupTable, Inventory, StringColumn
from torch_dataloader_utils.cli.findings import find_layout_problems
from torch_dataloader_utils.cli.source import parse_pairs
from torch_dataloader_utils.errors import ConfigError

MIB = 1 << 20


def test_scan_says_what_is_there(table):
    report = tdu_json("scan", table, "--files")
    inventory = scan_files(str(table))
    assert report["fingerprint"] == inventory.fingerprint()
    assert (report["num_files"], report["num_row_groups"], report["num_rows"]) == (3, 9, 1500)
    assert report["row_group_rows"] == {"least": 100, "median": 150, "most": 200}
    assert [column["name"] for column in report["schema"]] == ["id", "score", "label"]
    assert [file["row_groups"] for file in report["files"]] == [2, 3, 4]
    assert report["warnings"] == []
    text = tdu("scan", table, "--files").stdout
    assert "1,500" in text
    assert str(table / "part-2.parquet") in text


def test_a_filter_is_counted(table):
    report = tdu_json("scan", table, "--filter", "id < 50 and label in ['label-0', 'label-2']")
    assert report["num_rows"] == 3 * len([row for row in range(50) if row % 3 != 1])
    assert "id" in report["row_filter"]


def test_a_filter_is_shown_as_it_was_asked_for(table):
    text = "id < 50 and score in [1, 2]"
    assert f"filter       {text}\n" in tdu("scan", table, "--filter", text).stdout


def test_a_saved_inventory_stands_for_the_files(table, tmp_path):
    saved = tmp_path / "inventory.parquet"
    report = tdu_json("scan", table, "--save", saved)
    assert load_inventory(saved).fingerprint() == report["fingerprint"]
    assert tdu_json("scan", "--inventory", saved)["fingerprint"] == report["fingerprint"]
    assert tdu_json("plan", "--inventory", saved, "--ranks", 3)["num_rows"] == 1500


@pytest.mark.parametrize("command", ["scan", "plan"])
def test_a_column_that_a_saved_inventory_has_not_is_refused(table, tmp_path, command):
    saved = tmp_path / "inventory.parquet"
    tdu("scan", table, "--save", saved)
    assert "did you mean 'score'?" in one_line(tdu(command, "--inventory", saved, "--columns", "id,scor", code=2))
    tdu(command, "--inventory", saved, "--columns", "id,score")


def test_hive_partitions_are_columns(tmp_path):
    for year in (2023, 2024):
        folder = tmp_path / f"year={year}"
        folder.mkdir()
        write_parquet(folder / "part.parquet", 10, 10)
    report = tdu_json("scan", tmp_path, "--partitioning", "hive", "--filter", "year == 2024")
    assert report["partitions"] == {"year": 2}
    assert report["num_rows"] == 10


def test_files_may_lack_columns(tmp_path):
    for name in ("x", "y"):
        pq.write_table(pa.table({name: [1, 2]}), tmp_path / f"{name}.parquet")
    assert one_line(tdu("scan", tmp_path, code=1)).count("--missing null") == 1
    report = tdu_json("scan", tmp_path, "--missing", "null", "--filter", "x > 1")
    assert [column["name"] for column in report["schema"]] == ["x", "y"]
    assert report["num_rows"] == 1
    tdu("scan", tmp_path, "--missing", "null", "--save", tmp_path.parent / "saved.parquet")
    refused = tdu("scan", "--inventory", tmp_path.parent / "saved.parquet", "--missing", "null", code=2)
    assert "have their columns already" in one_line(refused)


@pytest.mark.parametrize("format_name", ["csv", "arrow"])
def test_other_formats(tmp_path, format_name):
    data = pa.table({"x": [1, 2, 3]})
    if format_name == "csv":
        (tmp_path / "data.csv").write_text("x\n1\n2\n3\n")
    else:
        with pa.OSFile(str(tmp_path / "data.arrow"), "wb") as sink, pa.ipc.new_file(sink, data.schema) as writer:
            writer.write_table(data)
    assert tdu_json("scan", tmp_path, "--format", format_name)["num_rows"] == 3


def test_an_inventory_and_paths_are_not_both_taken(table, tmp_path):
    saved = tmp_path / "inventory.parquet"
    tdu_json("scan", table, "--save", saved)
    for command in ("scan", "plan", "verify"):
        result = tdu(command, tmp_path / "other", "--inventory", saved, code=2)
        assert "names the files already: leave out" in one_line(result)


def inventory_of(group_bytes, group_rows=1000, file_bytes=None, file_of_group=None):
    """An inventory with these row groups, never read."""
    count = len(group_bytes)
    files = np.arange(count) if file_of_group is None else np.asarray(file_of_group)
    num_files = int(files.max()) + 1
    sizes = np.full(num_files, 10 * MIB) if file_bytes is None else np.asarray(file_bytes)
    rows = np.broadcast_to(np.asarray(group_rows, dtype=np.int64), count).copy()
    numbers = {"first_row": np.zeros(count, np.int64), "byte_offset": np.zeros(count, np.int64)}
    groups = GroupTable(
        file=files.astype(np.int32),
        ordinal=np.zeros(count, dtype=np.int32),
        physical_rows=rows,
        live_rows=rows,
        projected_bytes=np.asarray(group_bytes, dtype=np.int64),
        byte_length=np.zeros(count, dtype=np.int64),
        **numbers,
    )
    table = FileTable(
        paths=StringColumn.of(f"/data/part-{number:04}.parquet" for number in range(num_files)),
        sizes=sizes.astype(np.int64),
        identities=StringColumn.of(["1"] * num_files),
        formats=np.full(num_files, 1, dtype=np.uint8),
    )
    schema = pa.schema([("x", pa.int64())]).serialize().to_pybytes()
    return Inventory(files=table, groups=groups, schema=schema, source="/data")


@pytest.mark.parametrize(
    ("inventory", "kinds"),
    [
        (inventory_of([128 * MIB] * 20), []),
        (inventory_of([64 * MIB] * 20 + [2048 * MIB]), ["huge_row_group"]),
        (inventory_of([MIB] * 10 + [40 * MIB]), ["huge_row_group"]),
        (inventory_of([100 * MIB] * 3), ["few_row_groups"]),
        (inventory_of([100_000] * 100), ["tiny_row_groups"]),
        (inventory_of([2 * MIB] * 1200, file_bytes=[50_000] * 1200), ["small_files"]),
        (inventory_of([64 * MIB] * 10, group_rows=[1000] * 9 + [-1]), ["unknown_rows"]),
        (inventory_of([0] * 10), []),
    ],
)
def test_layouts_that_cost_time_are_found(inventory, kinds):
    found = find_layout_problems(inventory)
    assert [each.kind for each in found] == kinds
    assert all("/data/" in each.message for each in found if each.kind == "huge_row_group")


def test_options_nest_by_dots_and_are_text_unless_they_are_json():
    pairs = ["anon=true", "key=123", "client.url=http://host:1/a=b", "client.retries=[1, 2]", "none=null", "odd={"]
    assert parse_pairs(pairs, "--option") == {
        "anon": True,
        "key": "123",
        "client": {"url": "http://host:1/a=b", "retries": [1, 2]},
        "none": None,
        "odd": "{",
    }
    with pytest.raises(ConfigError, match="number 2"):
        parse_pairs(["a=b", "=c"], "--option")
