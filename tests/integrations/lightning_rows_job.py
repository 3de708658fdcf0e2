"""One rank: Lightning over a DataLoader of RowDataset, into which it puts a DistributedSampler of its own, and over
a stream under a token budget, whose length it asks for once.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning.pytorch import Trainer, seed_everything
from torch.utils.data import DataLoader

from tests.integrations.jobs import BATCH_ROWS, NUM_RANKS
from tests.integrations.lightning_job import Module
from torch_dataloader_utils import RowDataset, StructuredDataset, TokenBatches

NUM_EPOCHS = 2


def fit(loader: Any) -> list[list[int]]:
    """Rows of every training step."""
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=NUM_RANKS,
        max_epochs=NUM_EPOCHS,
        enable_checkpointing=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    trainer.fit(module, loader)
    return module.seen["train"]


def rows(table: Path, **options: Any) -> DataLoader[Any]:
    """Single rows, collated."""
    return DataLoader(RowDataset(table), batch_size=BATCH_ROWS, shuffle=True, **options)


def tokens(table: Path) -> Any:
    """Batches of rows whose numbers, as lengths, are limited."""
    limits = {"shuffle_rows": 20, "token_batches": TokenBatches("row", max_tokens=400)}
    return StructuredDataset.create_dataloader(
        table, num_ranks="auto", num_workers=0, shuffle=True, split_rows=9, **limits
    )[0]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    given_table, given_folder = map(Path, sys.argv[1:])
    seed_everything(1, verbose=False)
    report = {
        "threads": fit(rows(given_table)),
        "processes": fit(rows(given_table, num_workers=1, persistent_workers=True)),
        "tokens": fit(tokens(given_table)),
    }
    (given_folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(report))
    dist.destroy_process_group()
