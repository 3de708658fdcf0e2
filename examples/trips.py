"""Parts that all examples use: the data of `make demo`, written if it is not there, and an audit over all ranks."""

import json
import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import torch.distributed as dist
from examples.demo.data import write_trips

FEATURES = ["distance", "minutes", "passengers"]
NUM_ROWS = 40_030


def find_trips(home: Path = Path(".demo")) -> str:
    """The directory of the trips; many processes may call this at once."""
    trips = home / "trips"
    if not trips.exists():
        home.mkdir(exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=home))
        write_trips(partial / "trips", partial / "trips.orc")
        with suppress(OSError):  # another process was first
            (partial / "trips").rename(trips)
        shutil.rmtree(partial)
    return str(trips.resolve())


def save_rows(folder: Path, row_ids: list[int]) -> None:
    """Write the rows of all ranks beside a checkpoint, for the audit after a resume. Call it on every rank.

    Only the audit needs them: the loader's state says what is left.
    """
    of_ranks: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(of_ranks, row_ids)
    if dist.get_rank() == 0:
        (folder / "rows.json").write_text(json.dumps([row for rows in of_ranks for row in rows]))


def load_rows(folder: Path) -> list[int]:
    """What `save_rows` wrote, on rank 0; nothing on the others."""
    rows: list[int] = json.loads((folder / "rows.json").read_text()) if dist.get_rank() == 0 else []
    return rows


def audit(epoch: int, row_ids: list[int]) -> None:
    """Print whether all ranks together received every row of an epoch once. Call it on every rank.

    Raises:
        RuntimeError: they did not.
    """
    of_ranks: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(of_ranks, row_ids)
    times = Counter(row for rows in of_ranks for row in rows)
    if times != Counter(range(NUM_ROWS)):
        raise RuntimeError(f"epoch {epoch}: {times.total()} rows received, {len(times)} different ones of {NUM_ROWS}")
    if dist.get_rank() == 0:
        shares = " + ".join(f"{len(rows):,}" for rows in of_ranks)
        print(f"epoch {epoch}: {shares} = {NUM_ROWS:,} rows, each once", flush=True)
