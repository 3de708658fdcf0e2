"""How much memory over all processes, and how many processor seconds per GB, does a pass take?

    python benchmarks/memory.py [MB of a row group] [GiB of the table] [runs]

On row groups of 256 MB and on the table of 51 columns, each pass in a process of its own. Memory is the sum of the
proportional set sizes (memory that processes share counts once), looked at every 20 ms; the greatest of the runs is
shown, and the median of processor seconds (start of worker processes included, imports not) per GB of files. The limit
is pyarrow with a thread a core, which drops every row group as soon as it is decoded.
"""

import statistics
import subprocess
import sys
import threading
from pathlib import Path

import psutil
from data import large_groups, tabular
from measure import print_machine, save

MEASURED = """
import resource
import sys

def processor_seconds():
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)
"""
LIMIT = """
from pathlib import Path
from bare import pyarrow_threads
before = processor_seconds()
pyarrow_threads(Path(sys.argv[1]))
print(processor_seconds() - before)
"""
LOADER = """
from torch_dataloader_utils import Decoding, StructuredDataset
loader, _ = StructuredDataset.create_dataloader(sys.argv[1], batch_size=8192, num_workers=int(sys.argv[2]),
                                                decoding=Decoding(ahead_bytes=sys.argv[3]))
before = processor_seconds()
sum(batch.num_rows for batch in loader)
print(processor_seconds() - before)
"""
CASES: dict[str, tuple[str, ...]] = {"limit: pyarrow, a thread a core": (LIMIT,)}
CASES |= {
    f"{workers} workers, ahead_bytes {budget}": (LOADER, str(workers), budget)
    for workers in (0, 2)
    for budget in ("64MiB", "256MiB", "1GiB")
}


def peak_of(folder: Path, program: str, *options: str) -> tuple[float, float]:
    """(peak proportional set size over all processes in MB, processor seconds) of a program."""
    command = [sys.executable, "-c", MEASURED + program, str(folder), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
    peak, over = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.02):
            try:
                family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
                peak = max(peak, sum(member.memory_full_info().pss for member in family))
            except psutil.Error:
                continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    output, _ = process.communicate()
    over.set()
    watcher.join()
    if process.returncode:
        raise SystemExit(f"a pass ended with {process.returncode}; what it wrote is above")
    return peak / 1e6, float(output)


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    gib = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
    runs = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    rows = []
    print_machine()
    for name, folder in {
        f"row groups of {megabytes} MB": large_groups(megabytes),
        f"{gib:g} GiB": tabular(gib),
    }.items():
        stored = sum(path.stat().st_size for path in folder.glob("*.parquet")) / 1e9
        passes = [{case: peak_of(folder, *program) for case, program in CASES.items()} for _ in range(runs)]
        for case in CASES:
            peaks, spent = zip(*(each[case] for each in passes), strict=True)
            row = {"data": name, "case": case, "peak_mb": max(peaks)}
            row["cpu_s_per_gb"] = statistics.median(spent) / stored
            print(f"{name:<22} {case:<36} {row['peak_mb']:7.0f} MB  {row['cpu_s_per_gb']:6.2f} s of processor per GB")
            rows.append(row)
    save("memory", page_cache="warm", runs=runs, rows=rows)


if __name__ == "__main__":
    main()
