"""A row group through our reader against the same row group by bare pyarrow, one thread.

    python benchmarks/read_row_groups.py [--rounds 60] [--groups 4]

The file: 40 float32, 10 int64 and one int8 column of random values, 65,536 rows a row group, with snappy and
zstd, with page checksums and without. "bare" is an open ParquetFile's read_row_group(i, use_threads=False); every
round times all ways on the same row group, in alternating order. Ratios are of medians and of minima.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import print_machine, save

from torch_dataloader_utils._core.inventory import FileFormat
from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils.tables.projection import ReadSpec
from torch_dataloader_utils.tables.reader import Reader, make_reader

GROUP_ROWS = 65_536


def make_table(rows: int) -> pa.Table:
    """The 51 columns."""
    random = np.random.default_rng(0)
    columns = {f"f{i}": random.standard_normal(rows).astype(np.float32) for i in range(40)}
    columns |= {f"i{i}": random.integers(0, 1 << 20, rows) for i in range(10)}
    return pa.table(columns | {"label": random.integers(0, 5, rows).astype(np.int8)})


def make_tasks(path: Path) -> list[RowGroupTask]:
    """One task a row group, as a scan makes them."""
    status, metadata = path.stat(), pq.read_metadata(path)
    return [
        RowGroupTask(
            path=str(path),
            file_size=status.st_size,
            identity=f"{status.st_size}-{status.st_mtime_ns}",
            file_format=FileFormat.PARQUET,
            ordinal=i,
            first_row=i * GROUP_ROWS,
            physical_rows=metadata.row_group(i).num_rows,
            live_rows=metadata.row_group(i).num_rows,
            byte_offset=0,
            byte_length=0,
        )
        for i in range(metadata.num_row_groups)
    ]


def time_ways(ways: dict[str, Callable[[int], object]], groups: int, rounds: int) -> dict[str, np.ndarray]:
    """Milliseconds of each way, one entry a round, after a warm-up round over all row groups."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for round_number in range(-groups, rounds):
        names = list(ways) if round_number % 2 else list(ways)[::-1]
        for name in names:
            start = time.perf_counter()
            ways[name](round_number % groups)
            if round_number >= 0:
                times[name].append((time.perf_counter() - start) * 1e3)
    return {name: np.array(values) for name, values in times.items()}


def reader_of(path: Path, columns: tuple[str, ...] | None = None, page_checksums: bool = True) -> Reader:
    """Our reader of the file."""
    schema = pq.read_schema(path).serialize().to_pybytes()
    return make_reader(ReadSpec(schema=schema, columns=columns, page_checksums=page_checksums))


def bench(path: Path, rounds: int) -> dict[str, list[float]]:
    """Prints one block of figures; gives the milliseconds of all rounds."""
    tasks, bare = make_tasks(path), pq.ParquetFile(path)
    three = ("f3", "f20", "i5")
    checked, unchecked, narrow = reader_of(path), reader_of(path, page_checksums=False), reader_of(path, three)
    ways: dict[str, Callable[[int], object]] = {
        "51 columns, bare": lambda i: bare.read_row_group(i, use_threads=False),
        "51 columns, reader": lambda i: checked.read(tasks[i]),
        "51 columns, reader, checksums off": lambda i: unchecked.read(tasks[i]),
        "3 columns, bare": lambda i: bare.read_row_group(i, columns=list(three), use_threads=False),
        "3 columns, reader": lambda i: narrow.read(tasks[i]),
    }
    times = time_ways(ways, len(tasks), rounds)
    for name, values in times.items():
        against = times[f"{name.split(',')[0]}, bare"]
        print(
            f"  {name:36} median {np.median(values):7.2f} ms  min {values.min():7.2f} ms  "
            f"bare/this {np.median(against) / np.median(values):.3f} (median) {against.min() / values.min():.3f} (min)"
        )
    return {name: values.round(3).tolist() for name, values in times.items()}


def main() -> None:
    """Writes the files and prints machine, versions and figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--groups", type=int, default=4)
    options = parser.parse_args()
    print_machine()
    milliseconds = {}
    table = make_table(options.groups * GROUP_ROWS)
    with tempfile.TemporaryDirectory() as folder:
        for compression in ("snappy", "zstd"):
            for has_checksums in (False, True):
                path = Path(folder, f"{compression}-{has_checksums}.parquet")
                pq.write_table(
                    table, path, row_group_size=GROUP_ROWS, compression=compression, write_page_checksum=has_checksums
                )
                name = f"{compression}, {'with' if has_checksums else 'without'} page checksums"
                print(f"{name}:")
                milliseconds[name] = bench(path, options.rounds)
                path.unlink()
    save("read_row_groups", **vars(options), milliseconds=milliseconds)


if __name__ == "__main__":
    main()
