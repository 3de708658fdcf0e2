"""What counting costs: µs a batch with the meter taken out, with it, with a callback, and with progress shown.

The batches are small views (64 rows of three columns), so that nothing hides the difference.
"""

import logging
import pickle
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._observe.callbacks import LoaderCallback
from torch_dataloader_utils._observe.counters import COUNTED, WorkerCounters
from torch_dataloader_utils._observe.meter import LoaderMeter
from torch_dataloader_utils.stream.tickets import Answer

ROWS, BATCH, ROUNDS = 640_000, 64, 15


class WithoutMeter(LoaderMeter):
    """Hands batches through."""

    def watch(self, batches: Any, run: Any) -> Any:
        """As if nobody counted."""
        del run
        return batches


def microseconds_per_batch(loader: Any) -> float:
    """One pass, in processor time of the trainer's thread: what else runs on the machine is not in it."""
    begin = time.thread_time()
    count = sum(1 for _ in loader)
    return (time.thread_time() - begin) / count * 1e6


def main() -> None:
    """Alternating rounds; the least of each, because noise only adds."""
    logging.getLogger("torch_dataloader_utils.progress").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory() as folder:
        columns = {name: np.arange(ROWS, dtype=np.float32) for name in "xyz"}
        pq.write_table(pa.table(columns), Path(folder) / "table.parquet", row_group_size=80_000)

        def make(**options: Any) -> Any:
            return StructuredDataset.create_dataloader(folder, batch_size=BATCH, num_workers=0, **options)[0]

        loaders = {
            "meter taken out": make(),
            "as it is": make(),
            "one callback that does nothing": make(callbacks=[_Nothing()]),
            "show_progress, not a terminal": make(show_progress=True),
        }
        loaders["meter taken out"]._meter = WithoutMeter()
        times: dict[str, list[float]] = {name: [] for name in loaders}
        for _ in range(ROUNDS):
            for name, loader in loaders.items():
                times[name].append(microseconds_per_batch(loader))
    base = min(times["meter taken out"])
    for name, runs in times.items():
        print(f"{name:<34} {min(runs):7.2f} µs a batch  {min(runs) - base:+6.2f}")
    counters = WorkerCounters()
    counters.rows = counters.decoded_bytes = counters.decode_ns = 1 << 33
    sizes = {name: len(pickle.dumps(Answer(worker=1, tallies=(tally,)))) for name, tally in _tallies(counters).items()}
    for name, tally in _tallies(counters).items():
        answer = Answer(worker=1, tallies=(tally,))
        begin = time.perf_counter()
        for _ in range(100_000):
            pickle.loads(pickle.dumps(answer))
        print(f"answer {name}: {(time.perf_counter() - begin) * 10:.2f} µs there and back, {sizes[name]} bytes")


class _Nothing(LoaderCallback):
    pass


def _tallies(counters: WorkerCounters) -> dict[str, Any]:
    return {"without counts": (0,) * len(COUNTED), "with counts": counters.tally()}


if __name__ == "__main__":
    main()
