"""Tokenise on two nodes of a Ray cluster and train on a third: RayWorkers takes a heavy transform off the trainer.

python -m examples.ray_tokenize
"""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch
from ray.cluster_utils import Cluster
from torch import nn

from torch_dataloader_utils import RayWorkers, StructuredDataset

TEXTS, LENGTH, VOCABULARY = 3_000, 64, 512


class Tokenize:
    """Stands for a tokenizer that is slow: hashes the words of each text, and pads or cuts them to one length."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Token ids int64 [rows, LENGTH], the row numbers, and the process that made them."""
        ids = torch.zeros(len(batch["text"]), LENGTH, dtype=torch.int64)
        for row, text in enumerate(batch["text"]):
            words = [sum(word.encode()) % (VOCABULARY - 1) + 1 for word in text.split()[:LENGTH]]
            ids[row, : len(words)] = torch.tensor(words)
        return {"ids": ids, "row": batch["row"], "pid": torch.tensor([os.getpid()])}


def write_texts(folder: Path) -> None:
    """Some texts as Parquet."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [" ".join(f"word{(row * 7 + word) % 997}" for word in range(5 + row % 80)) for row in range(TEXTS)]
    pq.write_table(pa.table({"row": range(TEXTS), "text": texts}), folder / "texts.parquet", row_group_size=250)


def main() -> None:
    """Start three nodes on this machine; the two that tokenise have the resource that the workers ask for."""
    write_texts(Path(".demo/texts"))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=2, resources={"tokenise": 2}, object_store_memory=100 << 20)
    ray.init(address=cluster.address)
    loader, dataset = StructuredDataset.create_dataloader(
        ".demo/texts",
        batch_size=50,
        shuffle=True,
        shuffle_rows=1_000,
        transform=Tokenize(),
        workers=RayWorkers(4, actors=2, resources={"CPU": 1, "tokenise": 1}),
    )
    model = nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Flatten(), nn.Linear(16 * LENGTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        rows, pids = [], set()
        for batch in loader:
            optimizer.zero_grad()
            model(batch["ids"]).square().mean().backward()
            optimizer.step()
            rows += batch["row"].tolist()
            pids |= set(batch["pid"].tolist())
        assert sorted(rows) == list(range(TEXTS))
        print(f"epoch {epoch}: {len(rows):,} texts, each once, from {len(pids - {os.getpid()})} actors")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
