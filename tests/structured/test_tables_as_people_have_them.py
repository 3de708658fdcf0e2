"""Doubles, decimals, structs and text of warehouse tables: on every road, the rows and types that options ask for."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from torch_dataloader_utils import Decoding, RowDataset, StructuredDataset, blend
from torch_dataloader_utils.errors import ConfigError, SchemaError

ROWS = 1000
OPTIONS: dict[str, Any] = {
    "columns": ["row", "x", "price", "count", "user", "items"],
    "stack": {"m": ["x", "price", "count", "user.age"]},
    "dtypes": {"m": "float32", "row": "int32", "user.score": torch.float16},
    "batch_size": 64,
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    numbers = range(ROWS)
    user = [{"age": row % 90, "score": row / 8, "name": f"n{row}"} for row in numbers]
    items = [[{"id": row, "price": Decimal(row).scaleb(-1)}] * (row % 3) for row in numbers]
    columns = {
        "row": pa.array(numbers, pa.int64()),
        "x": pa.array([row / 7 for row in numbers], pa.float64()),
        "price": pa.array([Decimal(row).scaleb(-2) for row in numbers], pa.decimal128(10, 2)),
        "count": pa.array([row * 1000 for row in numbers], pa.int64()),
        "user": pa.array(user, pa.struct([("age", pa.int16()), ("score", pa.float64()), ("name", pa.string())])),
        "items": pa.array(items, pa.list_(pa.struct([("id", pa.int32()), ("price", pa.decimal128(8, 1))]))),
        "text": pa.array([f"t{row}" for row in numbers]),
    }
    path = tmp_path_factory.mktemp("table")
    for part in range(2):
        pq.write_table(pa.table(columns).slice(part * 500, 500), path / f"{part}.parquet", row_group_size=130)
    return path


def _check(batch: Any) -> list[int]:
    """Check values and types of a batch by its row numbers, and return these."""
    assert list(batch) == ["m", "row", "user", "items"]
    assert batch["row"].dtype == torch.int32
    rows = batch["row"].tolist()
    wanted = np.array([[row / 7, row / 100, row * 1000, row % 90] for row in rows]).astype(np.float32)
    assert batch["m"].dtype == torch.float32
    assert np.array_equal(batch["m"].numpy(), wanted.reshape(-1, 4))
    assert list(batch["user"]) == ["score", "name"]
    assert batch["user"]["score"].dtype == torch.float16
    assert batch["user"]["score"].tolist() == [row / 8 for row in rows]
    assert batch["user"]["name"] == [f"n{row}" for row in rows]
    assert batch["items"]["id"].to_list() == [[row] * (row % 3) for row in rows]
    assert batch["items"]["price"].to_list() == [[row / 10] * (row % 3) for row in rows]
    assert batch.num_rows == len(rows)
    return rows


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 0, "decoding": Decoding(compiled=False)},
        {"num_workers": 0, "shuffle": True, "shuffle_rows": 300},
        {"num_workers": 0, "missing": "null"},
        pytest.param({"num_workers": 2, "shuffle": True, "shuffle_rows": 300}, marks=pytest.mark.processes),
    ],
)
def test_every_road_gives_the_rows_in_the_types_that_were_asked_for(table: Path, options: dict[str, Any]) -> None:
    loader, _ = StructuredDataset.create_dataloader(table, **OPTIONS, **options)
    assert sorted(row for batch in loader for row in _check(batch)) == list(range(ROWS))


def test_blends_mix_rows_of_structs(table: Path) -> None:
    loaders = [StructuredDataset.create_dataloader(table, num_workers=0, **OPTIONS)[0] for _ in range(2)]
    blended = blend(loaders, weights=[0.5, 0.5], per="sample", stop="first_exhausted", source_column="of")
    for batch in blended:
        assert set(batch.pop("of").tolist()) == {0, 1}
        _check(batch)


def test_single_rows_have_the_same_types(table: Path) -> None:
    options = {name: value for name, value in OPTIONS.items() if name != "batch_size"}
    row = RowDataset(table, **options)[777]
    assert row["m"].tolist() == np.array([111, 7.77, 777000, 57], np.float32).tolist()
    assert (row["user"]["score"].dtype, row["user"]["name"]) == (torch.float16, "n777")
    assert row["items"]["id"].tolist() == []


def test_only_asked_fields_are_delivered_and_an_unknown_one_is_named(table: Path) -> None:
    batch = next(iter(StructuredDataset(table, columns=["user.age", "row"], batch_size=4)))
    assert {name: list(column) for name, column in batch.items()} == {"user": ["age"], "row": [0, 1, 2, 3]}
    with pytest.raises(ConfigError, match=r"columns names 'user.agee', .*did you mean 'user.age'"):
        StructuredDataset(table, columns=["user.agee"])


def test_a_filter_may_use_fields_that_are_not_delivered(table: Path) -> None:
    dataset = StructuredDataset(table, columns=["user.score", "row"], filters=pc.field("user", "age") == 5)
    assert [row for batch in dataset for row in batch["row"].tolist()] == [row for row in range(ROWS) if row % 90 == 5]


def test_a_value_that_does_not_fit_names_file_row_group_and_way_out(table: Path) -> None:
    dataset = StructuredDataset(table, columns=["row"], dtypes={"row": "uint8"})
    with pytest.raises(
        SchemaError,
        match=r"0\.parquet row group 1: column 'row' \(int64\) has 256, which uint8 does not hold\. "
        r"Pass dtypes=\{'row': \"int64\"\}, or 'row': \(\"clip\", \"uint8\"\) to take",
    ):
        list(dataset)
    stacked = StructuredDataset(table, columns=["row"], stack={"m": ["row"]}, dtypes={"m": "uint8"})
    with pytest.raises(SchemaError, match=r"column 'row' .*Pass dtypes=\{'m': \"int64\"\}"):
        list(stacked)
    clipped = StructuredDataset(table, columns=["row"], dtypes={"row": ("clip", "uint8")}, batch_size=ROWS)
    assert next(iter(clipped))["row"].tolist() == [min(row, 255) for row in range(ROWS)]


def test_columns_of_objects_are_named_once_unless_they_are_asked_for(
    table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        StructuredDataset(table)
    (record,) = caplog.records
    assert "not tensors, for 'user.name' (string), 'text' (string)." in record.getMessage()
    for options in ({"columns": ["row", "text"]}, {"output_format": "dict"}, {"output_format": "arrow"}):
        StructuredDataset(table, **options)
    assert len(caplog.records) == 1


def test_ranks_may_differ_and_states_go_on_with_other_types(table: Path) -> None:
    loader, _ = StructuredDataset.create_dataloader(table, num_workers=0, batch_size=100, columns=["row"])
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    batches.close()
    resumed, _ = StructuredDataset.create_dataloader(
        table, num_workers=0, batch_size=100, columns=["row"], dtypes="float32"
    )
    resumed.load_state_dict(state)
    batch = next(iter(resumed))
    assert batch["row"].dtype == torch.float32
    assert batch["row"].tolist() == [float(row) for row in range(100, 200)]
