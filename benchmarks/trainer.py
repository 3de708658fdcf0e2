"""What does a loader cost a trainer that launches small operations: its time per step, its waits, and the lock?

    python benchmarks/trainer.py [GiB] [epochs] [rows a step]

A step is 3 ms of small torch operations, each of which takes the interpreter's lock. Steps beside the loader (with a
batch each) and steps alone (batches at hand already, nothing decodes) alternate in one process: measured apart, the
machine's own noise is larger than the loader's cost.

A second table counts processor time, which other work on the machine changes little: of the trainer's thread inside
`next`, and of decoding threads, all together and without the compiled code, which runs without the lock. It counts
what Python's garbage collector takes from an epoch too, because objects made by the loader start the collector.
"""

import gc
import statistics
import sys
import threading
import time
import warnings
from collections import Counter
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import torch
from data import STACK, tabular
from measure import print_machine, save

from torch_dataloader_utils import StructuredDataset, _engine
from torch_dataloader_utils._runtime.threads import ThreadPool

STEP_SECONDS = 0.003
STEPS_ALONE, STEPS_BESIDE = 12, 20
# Steps in which what is decoded ahead fills up, before steps alone.
STEPS_UNTIL_IDLE = 8
SHUFFLED = {"shuffle": True, "shuffle_rows": 65_536}
CASES = {
    "dict": {"num_workers": 0},
    "stacked": {"num_workers": 0, "stack": STACK},
    "rows shuffled": {"num_workers": 0, **SHUFFLED},
    "rows shuffled, stacked": {"num_workers": 0, "stack": STACK, **SHUFFLED},
    "2 processes": {"num_workers": 2, "persistent_workers": True},
}


def step(operations, numbers):
    """One step of the trainer."""
    for _ in range(operations):
        numbers = numbers * 1.0001
    return numbers


def calibrated(numbers):
    """The number of operations in a step of `STEP_SECONDS`."""
    operations = 400
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(20):
            step(operations, numbers)
        operations = max(1, int(operations * STEP_SECONDS * 20 / (time.perf_counter() - start)))
    return operations


def in_turns(folder, run, epochs, rows, options):
    """Ratios of the time of steps beside the loader to steps alone, and the seconds of every wait for a batch."""
    loader, _ = StructuredDataset.create_dataloader(folder, batch_size=rows, **options)
    ratios, waits = [], []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        batches = iter(loader)
        next(batches)
        left = len(loader) - 1
        while left > STEPS_BESIDE:
            for _ in range(STEPS_UNTIL_IDLE):
                run()
            start = time.perf_counter()
            for _ in range(STEPS_ALONE):
                run()
            alone = (time.perf_counter() - start) / STEPS_ALONE
            start = time.perf_counter()
            for _ in range(STEPS_BESIDE):
                asked = time.perf_counter()
                next(batches)
                waits.append(time.perf_counter() - asked)
                run()
            ratios.append((time.perf_counter() - start) / STEPS_BESIDE / alone)
            left -= STEPS_BESIDE
        for _ in batches:
            pass
    return ratios, waits


@contextmanager
def counted(seconds):
    """Add to `seconds` what jobs of decoding threads, compiled code inside of them, and the garbage collector take."""
    inside = threading.local()

    def timed(function, *arguments, kind, **options):
        """A job may begin another job: then only the outer job counts."""
        if getattr(inside, kind, False):
            return function(*arguments, **options)
        setattr(inside, kind, True)
        start = time.thread_time()
        try:
            return function(*arguments, **options)
        finally:
            setattr(inside, kind, False)
            seconds[kind, threading.current_thread() is threading.main_thread()] += time.thread_time() - start

    submit = ThreadPool.submit

    def submit_timed(pool, function, *arguments):
        return submit(pool, partial(timed, function, kind="jobs"), *arguments)

    def on_collection(phase, _):
        if phase == "start":
            inside.begun = time.thread_time()
        else:
            seconds["collector", False] += time.thread_time() - inside.begun

    gc.callbacks.append(on_collection)
    compiled = [name for name in ("decode", "gather", "permute") if _engine.IS_BUILT]
    patches = [
        patch.object(_engine, name, partial(timed, getattr(_engine, name), kind="compiled")) for name in compiled
    ]
    patches.append(patch.object(ThreadPool, "submit", submit_timed))
    try:
        for each in patches:
            each.start()
        yield
    finally:
        gc.callbacks.remove(on_collection)
        for each in patches:
            each.stop()


def processor_time(folder, epochs, rows, options):
    """Processor seconds of an epoch: in the trainer's `next`, in decoding threads, in their Python, in the collector.

    The last figure is the part of all these that has the interpreter's lock.
    """
    loader, _ = StructuredDataset.create_dataloader(folder, batch_size=rows, **options)
    for _ in loader:
        pass
    found = []
    for epoch in range(1, epochs + 1):
        seconds = Counter()
        with counted(seconds):
            loader.set_epoch(epoch)
            batches, waits = iter(loader), 0.0
            while True:
                start = time.thread_time()
                batch = next(batches, None)
                waits += time.thread_time() - start
                if batch is None:
                    break
                time.sleep(STEP_SECONDS / 3)
        trainer = waits - seconds["compiled", True]
        python = seconds["jobs", False] - seconds["compiled", False]
        total = waits + seconds["jobs", False]
        found.append((trainer, seconds["jobs", False], python, seconds["collector", False], (trainer + python) / total))
    return [statistics.median(each) for each in zip(*found, strict=True)]


def main():
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 0.5
    epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    rows = int(sys.argv[3]) if len(sys.argv) > 3 else 8192
    warnings.simplefilter("ignore")  # of chunks too few for a good shuffle
    torch.set_num_threads(1)
    folder, numbers = str(tabular(gib)), torch.randn(64, 64)
    run = partial(step, calibrated(numbers), numbers)
    results = []
    print_machine()
    print(f"\nSteps of 3 ms, {rows} rows each. Milliseconds of waits; processor milliseconds of an epoch.")
    print(f"  {'':<24}{'beside / alone':>15}{'p50 wait':>10}{'p99 wait':>10}", end="")
    print(f"{'in next':>10}{'jobs':>8}{'Python':>8}{'collector':>11}{'with the lock':>15}")
    for name, options in CASES.items():
        ratios, waits = in_turns(folder, run, epochs, rows, options)
        middle, last = (sorted(waits)[int(len(waits) * part)] * 1e3 for part in (0.5, 0.99))
        ratio = statistics.median(ratios)
        row = {"case": name, "beside_of_alone": ratio, "p50_wait_ms": middle, "p99_wait_ms": last, "ratios": ratios}
        print(f"  {name:<24}{ratio:>15.3f}{middle:>10.2f}{last:>10.2f}", end="")
        if not options["num_workers"]:
            trainer, jobs, python, collector, share = processor_time(folder, epochs, rows, options)
            row |= {"trainer_s": trainer, "jobs_s": jobs, "python_s": python, "collector_s": collector, "lock": share}
            print(
                "".join(
                    f"{1e3 * each:>{width}.1f}"
                    for each, width in zip((trainer, jobs, python, collector), (10, 8, 8, 11), strict=True)
                ),
                f"{share:>14.1%}",
                end="",
            )
        print()
        results.append(row)
    save("trainer", gib=gib, rows_of_step=rows, step_seconds=STEP_SECONDS, page_cache="warm", rows=results)


if __name__ == "__main__":
    main()
