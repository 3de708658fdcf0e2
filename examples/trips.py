"""Parts that all examples use: the data of `make demo`, written if it is not there, an audit and a validation."""

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from examples.demo.data import write_trips

FEATURES = ["distance", "minutes", "passengers"]
NUM_ROWS = 40_030
# Rows of the files that are kept for validation: trips of a later year.
VALIDATION_ROWS = {2025: (3_001, 2_002)}


def find_trips(home: Path = Path(".demo")) -> str:
    """The directory of the trips; many processes may call this at once."""
    return _written(home / "trips")


def find_validation(home: Path = Path(".demo")) -> str:
    """The directory of 5,003 other trips, for validation."""
    return _written(home / "validation", file_rows=VALIDATION_ROWS, seed=8)


def _written(folder: Path, **options: Any) -> str:
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=folder.parent))
        write_trips(partial / folder.name, partial / "trips.orc", **options)
        with suppress(OSError):  # another process was first
            (partial / folder.name).rename(folder)
        shutil.rmtree(partial)
    return str(folder.resolve())


def validate(predict: Callable[[torch.Tensor], torch.Tensor], batches: Iterable[Any]) -> None:
    """Print the mean error over the trips of all ranks; each trip counts once. Call it on every rank.

    A rank adds up errors and rows, and not means, because ranks and batches differ in rows.
    """
    sums = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for batch in batches:
            errors = (predict(batch["x"]).squeeze(1) - batch["fare"]).abs()
            sums += torch.tensor([errors.double().sum(), len(errors)])
    dist.all_reduce(sums)
    report_error(float(sums[0] / sums[1]), int(sums[1]))


def report_error(error: float, rows: int) -> None:
    """Print the mean error of a validation, on rank 0."""
    if dist.get_rank() == 0:
        print(f"validation: mean error {error:.2f} over {rows:,} rows", flush=True)


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
