"""Examples for what the properties in test_scan_properties.py check at random."""

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from torch_dataloader_utils._core.inventory import UNKNOWN
from torch_dataloader_utils._formats.row_filter import filter_text
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


def test_without_statistics_nothing_is_proven(tmp_path):
    pq.write_table(pa.table({"i": [1, 2]}), tmp_path / "a.parquet", write_statistics=False)
    assert scan_files(tmp_path, filters=pc.field("i") > 5).groups.live_rows.tolist() == [UNKNOWN]


@pytest.mark.skipif(not CORPUS.exists(), reason=f"the corpus of foreign files is not at {CORPUS}")
def test_bounds_of_decimals_that_old_spark_ordered_wrongly_prove_nothing():
    # 24 rows from 1.00 to 24.00, written by parquet-mr 1.8.2 with a least value of 2.00.
    below = pc.field("value") < Decimal("2.00")
    assert scan_files(CORPUS / "data" / "fixed_length_decimal.parquet", filters=below).num_groups == 1
