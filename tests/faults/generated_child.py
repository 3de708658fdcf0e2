"""Verdicts on generated hostile files, each in a child of its own with little memory and time."""

import json
import os
import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from tests.faults.hostile_child import verdict
from tests.faults.hostile_files import deep, dictionary_bomb, good, many_columns, many_groups, page_bomb
from tests.process_limits import limit_process

CPU_SECONDS = 30

CASES: dict[str, Callable[[], bytes]] = {
    "good": good,
    "columns": lambda: many_columns(200_000),
    "more-columns-than-thrift-takes": lambda: many_columns(1_000_000),
    "groups": lambda: many_groups(1_000_000),
    "deep": lambda: deep(20_000),
    "long-footer": lambda: good()[:-8] + bytes(1) + (70 << 20).to_bytes(4, "little") + b"PAR1",
    "rows-below-zero": lambda: good(group_rows=-5, file_rows=-5),
    "file-rows-below-zero": lambda: good(file_rows=-1),
    "values-below-zero": lambda: good(values=-3),
    "length-below-zero": lambda: good(compressed=-9),
    "offset-below-zero": lambda: good(offset=-4),
    "offset-outside": lambda: good(offset=1 << 40),
    "length-outside": lambda: good(compressed=1 << 40),
    "2^40-rows": lambda: good(group_rows=1 << 40, file_rows=1 << 40),
    "2^31-rows": lambda: good(group_rows=(1 << 31) - 2, file_rows=(1 << 31) - 2, values=(1 << 31) - 2),
    "200-million-rows": lambda: good(group_rows=200_000_000, file_rows=200_000_000, values=200_000_000),
    "fewer-rows-than-said": lambda: good(group_rows=4, file_rows=4),
    "page-of-2^30-values": lambda: good(page_values=1 << 30),
    "bomb-that-says-so": lambda: page_bomb(64 << 20, declared=1 << 33),
    "bomb-that-lies": lambda: page_bomb(64 << 20, declared=100),
    "dictionary-bomb": lambda: dictionary_bomb(1 << 20, 1_000_000),
    "small-dictionary": lambda: dictionary_bomb(100, 1000),
}


def main() -> None:
    """One line a case: its name, verdict, seconds of processor time, and MiB that the process grew by."""
    for name, make in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.parquet"
            _in_child(lambda path=path, make=make: path.write_bytes(make()))  # type: ignore[misc]
            _in_child(lambda path=path: _judge(path))  # type: ignore[misc]


def _judge(path: Path) -> None:
    warnings.simplefilter("ignore")
    pa.set_cpu_count(1)
    limit_process(CPU_SECONDS)
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    answer = {"case": path.stem, **verdict(path)}
    answer["seconds"] = time.process_time() - begin
    answer["grown_mib"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    print(json.dumps(answer), flush=True)


def _in_child(work: Callable[[], object]) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
