"""The demo from end to end; see `examples.demo`. Exits with 1 if the audit fails."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from examples.demo.audit import AuditError, audit
from examples.demo.data import FILE_ROWS, write_trips
from examples.demo.table import audit_table, write_table
from examples.demo.train import EPOCHS, make_loader

from torch_dataloader_utils import StructuredDataset

RANKS = 2
HOME = Path(".demo")


def main() -> int:
    """Run all steps; gives the exit status."""
    started = time.monotonic()
    shutil.rmtree(HOME, ignore_errors=True)
    trips, orc, received = HOME / "trips", HOME / "trips.orc", HOME / "received"
    received.mkdir(parents=True)

    _say("1. Data")
    rows = write_trips(trips, orc)
    for path in [*sorted(trips.rglob("*.parquet")), orc]:
        print(f"   {path.stat().st_size:>9,} bytes  {path}")

    _say("2. The plan of epoch 0, made from the footers alone; every rank makes the same one")
    loader, _ = make_loader(trips, num_ranks=RANKS, rank=0)
    print(loader.plan.explain())

    _say(f"3. Training with torch.distributed (gloo), {RANKS} processes")
    _train(trips, received)

    _say("4. The trips once more as an Iceberg table in an embedded catalog, a year of them deleted; and the audit")
    config, snapshot_id = write_table(orc, HOME / "iceberg")
    try:
        lines = audit(received, num_rows=rows, num_ranks=RANKS, num_epochs=EPOCHS)
        lines.append(_compare_orc(orc, rows))
        lines.append(audit_table(config, snapshot_id, rows=rows, deleted=sum(FILE_ROWS[2023]), num_ranks=3))
    except AuditError as error:
        print(f"   FAILED: {error}")
        return 1
    for line in lines:
        print(f"   ok  {line}")
    print(
        f"\n{time.monotonic() - started:.0f} seconds. Now read examples/demo/train.py: all that a trainer has to write."
    )
    return 0


def _train(trips: Path, received: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    command = [*torchrun, "-m", "examples.demo.train", str(trips), str(received)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _compare_orc(orc: Path, rows: int) -> str:
    """Read the ORC copy as the ranks of another job would, and count its rows."""
    row_ids: list[int] = []
    for rank in range(3):
        loader, _ = StructuredDataset.create_dataloader(
            orc, format="orc", columns=["row_id"], batch_size=500, num_ranks=3, rank=rank
        )
        row_ids += [row_id for batch in loader for row_id in batch["row_id"].tolist()]
    if sorted(row_ids) != list(range(rows)):
        raise AuditError(f"the ORC copy gave {len(row_ids)} rows of {rows}, or other ones")
    return f"ORC copy: {len(row_ids):,} rows over 3 ranks, each once"


def _say(title: str) -> None:
    print(f"\n{title}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
