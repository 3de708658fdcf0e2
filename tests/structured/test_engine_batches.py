"""Every plan gives the same batches with the engine, without compiled decoding, and without any compiled code."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.engine import needs_engine
from torch_dataloader_utils import Decoding, Lanes, Ragged, StructuredDataset, TokenBatches, _engine, pack_tokens
from torch_dataloader_utils.blending import blend

# Rows of the row groups of each file. The columns of a file are decoded together or by pyarrow alone (brotli), or some
# have nulls, so that blocks of one loader have their columns in different places.
FILES = {"plain": [90, 40], "brotli": [70], "nulls": [30, 60, 3], "v2": [8] * 9}
TOTAL = sum(map(sum, FILES.values()))
STACK = {"x": ["f0", "f1", "f2"]}
PLANS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stacked": {"stack": STACK},
    "numpy": {"output_format": "numpy"},
    "arrow": {"output_format": "arrow"},
    "chunks shuffled": {"shuffle": "chunks", "split_rows": 20},
    "windows": {"shuffle": True, "shuffle_rows": 50, "split_rows": 20},
    "windows, stacked": {"shuffle": True, "shuffle_rows": 50, "split_rows": 20, "stack": STACK},
    "lanes in rotation": {"lanes": Lanes(6), "shuffle": "chunks", "split_rows": 20},
    "lanes that mix": {"lanes": Lanes(12, rows=2), "shuffle": True, "shuffle_rows": 20, "split_rows": 20},
    "tokens": {"token_batches": TokenBatches("l", max_tokens=40), "shuffle_rows": 60},
    "tokens, shuffled": {"token_batches": TokenBatches("l", max_tokens=40), "shuffle": True},
    "not counted": {"filters": pc.field("row") >= 0, "count_rows": False},
    "packs": {"pack": pack_tokens("l", 16)},
}


def table(first: int, rows: int, nulls: bool) -> pa.Table:
    numbers = np.arange(first, first + rows)
    mask = numbers % 5 == 0 if nulls else None
    columns = {
        "row": pa.array(numbers),
        "f0": pa.array(numbers.astype(np.float32) / 3, mask=mask),
        "small": pa.array((numbers % 100).astype(np.int8)),
        "l": pa.array([list(range(row % 4 + 1)) for row in numbers], pa.list_(pa.int32())),
        "f1": pa.array(numbers.astype(np.float32) / 7),
        "text": pa.array([f"t{row}" for row in numbers]),
        "f2": pa.array(numbers.astype(np.float32)),
        "flag": pa.array(numbers % 3 == 0),
        "d": pa.array(numbers / 11),
    }
    return pa.table(columns)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, first = tmp_path_factory.mktemp("table"), 0
    for name, groups in FILES.items():
        content = table(first, sum(groups), nulls=name == "nulls")
        first += sum(groups)
        codec, version = "brotli" if name == "brotli" else "snappy", "2.0" if name == "v2" else "1.0"
        options = {"compression": codec, "data_page_version": version}
        with pq.ParquetWriter(path / f"{name}.parquet", content.schema, **options) as writer:
            start = 0
            for rows in groups:
                writer.write_table(content.slice(start, rows), row_group_size=rows)
                start += rows
    return path


def values(value: Any) -> Any:
    """Return a column as something that compares: NaN is equal to NaN, and types count."""
    match value:
        case Ragged():
            return values(value.values), values(value.offsets)
        case torch.Tensor():
            return str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()
        case np.ndarray():
            return str(value.dtype), value.tolist() if value.dtype == object else value.tobytes()
        case pa.RecordBatch():
            return value
        case dict():
            return {name: values(column) for name, column in value.items()}
        case list():
            return list(map(values, value))
        case _:
            return value


def batches(source: Any) -> list[Any]:
    return [values(batch) for batch in source]


def loaders(folder: Path, options: dict[str, Any], decoding: Decoding, count: int) -> Any:
    made = [
        StructuredDataset.create_dataloader(folder, num_workers=0, decoding=decoding, **options)[0]
        for _ in range(count)
    ]
    return made[0] if count == 1 else blend(made, [0.6, 0.4], per="sample")


@needs_engine
@pytest.mark.parametrize("plan", [*PLANS, "blend of rows"])
@settings(max_examples=effort(3))
@given(batch_rows=st.integers(1, 60), seed=st.integers(0, 9), threads=st.integers(1, 3), at_once=st.booleans())
def test_batches_do_not_depend_on_the_engine(
    folder: Path, plan: str, batch_rows: int, seed: int, threads: int, at_once: bool
) -> None:
    options = {"shuffle_seed": seed, **PLANS.get(plan, {"columns": ["f0", "row", "f1", "d"]})}
    if plan == "lanes that mix":
        batch_rows = 2 * (1, 2, 3, 4, 6, 12)[batch_rows % 6]  # of 12 lanes
    if "token_batches" not in options:
        options["batch_size"] = batch_rows
    count, ahead = 2 if plan == "blend of rows" else 1, "256MiB" if at_once else 1
    with_engine = batches(loaders(folder, options, Decoding(threads=threads, ahead_bytes=ahead), count))
    decoded_by_pyarrow = Decoding(threads=threads, ahead_bytes=ahead, compiled=False)
    assert batches(loaders(folder, options, decoded_by_pyarrow, count)) == with_engine
    with patch.object(_engine, "IS_BUILT", False):
        assert batches(loaders(folder, options, decoded_by_pyarrow, count)) == with_engine
    assert with_engine
