"""What holds for every data set holds for tables with deletes: equal steps, shuffles, resume, threads and processes."""

import json
from collections.abc import Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import torch
from pyiceberg.types import NestedField, StructType

from tests.tables.iceberg.tables import TableWriter, field_of, ids, numbered
from tests.tables.passes import OPTIONS, check_ranks, check_resume
from torch_dataloader_utils import (
    CheckpointMismatchError,
    DataFileInfo,
    IcebergDataFileInfo,
    IcebergDataset,
    RoundRobinSplitStrategy,
    save_inventory,
    scan_iceberg,
)
from torch_dataloader_utils.errors import NullValueError, UnsupportedFeatureError
from torch_dataloader_utils.splits import Shard


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> TableWriter:
    writer = TableWriter(tmp_path_factory.mktemp("spine"), format_version=3)
    writer.evolve(field_of(1, "id", "long"), field_of(2, "kind", "string"))
    paths = [
        writer.append(
            [{"id": 100 * file + i, "kind": f"k{i % 6}"} for i in range(60)],
            rows_per_group=9,
            file_format="orc" if file == 2 else "parquet",
        )
        for file in range(4)
    ]
    writer.delete_positions([(paths[0], 7), (paths[1], 0), (paths[2], 59)])
    writer.delete_equal([2], [{"kind": "k2"}])
    writer.delete_vectors({paths[3]: [1, 3, 5]})
    return writer


@pytest.mark.parametrize("rows_per_group", [2, 9])  # counted by footers, and by manifests
def test_nulls_of_tables_are_known_at_build(tmp_path: Path, rows_per_group: int) -> None:
    writer = TableWriter(tmp_path, format_version=2)
    writer.evolve(field_of(1, "id", "long"), field_of(2, "x", "int"))
    whole = writer.append([{"id": i, "x": i or None} for i in range(5)], rows_per_group=rows_per_group)
    options = {"num_workers": 0, "batch_size": 2}
    with pytest.raises(NullValueError, match=r"column 'x' \(int32\) has 1 null"):
        IcebergDataset.create_dataloader(writer.metadata, **options)
    last = IcebergDataset.create_dataloader(writer.metadata, filters=pc.field("id") > 0, **options)[0]
    assert len(list(last)) == 2
    writer.delete_positions([(whole, 0)])
    assert len(list(IcebergDataset.create_dataloader(writer.metadata, **options)[0])) == 2


def test_nulls_inside_structs_of_tables_are_known_at_build(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path, format_version=2)
    user = NestedField(2, "user", StructType(field_of(3, "age", "int")), required=False)
    writer.evolve(field_of(1, "id", "long"), user)
    writer.append([{"id": i, "user": {"age": i or None}} for i in range(5)], rows_per_group=2)
    with pytest.raises(NullValueError, match=r"column 'user\.age' \(int32\) has 1 null"):
        IcebergDataset.create_dataloader(writer.metadata, num_workers=0)


def live_ids() -> list[int]:
    gone = {7, 100, 259, 301, 303, 305}
    return [100 * f + i for f in range(4) for i in range(60) if i % 6 != 2 and 100 * f + i not in gone]


def test_ranks_take_equal_steps_and_together_every_live_row_once(table: TableWriter) -> None:
    check_ranks(partial(IcebergDataset.create_dataloader, table.metadata), live_ids())


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resumed_pass_gives_the_rest_in_threads_and_in_processes(table: TableWriter, num_workers: int) -> None:
    check_resume(partial(IcebergDataset.create_dataloader, table.metadata), live_ids(), num_workers)


def test_a_state_is_bound_to_its_snapshot(table: TableWriter) -> None:
    loader, _ = IcebergDataset.create_dataloader(table.metadata, **OPTIONS)
    state = loader.state_dict()
    other, _ = IcebergDataset.create_dataloader(table.metadata, snapshot_id=table.snapshot_id - 1, **OPTIONS)
    wanted = table.snapshot_id
    with pytest.raises(CheckpointMismatchError, match=rf"snapshot {wanted} .* pass snapshot_id={wanted} to continue"):
        other.load_state_dict(state)
    same, _ = IcebergDataset.create_dataloader(table.metadata, snapshot_id=table.snapshot_id, **OPTIONS)
    same.load_state_dict(state)


def test_a_state_fits_a_table_without_a_uuid(tmp_path: Path) -> None:
    table = numbered(tmp_path)
    table.append(ids(0, 10))
    path = Path(table.metadata)
    metadata = json.loads(path.read_text())
    del metadata["table-uuid"]
    first_version = {"format-version": 1, "schema": metadata["schemas"][0], "partition-spec": []}
    path.write_text(json.dumps(metadata | first_version))
    loader, _ = IcebergDataset.create_dataloader(table.metadata, batch_size=4, num_workers=0)
    next(iter(loader))
    again, _ = IcebergDataset.create_dataloader(table.metadata, batch_size=4, num_workers=0)
    again.load_state_dict(loader.state_dict())
    assert [batch["id"].tolist() for batch in again] == [[4, 5, 6, 7], [8, 9]]


def test_an_inventory_is_scanned_once_for_many_loaders_and_not_saved(table: TableWriter, tmp_path: Path) -> None:
    inventory = scan_iceberg(table.metadata)
    loader, _ = IcebergDataset.create_dataloader(table.metadata, inventory=inventory, **OPTIONS)
    assert sorted(value for batch in loader for value in batch["id"].tolist()) == live_ids()
    with pytest.raises(UnsupportedFeatureError, match="scan the table again"):
        save_inventory(inventory, tmp_path / "inventory.parquet")


@pytest.mark.processes
def test_the_data_set_works_in_a_plain_dataloader(table: TableWriter) -> None:
    dataset = IcebergDataset(table.metadata, **{**OPTIONS, "num_workers": 2})
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
    assert sorted(value for batch in loader for value in batch["id"].tolist()) == live_ids()


def test_an_inexact_plan_of_equality_deletes_still_reads_every_live_row(table: TableWriter) -> None:
    options = {key: value for key, value in OPTIONS.items() if key != "shuffle_rows"}
    loader, dataset = IcebergDataset.create_dataloader(table.metadata, count_rows=False, **options)
    assert not dataset.plan.is_exact
    assert sorted(value for batch in loader for value in batch["id"].tolist()) == live_ids()


def test_split_strategies_are_given_partition_values_and_the_snapshot(tmp_path: Path) -> None:
    given: list[IcebergDataFileInfo] = []

    class ByRegion(RoundRobinSplitStrategy):
        def generate(self, files: Sequence[DataFileInfo], *arguments: Any, **named: Any) -> list[Shard]:
            given.extend(file for file in files if isinstance(file, IcebergDataFileInfo))
            return super().generate(files, *arguments, **named)

    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "region", "string"), field_of(2, "day", "date"))
    table.append([{"region": "north", "day": date(1970, 1, 3)}])
    table.partition_by((1, "identity"), (2, "day"))
    table.append([{"region": "south", "day": date(1970, 1, 4)}], partition=("south", 3))
    loader, _ = IcebergDataset.create_dataloader(
        table.metadata, split_strategy=ByRegion(), num_workers=0, output_format="arrow"
    )
    assert loader.plan.rank_steps == (1,)
    partitions = {json.dumps(file.partition) for file in given}
    assert partitions == {"{}", '{"p10": "south", "p11": 3}'}
    assert {file.snapshot_id for file in given} == {table.snapshot_id}
    assert {file.record_count for file in set(given)} == {1}
