"""Manifests whose split offsets are not those of the file: its footer says what it holds."""

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.types import ListType, LongType, NestedField

from tests.effort import effort
from tests.tables.iceberg.reading import in_order, pyiceberg_rows, read_rows
from tests.tables.iceberg.tables import TableWriter, field_of, ids, numbered
from torch_dataloader_utils import IcebergDataset, pack_tokens, scan_iceberg
from torch_dataloader_utils.errors import RowCountError

pytestmark = pytest.mark.filterwarnings("ignore:The epoch has no steps", "ignore:.*will come a second time")


@pytest.mark.slow
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=3),
    rows_per_group=st.integers(1, 12),
    kind=st.sampled_from(["none", "positions", "keys"]),
    least=st.none() | st.integers(0, 60),
    num_ranks=st.integers(1, 3),
    batch_size=st.integers(2, 9),
    shuffle_rows=st.none() | st.integers(2, 20),
    columns=st.sampled_from([["id"], ["id", "_pos"], ["name", "id", "_pos"]]),
)
@settings(max_examples=effort(50))
def test_files_of_which_one_offset_is_named_give_all_their_rows(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    rows_per_group: int,
    kind: str,
    least: int | None,
    num_ranks: int,
    batch_size: int,
    shuffle_rows: int | None,
    columns: list[str],
) -> None:
    table = TableWriter(tmp_path_factory.mktemp("t"))
    table.evolve(field_of(1, "id", "long"), field_of(2, "name", "string"))
    wanted: list[dict[str, Any]] = []
    for number, size in enumerate(sizes):
        rows = [{"id": 100 * number + place, "name": f"n{place}", "_pos": place} for place in range(size)]
        path = table.append(rows, rows_per_group=rows_per_group, with_split_offsets=1)
        gone = {0, size - 1, size // 2} if kind == "positions" else set()
        if gone:
            table.delete_positions([(path, place) for place in sorted(gone)])
        wanted += [row for row in rows if row["_pos"] not in gone]
    if kind == "keys":
        table.delete_equal([1], [{"id": 1}])
        wanted = [row for row in wanted if row["id"] != 1]
    if kind != "keys":
        assert in_order(pyiceberg_rows(table.metadata)) == in_order(
            {k: row[k] for k in ("id", "name")} for row in wanted
        )
    wanted = [row for row in wanted if least is None or row["id"] >= least]
    rows = read_rows(
        table.metadata,
        num_ranks=max(1, min(num_ranks, len(wanted))),
        batch_size=batch_size,
        columns=columns,
        shuffle=True,
        shuffle_rows=shuffle_rows,
        filters=None if least is None else pc.field("id") >= least,
        allow_empty=True,
    )
    assert in_order(rows) == in_order({name: row[name] for name in columns} for row in wanted)


@pytest.mark.parametrize("columns", [["_pos"], ["_file"], ["_pos", "id"]])
def test_a_part_of_such_a_file_and_no_column_of_it(tmp_path: Path, columns: list[str]) -> None:
    table = numbered(tmp_path)
    table.append(ids(0, 50), rows_per_group=7, with_split_offsets=1)
    assert scan_iceberg(table.metadata).num_groups == 1  # no footer was read for it
    whole = read_rows(table.metadata, columns=columns, batch_size=5)
    assert len(whole) == 50
    assert in_order(read_rows(table.metadata, columns=columns, num_ranks=4, batch_size=5)) == in_order(whole)


@pytest.mark.slow
def test_a_resume_in_the_middle_of_such_a_file(tmp_path: Path) -> None:
    table = numbered(tmp_path)
    table.append(ids(0, 50), rows_per_group=7, with_split_offsets=1)

    def loader() -> Any:
        return IcebergDataset.create_dataloader(table.metadata, batch_size=6, num_workers=0)[0]

    for taken in range(9):
        first, second = loader(), loader()
        batches = iter(first)
        seen = [next(batches)["id"].tolist() for _ in range(taken)]
        second.load_state_dict(first.state_dict())
        seen += [batch["id"].tolist() for batch in second]
        assert [value for batch in seen for value in batch] == list(range(50))


@pytest.mark.parametrize("change", [-1, 1])
def test_another_number_of_rows_than_the_manifest_says_is_an_error(tmp_path: Path, change: int) -> None:
    table = numbered(tmp_path)
    entry = table.new_file(ids(0, 50), rows_per_group=7, with_split_offsets=1)
    entry.arguments["record_count"] += change
    table.commit("append", [entry])
    with pytest.raises(RowCountError, match=f"row group 0 gave 7 of {50 + change} stored rows"):
        read_rows(table.metadata)


def test_samples_of_such_files_are_counted_by_all_their_row_groups(tmp_path: Path) -> None:
    found = []
    for number, offsets in enumerate((True, 1)):
        table = TableWriter(tmp_path / str(number))
        table.evolve(NestedField(1, "tokens", ListType(2, LongType(), element_required=False), required=False))
        rows = [{"tokens": list(range(place % 11))} for place in range(60)]
        table.append(rows, rows_per_group=60 if offsets is True else 7, with_split_offsets=offsets)
        loader, dataset = IcebergDataset.create_dataloader(
            table.metadata,
            batch_size=4,
            pack=pack_tokens("tokens", 8, counts="footers"),
            output_format="numpy",
            num_workers=0,
        )
        samples = [row.tolist() for batch in loader for row in batch["tokens"]]
        found.append((len(samples), samples))
        assert dataset.plan.steps == len(loader)
    assert found[0] == found[1]
