"""Tables that other engines wrote, with their known answers."""

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from pyiceberg.table.metadata import TableMetadataUtil

from tests.tables.iceberg.reading import in_order, read_rows
from torch_dataloader_utils.errors import NoDataError, UnsupportedFeatureError

ROOT = Path(__file__).resolve().parents[4] / "shared" / "corpora" / "duckdb-iceberg"
PREFIX = "data/persistent"

pytestmark = pytest.mark.skipif(not ROOT.is_dir(), reason="the corpora are not beside the checkout")


def rows_of(table: str, **options: Any) -> list[dict[str, Any]]:
    return read_rows(str(ROOT / PREFIX / table), path_rewrites={PREFIX: str(ROOT / PREFIX)}, **options)


def day(number: int) -> datetime.date:
    return datetime.date(2025, 1, number)


MYTABLE = "equality_deletes/warehouse/mydb/mytable"


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_equality_deletes_by_one_key_and_by_several(num_ranks: int) -> None:
    rows = rows_of(MYTABLE, num_ranks=num_ranks)
    assert in_order(rows) == in_order([{"id": 4, "name": "d", "bir": day(4)}, {"id": 5, "name": "e", "bir": day(5)}])


@pytest.mark.parametrize(("column", "values"), [("bir", [day(4), day(5)]), ("name", ["d", "e"])])
def test_keys_need_not_be_projected(column: str, values: list[Any]) -> None:
    assert sorted(row[column] for row in rows_of(MYTABLE, columns=[column])) == values


def test_every_snapshot_has_its_own_deletes() -> None:
    text = (ROOT / PREFIX / MYTABLE / "metadata" / "v7.metadata.json").read_text()
    snapshots = sorted(TableMetadataUtil.parse_raw(text).snapshots, key=lambda each: each.sequence_number)
    present = [each for each in snapshots if (ROOT / each.manifest_list).exists()]
    ids = [sorted(row["id"] for row in rows_of(MYTABLE, snapshot_id=each.snapshot_id)) for each in present]
    # The manifest list of the second snapshot (1, 3, 4) is not in the copy.
    assert ids == [[1, 2, 3, 4], [3, 4], [4], [4, 5, 6], [4, 5]]
    for missing in [each for each in snapshots if each not in present]:
        with pytest.raises(NoDataError, match="does not exist"):
            rows_of(MYTABLE, snapshot_id=missing.snapshot_id)


def test_an_equality_delete_works_in_its_partition_only() -> None:
    rows = rows_of("equality_delete_cross_partition/warehouse/ns/t/metadata/vfinal.metadata.json")
    assert [tuple(row.values()) for row in rows] == [(0, 999, "p0-k999"), (1, 100, "p1-k100"), (1, 888, "p1-k888")]


def test_a_key_beside_the_projection() -> None:
    table = "equality_delete_extra_column/warehouse/ns/t/metadata/vfinal.metadata.json"
    assert [tuple(row.values()) for row in rows_of(table)] == [(1, "a"), (3, "c")]
    assert rows_of(table, columns=["val"]) == [{"val": "a"}, {"val": "c"}]


def test_a_bare_deletion_vector_is_refused_unless_allowed() -> None:
    table = "legacy_bare_deletion_vector/warehouse/default/legacy_bare_deletion_vector"
    with pytest.raises(UnsupportedFeatureError, match="allow_bare_vectors"):
        rows_of(table)
    assert [tuple(row.values()) for row in rows_of(table, allow_bare_vectors=True)] == [(1, "legacy"), (3, "legacy")]


def test_partition_columns_that_no_file_holds_after_the_spec_grew() -> None:
    rows = rows_of("hive_partitioned_table", columns=["event_date", "user_id", "event_type"])
    seen = sorted((row["event_date"].day, row["user_id"], row["event_type"]) for row in rows)
    assert seen == [
        (1, 12345, "click"),
        (2, 67890, "purchase"),
        (3, 13579, "view"),
        (3, 24680, "click"),
        (4, 86420, "view"),
        (4, 97531, "purchase"),
    ]


def test_files_without_ids_read_by_the_name_mapping_of_each_version() -> None:
    base = "name_mapping/warehouse_1/mydb/t1/metadata"
    early = rows_of(f"{base}/v3.metadata.json")
    late = rows_of(f"{base}/v7.metadata.json")
    assert len(early) == len(late) == 10_000
    assert not any(value is None for row in early for value in row.values())
    assert all(row["b"] is None and row["a"] is not None for row in late)


def test_initial_defaults_of_every_type() -> None:
    rows = rows_of("add_columns_with_defaults/default.db/add_columns_with_defaults")
    without_columns = [{name: value for name, value in row.items() if name != "col1"} for row in rows][:2]
    assert len(rows) == 3
    assert without_columns[0] == without_columns[1]
    assert without_columns[0] == {
        "col_boolean": True,
        "col_integer": 342342,
        "col_long": -(1 << 63),
        "col_float": np.float32(0.34234),
        "col_double": 0.342343242342342,
        "col_decimal": Decimal("12345.00"),
        "col_date": datetime.date(2003, 10, 20),
        "col_time": datetime.time(0, 0, 0, 12345),
        "col_timestamp": datetime.datetime(1970, 1, 1, 0, 0, 0, 12345),
        "col_timestamptz": datetime.datetime(1970, 1, 1, 0, 0, 0, 12345, tzinfo=datetime.UTC),
        "col_string": "HELLO",
        "col_uuid": UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7"),
        "col_fixed": bytes.fromhex("010203ff03"),
        "col_binary": bytes.fromhex("0102"),
    }


@pytest.mark.parametrize(
    ("table", "count"),
    [
        ("partition_timestamp/default.db/partition_timestamp", 2),
        ("partition_integer", 2),
        ("partition_decimal_bigint", 10),
        ("uuid", 10),
        ("iceberg_v1_repro/repro/merch_v1", 4),
        ("equality_deletes/warehouse/mydb/mytable_partitioned", 3),
    ],
)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_other_tables_give_all_their_rows_whatever_the_ranks(table: str, count: int, num_ranks: int) -> None:
    rows = rows_of(table, num_ranks=num_ranks, batch_size=2)
    assert len(rows) == count
    assert all(None not in row.values() for row in rows)
