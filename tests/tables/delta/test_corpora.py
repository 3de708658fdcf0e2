"""Tables that other engines wrote, with their known answers."""

import warnings
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.tables.delta.reading import deltalake_rows, in_order, read_rows
from torch_dataloader_utils import scan_delta
from torch_dataloader_utils.errors import NoDataError, UnsupportedFeatureError

ROOT = Path(__file__).resolve().parents[4] / "shared" / "corpora" / "delta-rs"

pytestmark = pytest.mark.skipif(not ROOT.is_dir(), reason="the corpora are not beside the checkout")

# Rows of the newest version.
ROWS = {
    "COVID-19_NYT": 1_111_930,
    "cdc_ict_table": 2,
    "cdf-table": 9,
    "cdf-table-non-partitioned": 11,
    "cdf-table-with-cdc-and-dvs": 5,
    "checkpoint-cdf-table": 13,
    "checkpoint-v2-table": 44,
    "concurrent_workers": 0,
    "delta-0.2.0": 6,
    "delta-0.8-empty": 0,
    "delta-0.8.0": 4,
    "delta-0.8.0-date": 5,
    "delta-0.8.0-null-partition": 2,
    "delta-0.8.0-numeric-partition": 2,
    "delta-0.8.0-partitioned": 7,
    "delta-0.8.0-special-partition": 2,
    "delta-1.2.1-only-struct-stats": 12,
    "delta-2.2.0-partitioned-types": 3,
    "delta-checkpoint-stats-optional": 2,
    "delta-live-table": 0,
    "delta-stats-optional": 2,
    "golden/data-reader-array-primitives": 10,
    "http_requests": 1_581,
    "issue-2152": 0,
    "issue_1374": 20,
    "partition-type-primitives": 16,
    "python-0.25.5-checkpoint": 6,
    "simple_commit": 0,
    "simple_table": 3,
    "simple_table_with_cdc": 1,
    "simple_table_with_checkpoint": 11,
    "table-with-dv-small": 8,
    "table-without-dv-small": 10,
    "table_failed_last_checkpoint_update": 20,
    "table_with_column_mapping": 5,
    "table_with_deletion_logs": 98,
    "table_with_liquid_clustering": 10,
    "table_with_null_stats_in_notnull_struct": 2,
    "table_with_partitioning_mapping": 2,
}


@pytest.mark.parametrize("name", [name for name, rows in ROWS.items() if rows < 10_000])
def test_rows_are_those_of_another_engine(name: str) -> None:
    mine = read_rows(ROOT / name, allow_empty=True)
    assert len(mine) == ROWS[name]
    assert in_order(mine) == in_order(deltalake_rows(ROOT / name))


def test_rows_of_a_larger_table_are_counted_by_the_plan() -> None:
    assert scan_delta(ROOT / "COVID-19_NYT").num_rows == ROWS["COVID-19_NYT"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cdf-table-with-cdc-and-dvs", "simple_table", "delta-0.2.0", "checkpoint-cdf-table"])
def test_every_version_that_the_log_still_has(name: str) -> None:
    for version in range(DeltaTable(ROOT / name).version() + 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                theirs = deltalake_rows(ROOT / name, version=version)
            except (pa.ArrowInvalid, Exception):  # noqa: BLE001 - files of that version are gone
                continue
        assert in_order(read_rows(ROOT / name, version=version, allow_empty=True)) == in_order(theirs), version


def test_times_that_nanoseconds_do_not_hold() -> None:
    # deltalake gives the year 1816.
    assert sorted(row["BIG_DATE"].year for row in read_rows(ROOT / "table_with_edge_timestamps")) == [9999, 9999]


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint_with_partitions",
        "checkpoints",
        "checkpoints_vacuumed",
        "latest_not_checkpointed",
        "table-with-domain-metadata",
        "with_checkpoint_no_last_checkpoint",
    ],
)
def test_files_that_are_gone_are_named(name: str) -> None:
    with pytest.raises(NoDataError, match="is in the table's log but does not exist: it was removed"):
        read_rows(ROOT / name)


def test_variants_are_read_as_their_binaries_wherever_they_are() -> None:
    rows = read_rows(ROOT / "spark-variant-checkpoint")
    assert len(rows) == 102
    assert in_order(rows) == in_order(deltalake_rows(ROOT / "spark-variant-checkpoint"))
    assert list(rows[0]["v"]) == ["metadata", "value"]
    # deltalake refuses the feature. The values of its files are not shredded.
    assert in_order(read_rows(ROOT / "spark-shredded-variant-preview-delta")) == in_order(rows)


def test_a_protocol_that_is_newer_is_refused() -> None:
    with pytest.raises(UnsupportedFeatureError, match="needs readers of version 5"):
        read_rows(ROOT / "simple_table_features")
