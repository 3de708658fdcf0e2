"""One rank of a process group: RowDataset under DistributedSampler, and a token budget whose lengths ranks share."""

import json
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from tests.integrations.jobs import BATCH_ROWS
from torch_dataloader_utils import RowDataset, StructuredDataset, TokenBatches
from torch_dataloader_utils._core.row_group_task import ALL_ROWS, GroupRows
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.tables.reader import Reader

NUM_EPOCHS = 2


def sampled(table: Path) -> dict[str, Any]:
    """Rows of every step, with rows as dicts and as whole batches."""
    rows = RowDataset(table)
    sampler = DistributedSampler(rows, shuffle=True, seed=3)
    one_by_one = DataLoader(rows, batch_size=BATCH_ROWS, sampler=sampler, num_workers=1)
    together = DataLoader(range(len(rows)), batch_size=BATCH_ROWS, sampler=sampler, collate_fn=rows.take)
    report: dict[str, Any] = {"one by one": [], "together": []}
    for epoch in range(NUM_EPOCHS):
        sampler.set_epoch(epoch)
        for name, loader in (("one by one", one_by_one), ("together", together)):
            for batch in loader:
                assert batch["x"].tolist() == [row % 7 for row in batch["row"].tolist()]
                report[name].append(batch["row"].tolist())
    return report


def token_batches(table: Path) -> dict[str, Any]:
    """A stream whose rows have their number as length; which row groups this rank read before the first plan."""
    read: list[str] = []
    whole_read = Reader.read

    def noting(self: Reader, task: Any, rows: GroupRows = ALL_ROWS) -> Any:
        read.append(f"{Path(task.path).name} {task.ordinal}")
        return whole_read(self, task, rows)

    def load(max_tokens: int) -> Any:
        return StructuredDataset.create_dataloader(
            table,
            batch_size=BATCH_ROWS,
            num_ranks="auto",
            num_workers=0,
            shuffle=True,
            shuffle_rows=40,
            token_batches=TokenBatches("row", max_tokens=max_tokens),
        )[0]

    Reader.read = noting  # type: ignore[method-assign]
    loader = load(300)
    Reader.read = whole_read  # type: ignore[method-assign]
    steps = [batch["row"].tolist() for batch in loader]
    try:
        load(50)
    except ConfigError as error:
        refused = str(error)
    return {"read": read, "steps": steps, "announced": len(loader), "refused": refused}


if __name__ == "__main__":
    given_table, given_folder = map(Path, sys.argv[1:])
    dist.init_process_group("gloo")
    whole_report = {"sampled": sampled(given_table), "tokens": token_batches(given_table)}
    (given_folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(whole_report))
    dist.destroy_process_group()
