"""Reads a table with the loader, and with oracles."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from torch_dataloader_utils import DeltaDataset


def read_rows(table: Any, *, num_ranks: int = 1, **options: Any) -> list[dict[str, Any]]:
    """All rows that all ranks of a loader deliver, in the order of ranks."""
    rows = []
    for rank in range(num_ranks):
        loader, _ = DeltaDataset.create_dataloader(
            table, output_format="arrow", num_ranks=num_ranks, rank=rank, **{"num_workers": 0, **options}
        )
        for batch in loader:
            rows += batch.to_pylist()
    return rows


def in_order(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Rows in an order that does not depend on how they were read, comparable with NaN and null."""
    return sorted(repr(sorted(row.items())) for row in rows)


def deltalake_rows(table: Any, version: int | None = None, **options: Any) -> list[dict[str, Any]]:
    """What deltalake's own engine gives; it applies deletion vectors and column mapping."""
    return pa.table(DeltaTable(table, version=version, **options).scan()).to_pylist()
