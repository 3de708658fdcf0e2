"""Gather the lengths of a whole global batch from the part that each data-parallel rank has read."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from torch_dataloader_utils.errors import DataError
from torch_dataloader_utils.megatron.schedules.groups import (
    PackingGroups,
    communication_device,
    gather_rows,
    group_size,
)
from torch_dataloader_utils.megatron.schedules.plan.schedule import Int64s
from torch_dataloader_utils.megatron.schedules.samples import Item, Samples, read_samples

# A rank gives one of these two in place of its number of sequences.
_FAILED, _ENDED = -1, -2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GlobalBatch:
    """Global batch in one data-parallel rank: the sequences of this rank, and the lengths of all sequences.

    The global id of a sequence is its position, data-parallel rank 0 first.

    Attributes:
        local: sequences that this process has read.
        original_lengths: int64 [n]: lengths of all sequences without padding.
        padded_lengths: int64 [n]: lengths of all sequences with padding.
        offsets: int64 [dp_size + 1]: ids of data-parallel rank d are offsets[d]:offsets[d + 1].
    """

    local: Samples
    original_lengths: Int64s
    padded_lengths: Int64s
    offsets: Int64s


def get_batch_and_global_seqlens(
    data_iterator: Iterator[Item], num_microbatches: int, groups: PackingGroups
) -> GlobalBatch:
    """Read `num_microbatches` items and gather the lengths of all data-parallel ranks; a collective call.

    Ranks may read different numbers of sequences; a rank at the end of its iterator adds the sequences it has. If the
    items of all ranks together have no sequence, the next items are read.

    Raises:
        StopIteration: all iterators have ended; raised on all ranks.
        DataError: another rank could not read its part; raised on all other ranks, so that no rank waits.
    """
    local, counts = _read_sequences(data_iterator, num_microbatches, groups)
    rows = torch.zeros((int(counts.max()), 2), dtype=torch.int64)
    rows[: len(local.lengths)] = torch.from_numpy(local.lengths)
    gathered = gather_rows(rows.to(communication_device(groups)), groups.dp)
    lengths = torch.cat([rows[:count] for rows, count in zip(gathered, counts.tolist(), strict=True)]).cpu().numpy()
    return GlobalBatch(
        local=local,
        original_lengths=lengths[:, 0].copy(),
        padded_lengths=lengths[:, 1].copy(),
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
    )


def _read_sequences(
    data_iterator: Iterator[Item], num_microbatches: int, groups: PackingGroups
) -> tuple[Samples, Int64s]:
    """Read items until any rank has a sequence.

    Return the sequences of this rank, and the number of sequences of each data-parallel rank.
    """
    while True:
        try:
            local = read_samples(data_iterator, num_microbatches)
        except Exception:
            # Any exception: the other ranks are about to wait for this rank.
            announce_failure(groups)
            raise
        count = len(local.lengths) if local.num_items else _ENDED
        counts = _gather_counts(count, _content(local) if group_size(groups.cp) > 1 else b"", groups)
        if (counts == _ENDED).all():
            raise StopIteration
        if counts.max() > 0:
            return local, np.maximum(counts, 0)


def _content(samples: Samples) -> bytes:
    """Return lengths and tokens as bytes, to compare context-parallel ranks: equal lengths alone prove little."""
    tokens = (fields["tokens"].numpy(force=True).tobytes() for fields in samples.fields)
    return b"".join([samples.lengths.tobytes(), *tokens])


def announce_failure(groups: PackingGroups) -> None:
    """Report a failure to the ranks in `get_batch_and_global_seqlens`, through the collective call of that function."""
    _gather_counts(_FAILED, b"", groups)


def _gather_counts(count: int, content: bytes, groups: PackingGroups) -> Int64s:
    """Return the number of sequences that each data-parallel rank has read, or `_ENDED`, int64 [dp_size].

    Raises:
        DataError: a rank failed, or context-parallel ranks of one data-parallel rank have read different data.
    """
    digest = int.from_bytes(hashlib.blake2b(content, digest_size=7).digest())
    row = torch.tensor([count, digest], dtype=torch.int64, device=communication_device(groups))
    table = torch.stack(gather_rows(row, groups.dp_cp)).cpu().numpy()
    failed = table[:, 0] == _FAILED
    if count != _FAILED and failed.any():
        raise DataError(
            f"rank {int(failed.argmax())} of the data × context parallel group could not read its part of the "
            "global batch; its own error says why."
        )
    by_dp_rank = table.reshape(group_size(groups.dp), -1, 2)
    differs = (by_dp_rank != by_dp_rank[:, :1]).any(axis=(1, 2))
    if count != _FAILED and differs.any():
        raise DataError(
            f"the context-parallel ranks of data-parallel rank {int(differs.argmax())} have read different "
            "sequences. Give all of them the same data iterator: shard by data-parallel rank only."
        )
    counts: Int64s = by_dp_rank[:, 0, 0]
    return counts
