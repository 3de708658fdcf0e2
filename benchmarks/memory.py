"""Peak memory over all processes, and processor seconds per GB, on row groups of 256 MB and on the table.

python benchmarks/memory.py [MB of a row group]
"""

import json
import subprocess
import sys
import threading

import psutil
from data import large_groups, tabular
from measure import RESULTS, machine

PROGRAM = """
import resource
import sys
from torch_dataloader_utils import StructuredDataset

def processor_seconds():
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)

loader, _ = StructuredDataset.create_dataloader(sys.argv[1], batch_size=8192, num_workers=int(sys.argv[2]),
                                                decode_ahead_bytes=sys.argv[3])
before = processor_seconds()
print(sum(batch.num_rows for batch in loader))
print(processor_seconds() - before)
"""


def peak_of(folder, workers, budget):
    """(peak proportional set size over all processes in MB, processor seconds)."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), str(workers), budget], stdout=subprocess.PIPE, text=True
    )
    peak, over = 0, threading.Event()

    def watch():
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
    return peak / 1e6, float(output.split()[1])


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    rows = []
    for name, folder in {f"row groups of {megabytes} MB": large_groups(megabytes), "tabular": tabular(1.0)}.items():
        stored = sum(path.stat().st_size for path in folder.glob("*.parquet")) / 1e9
        for workers in (0, 2):
            for budget in ("64MiB", "256MiB", "1GiB"):
                peak, processor = peak_of(folder, workers, budget)
                rows.append(
                    {
                        "data": name,
                        "workers": workers,
                        "budget": budget,
                        "peak_mb": peak,
                        "cpu_s_per_gb": processor / stored,
                    }
                )
                print(rows[-1])
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "memory.json").write_text(json.dumps({"name": "memory", "rows": rows, "machine": machine()}, indent=1))


if __name__ == "__main__":
    main()
