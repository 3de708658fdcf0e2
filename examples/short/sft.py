"""Conversations in packs, on two ranks; stops after 8 steps, and the next start goes on:
torchrun --nproc-per-node 2 -m examples.short.sft [a directory or table, such as an Iceberg table]"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the process group is made: docs/how-to/ddp.md, "When a job ends"
from examples.short.parts import language_model, tokenizer, write
from torch.nn.parallel import DistributedDataParallel

from torch_dataloader_utils import open_loader, pack_tokens
from torch_dataloader_utils.samples import Chat, model_inputs


def main(data: str, saved: Path = Path(".demo/short/sft.pt"), most_steps: int = 8) -> None:
    packing = pack_tokens("messages", 32, tokenizer=Chat(tokenizer()), fill="best_fit", over_long="truncate")
    loader = open_loader(data, pack=packing, batch_size=4, num_ranks="auto")
    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
    parallel = DistributedDataParallel(model)
    for _, batch in zip(range(most_steps), loader, strict=False):
        loss = parallel(**model_inputs(batch)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"loss {loss.item():.3f}")
    if dist.get_rank() == 0:
        parts = {"model": model, "optimizer": optimizer, "loader": loader}
        torch.save({name: part.state_dict() for name, part in parts.items()}, saved)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1] if len(sys.argv) > 1 else write("talks"))
    dist.destroy_process_group()
