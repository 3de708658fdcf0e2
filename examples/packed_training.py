"""A tiny packed language model on 4 processes: 2 data-parallel × 2 context-parallel ranks, gloo on CPUs.

    python examples/packed_training.py                   lengths are known: no rank sends a token to another
    python examples/packed_training.py --communicate     lengths are gathered, sequences moved by all-to-all

Both print the same losses. The model learns to count: every sequence goes up by a fixed step, modulo the vocabulary.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the process group is made: docs/how-to/ddp.md, "When a job ends"
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from torch_dataloader_utils.megatron.schedules import (
    ComputeBalancedScheduler,
    CostModel,
    PackedBatch,
    PackedLoader,
    PackedSeqParams,
    PackingConfig,
    PackingGroups,
    PlannedPackedLoader,
    ScheduledBatch,
    create_packing_groups,
    get_batch_on_this_rank_for_sequence_packing,
    get_thd_partitioned_indices,
    pad_sample,
)

DP_SIZE, CP_SIZE = 2, 2
VOCABULARY, HIDDEN = 32, 32
NUM_SEQUENCES, GLOBAL_BATCH_SIZE = 640, 32


class CountingSequences:
    """Sequence i starts at i and goes up by 1 + i mod 5; lengths are spread like those of real documents."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.lengths = torch.randn(NUM_SEQUENCES, generator=generator).mul(0.8).add(3).exp().clamp(4, 120).long()

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        values = (index + torch.arange(int(self.lengths[index]) + 1) * (1 + index % 5)) % VOCABULARY
        return {
            "tokens": values[:-1],
            "labels": values[1:],
            "loss_mask": torch.ones(len(values) - 1),
            "position_ids": torch.arange(len(values) - 1),
        }


class GatherTokens(torch.autograd.Function):
    """The rows of all ranks of a group, in rank order; gradients of all ranks add up where the rows came from."""

    @staticmethod
    def forward(ctx, rows: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group, ctx.num_rows = group, len(rows)
        parts = [torch.empty_like(rows) for _ in range(group.size())]
        dist.all_gather(parts, rows.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient.split(ctx.num_rows)[ctx.group.rank()], None


class PackedModel(nn.Module):
    """An embedding, one attention layer that stays inside each sequence, and a head."""

    def __init__(self, groups: PackingGroups) -> None:
        super().__init__()
        self.groups = groups
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.mlp = nn.Sequential(
            nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, VOCABULARY)
        )

    def forward(self, batch: PackedBatch) -> Tensor:
        """Logits of the tokens of this rank, [tokens, vocabulary]."""
        hidden = self.embedding(batch.tokens[0])
        query, key, value = self.qkv(hidden).chunk(3, dim=-1)
        # Every rank sees the keys of the whole row; real models pass them round a ring instead.
        keys, values = (GatherTokens.apply(part, self.groups.cp) for part in (key, value))
        mask = attention_mask(batch.packed_seq_params, batch.tokens.numel(), self.groups)
        attended = scaled_dot_product_attention(query[None], keys[None], values[None], attn_mask=mask[None])[0]
        return self.mlp(hidden + attended)


def attention_mask(params: PackedSeqParams, tokens_per_rank: int, groups: PackingGroups) -> Tensor:
    """Which keys (columns, in order of rank) a token of this rank (rows) attends to: its own sequence, no later one."""
    bounds = params.cu_seqlens_q_padded
    places = [get_thd_partitioned_indices(bounds, tokens_per_rank * CP_SIZE, CP_SIZE, rank) for rank in range(CP_SIZE)]
    keys, queries = torch.cat(places), places[groups.cp.rank()]
    key_sequences, query_sequences = (torch.searchsorted(bounds, each, right=True) for each in (keys, queries))
    return (query_sequences[:, None] == key_sequences) & (queries[:, None] >= keys)


def global_batches(groups: PackingGroups, communicate: bool) -> Iterator[ScheduledBatch]:
    """The global batches of one epoch, by either path."""
    source = CountingSequences()
    scheduler = ComputeBalancedScheduler(128, CP_SIZE, DP_SIZE, cost=CostModel.transformer(HIDDEN))
    if not communicate:
        return iter(
            PlannedPackedLoader(
                source, source.lengths.numpy(), scheduler, global_batch_size=GLOBAL_BATCH_SIZE, groups=groups
            )
        )
    per_rank = GLOBAL_BATCH_SIZE // DP_SIZE
    samples = [
        pad_sample(source[index])
        for first in range(groups.dp.rank() * per_rank, NUM_SEQUENCES, GLOBAL_BATCH_SIZE)
        for index in range(first, first + per_rank)
    ]
    return iter(PackedLoader(samples, PackingConfig(max_seqlen_per_dp_cp_rank=128), per_rank, groups, scheduler))


def run_rank(rank: int, folder: str, communicate: bool) -> None:
    """One process. The group goes last, when the model and `PackingGroups` are gone: docs/how-to/ddp.md, at the end."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=DP_SIZE * CP_SIZE)
    train(communicate)
    dist.destroy_process_group()


def train(communicate: bool) -> None:
    """An optimizer step for every global batch."""
    groups = create_packing_groups(dp_size=DP_SIZE, cp_size=CP_SIZE)
    torch.manual_seed(0)
    model = PackedModel(groups)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step, scheduled in enumerate(global_batches(groups, communicate)):
        losses = torch.zeros(())
        for _ in range(scheduled.num_microbatches):
            batch = get_batch_on_this_rank_for_sequence_packing(scheduled.data_iterator, groups=groups)
            token_losses = cross_entropy(model(batch), batch.labels[0], reduction="none") * batch.loss_mask[0]
            # Divided by the tokens of the global batch, not of the microbatch: every token counts the same.
            loss = token_losses.sum() / scheduled.seqlen_sum
            loss.backward()
            losses += loss.detach()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        dist.all_reduce(losses)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and step % 4 == 0:
            print(f"step {step:2d}  {scheduled.num_microbatches} microbatches  loss {losses:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--communicate", action="store_true", help="gather lengths and move sequences")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, args=(str(Path(folder)), options.communicate), nprocs=DP_SIZE * CP_SIZE)
