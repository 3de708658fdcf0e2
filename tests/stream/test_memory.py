"""Peak memory of a rank, held against the formula in docs/performance.md, on row groups of 256 MB."""

import subprocess
import sys
from contextlib import closing

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import torch_dataloader_utils as tdu
from torch_dataloader_utils import Decoding
from torch_dataloader_utils._observe.counters import WorkerCounters
from torch_dataloader_utils.stream.decode import DecodeOptions, DecodeScheduler
from torch_dataloader_utils.stream.decode_jobs import GroupToDecode

GROUP_BYTES = 256 << 20
PROGRAM = """
import resource, sys
import torch_dataloader_utils as tdu
loader, _ = tdu.StructuredDataset.create_dataloader(
    sys.argv[1], batch_size=8192, num_workers=0,
    decoding=tdu.Decoding(threads=int(sys.argv[2]), ahead_bytes=int(sys.argv[3])))
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
start = peak()
for batch in loader:
    pass
print(peak() - start)
"""


@pytest.fixture(scope="module")
def large_groups(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "table.parquet"
    rows = GROUP_BYTES // 64
    schema = pa.schema([(f"c{i}", pa.float64()) for i in range(8)])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for group in range(6):
            column = np.arange(rows, dtype=np.float64) + group
            writer.write_table(pa.table(dict.fromkeys(schema.names, column)), row_group_size=rows)
    return path


@pytest.mark.full
@pytest.mark.parametrize(("threads", "budget"), [(1, 0), (2, 512 << 20)])
def test_peak_memory_stays_below_the_formula(large_groups, threads, budget):
    """The budget, or the row group that is needed now; the one being delivered, and the one before it, which the
    trainer's last batch still looks at; and what each decoding thread has read and not yet decoded.
    """
    assert psutil.virtual_memory().available > 4 << 30
    command = [sys.executable, "-c", PROGRAM, str(large_groups), str(threads), str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    assert int(done.stdout) < max(budget, GROUP_BYTES) + (2 + threads) * GROUP_BYTES


def test_row_groups_of_repeated_values_count_as_they_are_decoded(tmp_path):
    column = np.zeros(100_000, dtype=np.int64)  # 800 kB; a few hundred bytes as they are stored
    pq.write_table(pa.table({"n": np.tile(column, 20)}), tmp_path / "a.parquet", row_group_size=len(column))
    _, dataset = tdu.StructuredDataset.create_dataloader(tmp_path, num_workers=0)
    (work,) = dataset.plan.worker_inputs(0)
    options = DecodeOptions(threads=2, budget_bytes=5 * column.nbytes + 1000)
    decoder = DecodeScheduler(work, dataset.pipeline.reader, dataset.pipeline.shaper, options, WorkerCounters())
    try:
        assert decoder.room_for(range(20)) == 3  # one a thread and the one that is delivered: nothing is known yet
        decoder.submit([GroupToDecode(0)]).rows(0).result()
        assert decoder.room_for(range(1, 20)) == 4
    finally:
        decoder.close()


def test_sources_of_a_blend_hold_two_row_groups_of_repeated_values_whatever_the_threads(tmp_path):
    column = np.zeros(100_000, dtype=np.int64)
    loaders = []
    for name in ("a", "b"):
        pq.write_table(pa.table({"n": np.tile(column, 12)}), tmp_path / f"{name}.parquet", row_group_size=len(column))
        options = {"batch_size": len(column), "decoding": Decoding(threads=4, ahead_bytes=column.nbytes)}
        loaders.append(
            tdu.StructuredDataset.create_dataloader(tmp_path / f"{name}.parquet", num_workers=0, **options)[0]
        )
    with closing(iter(tdu.blend(loaders, [1, 1]))) as batches:
        for _ in range(8):
            next(batches)
        assert max(loader.metrics().row_groups for loader in loaders) <= 4 + 2
