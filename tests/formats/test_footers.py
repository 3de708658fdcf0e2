"""Metadata that lies."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine import needs_engine
from tests.faults.hostile_files import chunk, column, group, parquet, row_group, write_huge_footer
from tests.formats.encrypted import write_encrypted
from torch_dataloader_utils._core.inventory import UNKNOWN
from torch_dataloader_utils._store import Tail
from torch_dataloader_utils.discover.scan import scan_files
from torch_dataloader_utils.errors import CorruptFileError, UnsupportedFeatureError
from torch_dataloader_utils.formats.checks import check_places
from torch_dataloader_utils.formats.file_scan import ScanRequest
from torch_dataloader_utils.formats.parquet import group_counts
from torch_dataloader_utils.formats.parquet import scan as parquet_scan
from torch_dataloader_utils.formats.parquet.format import PARQUET
from torch_dataloader_utils.formats.parquet.group_counts import CountedColumns, check_total

GOOD = np.array([[3, 30, 4, 20], [UNKNOWN, 20, 24, 10]], dtype=np.int64)


def test_counts_that_can_be_pass():
    check_places("a", 100, GOOD)


@pytest.mark.parametrize(
    ("group", "column", "value"),
    [(1, 0, -2), (1, 0, 4_294_967_294), (0, 1, -1), (0, 2, -4), (1, 3, -1), (1, 3, 80), (0, 2, (1 << 63) - 5)],
)
def test_impossible_counts_and_places_name_the_group(group, column, value):
    rows = GOOD.copy()
    rows[group, column] = value
    with pytest.raises(CorruptFileError, match=f"^a: .*row group {group} "):
        check_places("a", 100, rows)


def test_row_groups_that_do_not_add_up_to_the_file_are_refused():
    with pytest.raises(CorruptFileError, match="7 rows, its row groups add up to 5"):
        check_total("a", 5, 7)


def test_a_file_count_of_zero_is_a_writers_slip_and_logged(caplog):
    check_total("a", 5, 0)
    assert "says 0 rows" in caplog.text


def test_a_footer_of_more_bytes_than_any_table_needs_is_refused_unread(tmp_path):
    path = tmp_path / "a.parquet"
    write_huge_footer(path)
    with pytest.raises(UnsupportedFeatureError, match=r"a\.parquet: the file has 73,400,328 bytes of footer, the"):
        scan_files(path)


@pytest.mark.parametrize("options", [{}, {"columns": ["plain"]}, {"filters": pc.field("secret") > 1}])
def test_encrypted_columns_are_refused_whatever_is_asked_for(tmp_path, options):
    # pyarrow ends the process where it is asked for the chunk of such a column.
    write_encrypted(tmp_path / "a.parquet", pa.table({"plain": [1, 2], "secret": [3, 4]}), ["secret"])
    with pytest.raises(UnsupportedFeatureError, match=r"a\.parquet: columns are encrypted"):
        scan_files(tmp_path, **options)


ROOT, A = group("root", 1), column("a")
ONE = row_group([chunk(["a"])], 1)


@needs_engine
@pytest.mark.parametrize(
    ("schema", "groups", "message"),
    [
        ([], [ONE], "it does not parse"),
        ([ROOT, A, column("b")], [ONE], "not a tree"),
        ([group("root", 1 << 30), A], [ONE], "not a tree"),
        ([ROOT, group("g", -1), A], [ONE], "not a tree"),
        ([ROOT, column("a", 9)], [ONE], "not a tree"),
        ([ROOT, A], [ONE, row_group([], 1)], r"another number of column chunks .* \(row group 1\)"),
        ([ROOT, A], [row_group([chunk(["a"])] * 2, 1)], r"another number of column chunks .* \(row group 0\)"),
        ([ROOT, A], [row_group([chunk(["a"], kind=6)], 1)], r"another type .* \(row group 0, leaf column 0\)"),
    ],
)
def test_a_footer_that_contradicts_itself_is_refused_before_pyarrow_sees_it(tmp_path, schema, groups, message):
    (tmp_path / "a.parquet").write_bytes(parquet(schema, groups, len(groups), bytes(40)))
    with pytest.raises(CorruptFileError, match=f"a.parquet: the footer contradicts itself: .*{message}"):
        scan_files(tmp_path)


TYPES = {
    pa.int64(): 7,
    pa.float32(): 0.5,
    pa.string(): "a",
    pa.list_(pa.int32()): [1, None],
    pa.struct({"x": pa.int16(), "y": pa.string()}): {"x": 1, "y": None},
}


@given(
    types=st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=4),
    files=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=2, max_size=4),
    chosen=st.sampled_from([None, ("c0",), ("c0", "c1.x")]),
)
def test_files_that_are_alike_have_the_numbers_that_pyarrow_gives(
    types: list[pa.DataType], files: list[tuple[int, int]], chosen: tuple[str, ...] | None
) -> None:
    """pyarrow parses the first footer of a kind, and no other."""
    for rows, nulls in files:
        values = [pa.array([None] * nulls + [TYPES[each]] * rows, each) for each in types]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(values, [f"c{place}" for place in range(len(types))]), sink, row_group_size=16)
        data = sink.getvalue()
        tail = Tail(data=memoryview(data), size=data.size, identity="one")
        schema, groups, counted = parquet_scan._counted_footer(tail, "a", ScanRequest(format=PARQUET, columns=chosen))
        file = pq.ParquetFile(pa.BufferReader(data))
        assert schema.equals(file.schema_arrow, check_metadata=True)
        known = CountedColumns.of(file.metadata, schema, chosen)
        assert np.array_equal(groups, group_counts._rows_by_pyarrow(file.metadata, known.leaves))
        nulls_by_pyarrow = known.nulls(group_counts._nulls_by_pyarrow(file.metadata, known.counted))
        assert np.array_equal(counted, nulls_by_pyarrow)
