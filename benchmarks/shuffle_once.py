"""What does `shuffle_table` take, beside reading and writing the same rows with pyarrow, and how much memory?

    python benchmarks/shuffle_once.py [SCALE] [ROUNDS]

Processor time of one process, in turns. "read and write" decodes each row group and writes it; once with pyarrow's own
options, once with those that the shuffle has chosen. Peak memory is that of a worker process, less what the process has
before its first job.
"""

import shutil
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import alternate, print_machine, save

from torch_dataloader_utils import shuffle_table
from torch_dataloader_utils.rewrite.layout import choose_writing, open_writer

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = {"numbers": 2_000_000, "text": 400_000}
FILES = 4
MEMORY = ("1GiB", "256MiB")


def numbers(rows: int, random: np.random.Generator) -> pa.Table:
    """51 columns: 30 of float32, 10 of float64, 11 of integers."""
    columns: dict[str, Any] = {"id": np.arange(rows)}
    columns |= {f"x{i}": random.standard_normal(rows, dtype=np.float32) for i in range(30)}
    columns |= {f"d{i}": random.standard_normal(rows) for i in range(10)}
    columns |= {f"k{i}": random.integers(0, 1000 * (i + 1), rows) for i in range(10)}
    return pa.table(columns)


def text(rows: int, random: np.random.Generator) -> pa.Table:
    """Documents of 20 to 200 words, their tokens, a name and one of 300 cities."""
    words = np.array([f"w{i}" for i in range(5000)])
    lengths = random.integers(20, 200, rows)
    return pa.table(
        {
            "name": [f"user-{i}" for i in range(rows)],
            "city": words[random.integers(0, 300, rows)],
            "text": [" ".join(words[random.integers(0, 5000, n)]) for n in lengths],
            "tokens": [random.integers(0, 50_000, n, dtype=np.int32) for n in lengths],
        }
    )


def read_and_write(source: Path, target: Path, options: dict[str, Any] | None = None) -> None:
    """Write each file again, row group by row group."""
    target.mkdir(exist_ok=True)
    for path in sorted(source.iterdir()):
        with (
            pq.ParquetFile(path) as file,
            open_writer(str(target / path.name), file.schema_arrow, options or {}) as out,
        ):
            for group in range(file.num_row_groups):
                out.write_table(file.read_row_group(group, use_threads=False))


def shuffle(source: Path, target: Path) -> None:
    """Shuffle in this process."""
    shutil.rmtree(target, ignore_errors=True)
    shuffle_table(source, target)


def peak_bytes() -> int:
    """Peak resident bytes of this process. (`getrusage` would count the process from which it was forked.)"""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def worker_bytes(source: Path, target: Path, memory: str) -> int:
    """Peak bytes of a worker process, less what it has after its imports."""
    shutil.rmtree(target, ignore_errors=True)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        before = pool.submit(peak_bytes).result()  # this module imports the library
        shuffle_table(source, target, memory=memory, executor=pool)
        return pool.submit(peak_bytes).result() - before


def main() -> None:
    scale, rounds = float([*sys.argv, "1"][1]), int([*sys.argv, "", "3"][2] or 3)
    print_machine()
    results = []
    with tempfile.TemporaryDirectory() as name:
        for kind, make in (("numbers", numbers), ("text", text)):
            folder = Path(name) / kind
            (folder / "source").mkdir(parents=True)
            rows = int(ROWS[kind] * scale / FILES)
            random = np.random.default_rng(0)
            for number in range(FILES):
                path = folder / "source" / f"{number}.parquet"
                pq.write_table(make(rows, random), path, row_group_size=max(1, rows // 8))
            first = pq.ParquetFile(folder / "source" / "0.parquet").read_row_group(0)
            source, options = folder / "source", choose_writing(first.combine_chunks().to_batches()[0])
            cases: dict[str, Callable[[], Any]] = {
                "read and write": partial(read_and_write, source, folder / "plain"),
                "the same, in the layout of the target": partial(read_and_write, source, folder / "best", options),
                "shuffle_table": partial(shuffle, source, folder / "shuffled"),
            }
            times = alternate(cases, runs=rounds, clock="processor")
            decoded = sum(pq.read_table(path).nbytes for path in source.iterdir())
            print(f"\n{kind}: {rows * FILES:,} rows, {decoded / 1e6:,.0f} MB decoded")
            for case, seconds in times.items():
                print(f"  {case:<40} {statistics.median(seconds):6.2f} s")
            peaks = {memory: worker_bytes(source, folder / "shuffled", memory) for memory in MEMORY}
            for memory, peak in peaks.items():
                print(f"  peak of a worker with memory={memory:<12} {peak / 2**20:7,.0f} MiB")
            results.append({"kind": kind, "rows": rows * FILES, "decoded": decoded, "times": times, "peaks": peaks})
            shutil.rmtree(folder)
    save("shuffle_once", rows=results)


if __name__ == "__main__":
    main()
