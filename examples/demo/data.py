"""A small data set of taxi trips, as messy as real ones: files and row groups of uneven sizes, in hive directories."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet

# Rows of each file. No two are alike, one is tiny, and nothing divides by anything.
FILE_ROWS = {2023: (17_003, 4_211, 997), 2024: (29, 11_117, 6_673)}
GROUP_ROWS = 2_000


def write_trips(parquet: Path, orc: Path, *, file_rows: Mapping[int, Sequence[int]] = FILE_ROWS, seed: int = 7) -> int:
    """Write the trips as Parquet files below `parquet` and as one file `orc`; return the number of rows.

    Columns: row_id (0, 1, 2, ... over all files), distance, minutes, passengers, fare; year is the directory. The
    ORC file holds year as a column. The fare is almost linear in the others, so that a model has something to learn.
    """
    random = np.random.default_rng(seed)
    tables, rows = [], 0
    for year, sizes in file_rows.items():
        for number, size in enumerate(sizes):
            table = _trips(random, first=rows, count=size)
            path = parquet / f"year={year}" / f"part-{number}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pyarrow.parquet.write_table(table, path, row_group_size=GROUP_ROWS)
            tables.append(table.append_column("year", pa.array([year] * size, pa.int32())))
            rows += size
    (parquet / "_SUCCESS").touch()
    orc.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.orc.write_table(pa.concat_tables(tables), orc, stripe_size=256 * 1024)
    return rows


def _trips(random: np.random.Generator, *, first: int, count: int) -> pa.Table:
    distance = random.gamma(2.0, 2.0, count)
    minutes = 3.0 * distance + random.normal(5.0, 1.0, count)
    passengers = random.integers(1, 5, count)
    fare = 2.5 + 1.75 * distance + 0.3 * minutes + 0.5 * passengers + random.normal(0.0, 0.5, count)
    columns = {"distance": distance, "minutes": minutes, "passengers": passengers, "fare": fare}
    return pa.table(
        {
            "row_id": np.arange(first, first + count),
            **{name: values.astype(np.float32) for name, values in columns.items()},
        }
    )
