"""ORC and Arrow IPC: groups from metadata, for random stripes and batches; damage gives a DataError."""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.orc as orc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.discover.datasets import GROUPS, SCHEMA, file_table, write_arrow, write_orc, write_parquet
from tests.effort import effort
from torch_dataloader_utils.discover import scan_files
from torch_dataloader_utils.errors import CorruptFileError, DataError


@settings(max_examples=effort(40), deadline=None)
@given(groups=GROUPS, as_stream=st.booleans())
def test_record_batches_are_row_groups_and_lie_where_the_inventory_says(groups, as_stream):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        write_arrow(path, 3, groups, as_stream=as_stream)
        inventory = scan_files(path, "arrow")
        data = path.read_bytes()
    found = inventory.groups
    assert found.physical_rows.tolist() == [rows for rows in groups if rows]
    for first, rows, offset, length in zip(
        found.first_row, found.physical_rows, found.byte_offset, found.byte_length, strict=True
    ):
        message = pa.ipc.read_message(data[offset : offset + length])
        batch = pa.ipc.read_record_batch(message, SCHEMA)
        assert batch.column("row").to_pylist() == list(range(first, first + rows))


@settings(max_examples=effort(15), deadline=None)
@given(rows=st.integers(0, 3000), stripe_bytes=st.sampled_from([1000, 20_000]))
def test_stripes_are_row_groups(rows, stripe_bytes):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        write_orc(path, 3, rows, stripe_bytes)
        inventory = scan_files(path, "orc")
        file = orc.ORCFile(path)
        wanted = [file.read_stripe(i).num_rows for i in range(file.nstripes)]
    assert inventory.groups.physical_rows.tolist() == wanted
    assert inventory.num_rows == rows


@pytest.mark.parametrize("kind", ["arrow", "orc"])
def test_partition_columns_weigh_nothing(tmp_path, kind):
    folder = tmp_path / "year=2024"
    folder.mkdir()
    table = pa.table({"x": range(1000), "y": range(1000)})
    if kind == "orc":
        orc.write_table(table, folder / "a")
    else:
        with pa.ipc.new_file(folder / "a", table.schema) as writer:
            writer.write_table(table)
    options = {"format": kind, "partitioning": "hive"}
    with_year = scan_files(tmp_path, columns=["x", "year"], **options).groups.projected_bytes
    assert with_year.tolist() == scan_files(tmp_path, columns=["x"], **options).groups.projected_bytes.tolist()
    assert (with_year < scan_files(tmp_path, **options).groups.projected_bytes).all()


def test_an_orc_file_with_more_than_one_stripe_was_tested(tmp_path):
    orc.write_table(file_table(0, 200_000), tmp_path / "a.orc", stripe_size=200_000)
    inventory = scan_files(tmp_path, "orc", columns=["row"])
    groups = inventory.groups
    assert len(groups) > 1
    assert inventory.num_rows == 200_000
    assert (groups.byte_offset[1:] >= (groups.byte_offset + groups.byte_length)[:-1]).all()
    assert (groups.projected_bytes < groups.byte_length).all()


@pytest.mark.slow
def test_a_footer_larger_than_the_first_read_is_read_again(tmp_path):
    wide = pa.table({f"column_{i:04}": [1.5, 2.5] for i in range(1500)})
    pa.parquet.write_table(wide, tmp_path / "a.parquet", row_group_size=1)
    assert scan_files(tmp_path / "a.parquet").groups.physical_rows.tolist() == [1, 1]
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), wide.schema) as writer:
        writer.write_table(wide)
    assert scan_files(tmp_path / "a.arrow", "arrow").num_rows == 2
    orc.write_table(wide, tmp_path / "a.orc")
    assert scan_files(tmp_path / "a.orc", "orc").num_rows == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "orc", "arrow", "stream"])
def test_a_file_cut_anywhere_or_with_any_byte_changed_gives_an_inventory_or_a_data_error(tmp_path, kind):
    path = tmp_path / "a"
    name = "arrow" if kind == "stream" else kind
    match kind:
        case "parquet":
            write_parquet(path, 0, [5, 3])
        case "orc":
            write_orc(path, 0, 8, 1000)
        case _:
            write_arrow(path, 0, [5, 3], as_stream=kind == "stream")
    data = path.read_bytes()
    survived, messages = 0, set()
    for place in range(1, len(data), max(1, len(data) // 150)):
        for damaged in (data[:place], data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]):
            path.write_bytes(damaged)
            try:
                scan_files(path, name)
                survived += 1
            except DataError as error:
                messages.add(str(error))
    assert survived > 0
    assert all(str(path) in message for message in messages)


@pytest.mark.parametrize("name", ["parquet", "orc", "arrow"])
def test_a_file_of_another_format_is_a_corrupt_one(tmp_path, name):
    (tmp_path / "a").write_bytes(b"a,b\n1,2\n" * 3)
    with pytest.raises(CorruptFileError, match="another format"):
        scan_files(tmp_path / "a", name)
