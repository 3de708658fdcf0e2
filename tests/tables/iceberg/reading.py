"""Reads a table with the loader, and with oracles."""

from collections.abc import Iterable, Mapping
from typing import Any

from pyiceberg.table import StaticTable

from torch_dataloader_utils.datasets.iceberg import IcebergDataset


def read_rows(
    table: str, catalog_config: Mapping[str, Any] | None = None, *, num_ranks: int = 1, **options: Any
) -> list[dict[str, Any]]:
    """All rows that all ranks of a loader deliver, in the order of ranks."""
    rows = []
    for rank in range(num_ranks):
        loader, _ = IcebergDataset.create_dataloader(
            table,
            catalog_config,
            output_format="arrow",
            num_ranks=num_ranks,
            rank=rank,
            **{"num_workers": 0, **options},
        )
        for batch in loader:
            rows += batch.to_pylist()
    return rows


def in_order(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Rows in an order that does not depend on how they were read, comparable with NaN and null."""
    return sorted(repr(sorted(row.items())) for row in rows)


def pyiceberg_rows(metadata: str, snapshot_id: int | None = None, **scan: Any) -> list[dict[str, Any]]:
    """What pyiceberg's own full scan gives."""
    table = StaticTable.from_metadata(metadata).scan(snapshot_id=snapshot_id, **scan).to_arrow()
    return table.to_pylist()
