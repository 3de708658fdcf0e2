"""The cost of counting: µs a batch with the meter taken out, with it, with a callback, and with progress shown.

The batches are small views (64 rows of three columns), so that nothing hides the difference.
"""

import logging
import pickle
import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import alternate, print_machine, save

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._observe.callbacks import LoaderCallback
from torch_dataloader_utils._observe.meter import LoaderMeter
from torch_dataloader_utils.stream.transport.requests import BatchResponse

ROWS, BATCH, ROUNDS, SENT = 640_000, 64, 15, 100_000


class NoWatch:
    """A PassWatch that counts nothing."""

    waiting = nullcontext()

    def given(self, batch: Any) -> None:
        """See PassWatch."""

    def completed(self) -> None:
        """See PassWatch."""


class WithoutMeter(LoaderMeter):
    """Watches no pass."""

    def watching(self, run: Any) -> Any:
        """As if nobody counted."""
        del run
        return nullcontext(NoWatch())


def drain(loader: Any) -> int:
    """One pass; its batches."""
    return sum(1 for _ in loader)


def main() -> None:
    """Alternating rounds, by the clock of the trainer's thread; the least of each, because noise only adds."""
    print_machine()
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
        cases = {name: partial(drain, loader) for name, loader in loaders.items()}
        times = alternate(cases, runs=ROUNDS, clock="thread")
    batches = {name: min(runs) / (ROWS / BATCH) * 1e6 for name, runs in times.items()}
    for name, spent in batches.items():
        print(f"{name:<34} {spent:7.2f} µs a batch  {spent - batches['meter taken out']:+6.2f}")
    responses = {
        "without rows": BatchResponse(worker=1),
        "with rows": BatchResponse(worker=1, rows=(64,)),
    }
    times = alternate({name: partial(send, response) for name, response in responses.items()}, clock="thread")
    there_and_back = {name: min(runs) / SENT * 1e6 for name, runs in times.items()}
    for name, spent in there_and_back.items():
        print(f"response {name}: {spent:.2f} µs there and back, {len(pickle.dumps(responses[name]))} bytes")
    save("observing", microseconds_a_batch=batches, microseconds_a_response=there_and_back)


def send(response: BatchResponse) -> None:
    """The way of a worker's response through a queue, again and again."""
    for _ in range(SENT):
        pickle.loads(pickle.dumps(response))


class _Nothing(LoaderCallback):
    pass


if __name__ == "__main__":
    main()
