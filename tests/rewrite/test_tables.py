"""Tables with deletes and with columns that came later: a shuffle writes their live rows as loaders read them."""

from pathlib import Path

import pyarrow as pa

from tests.rewrite.tables import in_random_order, written
from tests.tables.delta.reading import read_rows as read_delta
from tests.tables.delta.tables import HandTable, add, column
from tests.tables.iceberg.reading import read_rows as read_iceberg
from tests.tables.iceberg.tables import field_of, ids, numbered
from torch_dataloader_utils import shuffle_table


def test_an_iceberg_table_with_deletes_of_both_kinds_and_a_new_column(tmp_path: Path) -> None:
    table = numbered(tmp_path / "table")
    first = table.append(ids(0, 60), rows_per_group=25)
    table.delete_positions([(first, position) for position in (0, 3, 26, 59)])
    table.evolve(field_of(1, "number", "long"), field_of(2, "name", "string"))
    table.append([{"number": n, "name": f"row-{n}"} for n in range(60, 100)])
    table.delete_equal([1], [{"number": 5}, {"number": 99}])
    shuffle_table(table.metadata, tmp_path / "out", seed=3)
    ordered = read_iceberg(table.metadata)
    assert len(ordered) == 94
    assert written(tmp_path / "out") == in_random_order(ordered, 3)


def test_a_delta_table_with_a_deletion_vector_and_a_new_column(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    table = HandTable(tmp_path / "table")
    first, second = table.file(pa.table({"id": range(40)}), row_group_size=15), "second.parquet"
    table.file(pa.table({"id": range(40, 60), "name": [f"row-{n}" for n in range(40, 60)]}), second)
    vector = table.vector([1, 2, 20, 39])
    columns = [column("id"), column("name", "string")]
    table.create(columns, add(first, deletionVector=vector), add(second), features=["deletionVectors"])
    shuffle_table(tmp_path / "table", tmp_path / "out", seed=4)
    ordered = read_delta(tmp_path / "table")
    assert len(ordered) == 56
    assert written(tmp_path / "out") == in_random_order(ordered, 4)
