"""How do passes over the table of 51 columns scale with cores?

python benchmarks/cores.py [GiB] [runs] [cores]

By threads and by worker processes, powers of two up to the cores there are, beside pyarrow with as many threads and
polars with all cores. Every core needs several row groups, or the last ones leave most of them idle: 2 GiB have 138.
After each table comes one pass of each case with threads, in processor seconds: of all threads and of the trainer's.
"""

import sys
import time
from functools import partial

from bare import CORES, Cases, groups_of, if_installed, in_threads, polars_at_once, read_few, table_limits
from data import STACK, tabular
from measure import alternate, report
from tabular import passes

from torch_dataloader_utils import Decoding

LIMIT = "limit: pyarrow, 4 columns a call"
SHUFFLED = {"shuffle": True, "shuffle_rows": 65_536}


def powers(most: int) -> list[int]:
    """1, 2, 4, ... up to `most`."""
    return [1 << number for number in range(most.bit_length())]


def in_this_process(folder, cores: int, batch: int) -> Cases:
    """Passes with threads, by their number."""
    threads = {
        f"{number} threads, dict": passes(folder, batch_size=batch, num_workers=0, decoding=Decoding(threads=number))
        for number in powers(cores)
    }
    most = {"batch_size": batch, "num_workers": 0, "decoding": Decoding(threads=cores)}
    ahead = {**most, "decoding": Decoding(threads=cores, ahead_bytes="1GiB")}
    return threads | {
        f"{cores} threads, dict, 1 GiB ahead": passes(folder, **ahead),
        f"{cores} threads, stacked": passes(folder, stack=STACK, **most),
        f"{cores} threads, rows shuffled": passes(folder, **SHUFFLED, **most),
        f"{cores} threads, rows shuffled, stacked": passes(folder, stack=STACK, **SHUFFLED, **most),
    }


def in_workers(folder, cores: int, batch: int) -> Cases:
    """Passes with worker processes, by their number."""
    options = {"batch_size": batch, "persistent_workers": True}
    return {
        f"{number} processes, {form}, batch {batch}": passes(folder, num_workers=number, **options, **more)
        for number in powers(cores)[1:]
        for form, more in {"dict": {}, "stacked": {"stack": STACK}}.items()
    }


def print_processor_seconds(cases: Cases) -> None:
    """One pass each: how long it takes, and the processor time of all threads and of this one."""
    print("  wall, processor, and trainer's processor seconds of one pass")
    for name, run in cases.items():
        before = time.perf_counter(), time.process_time(), time.thread_time()
        run()
        after = time.perf_counter(), time.process_time(), time.thread_time()
        wall, busy, own = (end - begin for begin, end in zip(before, after, strict=True))
        print(f"  {name:<44} {wall:>8.3f} {busy:>8.3f} {own:>8.3f}   {busy / wall:>5.1f} cores", flush=True)


def main() -> None:
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    cores = int(sys.argv[3]) if len(sys.argv) > 3 else CORES
    folder = tabular(gib)
    groups = groups_of(folder)
    bare = table_limits(folder) | if_installed({"polars, all files at once": partial(polars_at_once, folder)})
    rows = bare[LIMIT]()
    facts = {"limit": LIMIT, "unit": "rows", "amount": rows, "gib": gib, "page_cache": "warm"}
    scaled = {
        f"pyarrow, 4 columns a call, {number} threads": partial(
            in_threads, partial(read_few, 4), groups, threads=number
        )
        for number in powers(cores)
    }
    for batch in (8192, 1024):
        threads = (scaled if batch == 8192 else {}) | in_this_process(folder, cores, batch)
        report(f"cores_threads_{batch}", alternate(bare | threads, runs=runs), **facts)
        print_processor_seconds(bare | threads)
    processes = in_workers(folder, cores, 8192) | in_workers(folder, cores, 1024)
    report("cores_processes", alternate(bare | processes, runs=runs), **facts)


if __name__ == "__main__":
    main()
