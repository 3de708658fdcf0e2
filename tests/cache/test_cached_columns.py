"""Columns of numbers are decoded from the files of the cache; no damage of these files changes a row."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.faults.s3_server import S3Server
from tests.faults.tables import parquet_bytes
from torch_dataloader_utils import HostCache, RemoteOptions, StructuredDataset

ROWS = 4_000


def stored() -> pa.Table:
    """Two row groups: kinds of numbers that are not neighbours, so that the decoder reads them in another order."""
    random = np.random.default_rng(0)
    numbers: dict[str, Any] = {
        "a": random.random(ROWS).astype(np.float32),
        "b": random.integers(0, 1 << 60, ROWS),
        "c": random.random(ROWS).astype(np.float32),
        "d": pa.array(random.integers(0, 1 << 60, ROWS), mask=random.random(ROWS) < 0.1),
        "text": [str(number) for number in range(ROWS)],
    }
    return pa.table(numbers)


@pytest.mark.slow
@pytest.mark.cases(2)
@pytest.mark.parametrize("columns", [["a", "b", "c", "d"], ["b", "d"], ["a", "b", "c", "d", "text"]])
def test_no_damage_of_an_entry_changes_a_row(tmp_path: Path, columns: list[str]) -> None:
    table, server = stored(), S3Server()
    try:
        server.put("data/0.parquet", parquet_bytes(table, ROWS // 2, use_dictionary=False, compression="none"))
        loader, _ = StructuredDataset.create_dataloader(
            "s3://bucket/data",
            columns=columns,
            batch_size=ROWS,
            num_workers=0,
            output_format="arrow",
            storage_options=server.storage_options,
            remote=RemoteOptions(cache=HostCache(tmp_path, max_bytes="1GiB")),
        )

        def assert_rows(*, damaged: int) -> None:
            before = loader.metrics()
            server.forget()
            loader.set_epoch(loader.epoch)
            assert pa.Table.from_batches(list(loader)).equals(table.select(columns))
            events = (loader.metrics() - before).cache_events
            assert (events["damaged"], len(server.requests)) == (damaged, damaged)

        for batch in loader:
            assert pa.Table.from_batches([batch]).equals(table.select(columns))
        assert_rows(damaged=0)
        entries = [place for place in tmp_path.glob("*/entries/*/*") if not place.name.startswith("k")]
        assert len(entries) >= 2
        for entry in entries:
            content = entry.read_bytes()
            for at in (9, 17, 64, len(content) // 2, len(content) - 1):
                entry.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
                assert_rows(damaged=1)
            for other in (content[:63], content[:-1], content + b"x"):
                entry.write_bytes(other)
                assert_rows(damaged=1)
        assert_rows(damaged=0)
    finally:
        server.close()
