"""Examples for what the properties in tests/discover/test_scan_properties.py check at random."""

import struct
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.engine import needs_engine
from tests.faults.hostile_files import BINARY, I64, good, struct_of, text, zigzag
from torch_dataloader_utils._arrow.row_filter import filter_text
from torch_dataloader_utils._core.inventory import UNKNOWN
from torch_dataloader_utils.discover import scan_files

CORPUS = Path(__file__).parents[2].parent / "shared" / "corpora" / "parquet-testing"


@pytest.fixture
def data(tmp_path):
    table = pa.table(
        {
            "i": [1, 2, 3, 4, 5, 6],
            "null": [1, None, 3, 4, None, None],
            "f": [1.0, float("nan"), 2.0, 3.0, 4.0, 5.0],
            "s": ["a", "b", "c", "d", "e", "f"],
            "t": pa.array([0, 1, 2, 3, 4, 5], pa.timestamp("us")),
            "d": pa.array([1, 2, 3, 4, 5, 6]).cast(pa.decimal128(21, 2)).cast(pa.decimal128(4, 2)),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    return tmp_path


@pytest.mark.parametrize(
    ("row_filter", "ordinals", "live_rows"),
    [
        (pc.field("i") >= 3, [1, 2], [2, 2]),
        (pc.field("i") >= 4, [1, 2], [UNKNOWN, 2]),
        (~(pc.field("i") >= 3), [0], [2]),
        ((pc.field("i") > 2) & (pc.field("i") < 5), [1], [2]),
        (pc.field("i") > 6, [], []),
        (pc.field("null") > 0, [0, 1], [UNKNOWN, 2]),
        (pc.field("f") > 1.5, [1, 2], [UNKNOWN, UNKNOWN]),
        (pc.field("f") != 1.0, [0, 1, 2], [UNKNOWN] * 3),
        (~(pc.field("f") > 0), [0, 1, 2], [UNKNOWN] * 3),
        (pc.field("s") == "c", [1], [UNKNOWN]),
        (pc.field("t") >= pa.scalar(2, pa.timestamp("us")), [1, 2], [2, 2]),
        (pc.field("d") >= 3, [1, 2], [UNKNOWN, UNKNOWN]),
        (pc.scalar(1) == pc.field("d"), [0], [UNKNOWN]),
        (pc.field("d").isin([6, 7000]), [2], [UNKNOWN]),
        (pc.field("d") < 7000, [0, 1, 2], [UNKNOWN] * 3),
    ],
)
def test_statistics_prove_groups_out_in_or_nothing(data, row_filter, ordinals, live_rows):
    inventory = scan_files(data, filters=row_filter)
    assert inventory.groups.ordinal.tolist() == ordinals
    assert inventory.groups.live_rows.tolist() == live_rows
    assert inventory.groups.first_row.tolist() == [2 * o for o in ordinals]
    assert inventory.row_filter == filter_text(row_filter)


def test_nan_passes_not_equal_though_arrow_alone_would_prune_it(tmp_path):
    pq.write_table(pa.table({"f": [1.0, float("nan")]}), tmp_path / "a.parquet")
    assert scan_files(tmp_path, filters=pc.field("f") != 1.0).num_groups == 1


def test_statistics_of_a_column_are_not_those_of_a_field_with_the_same_path(tmp_path):
    struct = pa.array([{"b": 3}, {"b": 4}])
    pq.write_table(pa.table({"a.b": [1, None], "a": struct}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": struct, "a.b": [1, None]}), tmp_path / "1.parquet")
    assert scan_files(tmp_path, filters=pc.field("a.b") < 5).groups.live_rows.tolist() == [UNKNOWN] * 2
    assert scan_files(tmp_path, filters=pc.field("a.b") > 2).num_groups == 0
    assert scan_files(tmp_path, filters=pc.field("a", "b") > 2).num_groups == 2


def exchange_bounds(path):
    """Exchanges least and greatest values in the statistics of column `x`."""
    found = pq.read_metadata(path).row_group(0).column(0)
    raw = (found.statistics.min_raw, found.statistics.max_raw)
    form = {"INT32": "<i", "INT64": "<q", "DOUBLE": "<d"}.get(found.physical_type)
    low, high = raw if form is None else (struct.pack(form, each) for each in raw)
    whole = path.read_bytes()
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    footer = whole[start:].replace(low, b"\0" * 9 + b"?").replace(high, low).replace(b"\0" * 9 + b"?", high)
    path.write_bytes(whole[:start] + footer)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([-123456789, 5, 987654321], pa.int32()),
        pa.array([-(1 << 60), 5, 1 << 61], pa.int64()),
        pa.array([123456789, 1 << 31, 4123456789], pa.uint32()),
        pa.array([-1.2345, 5, 9.8765]),
        pa.array(["aaaa", "bbbb", "cccc"]),
        pa.array([Decimal("-12345678901234567890"), Decimal(5), Decimal("98765432109876543210")]),
        pa.array([-(1 << 50), 5, 1 << 51], pa.timestamp("us")),
    ],
    ids=lambda values: str(values.type),
)
def test_bounds_that_are_exchanged_prove_nothing(tmp_path, values, caplog):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": values}), path, use_dictionary=False, store_schema=False)
    exchange_bounds(path)
    for row_filter in (pc.field("x") == values[1], pc.field("x") != values[1], pc.field("x") < values[2]):
        assert scan_files(path, filters=row_filter).groups.live_rows.tolist() == [UNKNOWN]
    assert "contradict themselves and are not used" in caplog.text


def integers(*values):
    return BINARY, text(struct.pack(f"<{len(values)}q", *values))


@pytest.mark.parametrize(
    "statistics",
    [
        [(1, *integers(0)), (2, *integers(2)), (3, I64, zigzag(0))],
        [(1, *integers(1)), (2, *integers(1)), (3, I64, zigzag(4))],
        [(1, *integers(1)), (2, *integers(1)), (3, I64, zigzag(3))],
        [(1, *integers(1)), (2, *integers(1)), (3, I64, zigzag(-1))],
        [(3, I64, zigzag(3))],
        [(1, *integers(1)), (2, *integers(1)), (3, I64, zigzag(0)), (4, I64, zigzag(0))],
        [(1, *integers(1)), (2, *integers(1)), (3, I64, zigzag(0)), (4, I64, zigzag(4))],
        [(1, *integers(1)), (2, *integers(0)), (3, I64, zigzag(0)), (4, I64, zigzag(1))],
    ],
    ids=["inverted", "nulls-4-of-3", "all-null", "nulls-below-0", "required", "distinct-0", "distinct-4", "distinct-1"],
)
def test_statistics_that_disprove_themselves_prove_nothing(tmp_path, statistics, caplog):
    (tmp_path / "a.parquet").write_bytes(good(statistics=struct_of(*statistics)))  # 0, 1, 2, never null
    for row_filter in (pc.field("a") == 2, pc.field("a").is_valid(), pc.field("a") > 1):
        assert scan_files(tmp_path, filters=row_filter).groups.live_rows.tolist() == [UNKNOWN]
    assert "contradict themselves" in caplog.text


@needs_engine
@pytest.mark.parametrize("bounds", [(b"", b""), (b"\1\2", b"\0" * 8), (b"\0" * 16, b"\0" * 8)])
def test_bounds_of_other_bytes_than_a_value_are_not_shown_to_pyarrow(tmp_path, bounds, caplog):
    """It ends the process if they are shorter."""
    most, least = ((BINARY, text(each)) for each in bounds)
    (tmp_path / "a.parquet").write_bytes(good(statistics=struct_of((1, *most), (2, *least), (3, I64, zigzag(0)))))
    inventory = scan_files(tmp_path, filters=pc.field("a") > 1)
    assert inventory.groups.live_rows.tolist() == [UNKNOWN]
    assert "not values of their columns" in caplog.text


def test_without_statistics_nothing_is_proven(tmp_path):
    pq.write_table(pa.table({"i": [1, 2]}), tmp_path / "a.parquet", write_statistics=False)
    assert scan_files(tmp_path, filters=pc.field("i") > 5).groups.live_rows.tolist() == [UNKNOWN]


@pytest.mark.skipif(not CORPUS.exists(), reason=f"the corpus of foreign files is not at {CORPUS}")
def test_bounds_of_decimals_that_old_spark_ordered_wrongly_prove_nothing():
    # 24 rows from 1.00 to 24.00, written by parquet-mr 1.8.2 with a least value of 2.00.
    below = pc.field("value") < Decimal("2.00")
    assert scan_files(CORPUS / "data" / "fixed_length_decimal.parquet", filters=below).num_groups == 1
