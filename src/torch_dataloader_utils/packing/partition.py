"""Which tokens of a packed row a context-parallel rank computes."""

import torch

from torch_dataloader_utils.errors import ConfigError


def get_thd_partitioned_indices(
    cu_seqlens_padded: torch.Tensor, total_tokens: int, cp_size: int, cp_rank: int
) -> torch.Tensor:
    """Positions in the packed row of the tokens of `cp_rank`, ascending per sequence, int64 [total_tokens / cp_size].

    Every sequence is cut into 2 × cp_size chunks of equal length, and rank r takes chunks r and 2 × cp_size − 1 − r:
    under a causal mask a token attends to all before it, so a front chunk and its mirror at the back cost every
    rank the same. The order of Transformer Engine's `thd_get_partitioned_indices`.

        cu_seqlens_padded 0 4 12, cp_size 2     rank 0: 0 3 | 4 5 10 11      rank 1: 1 2 | 6 7 8 9

    A rank alone takes all tokens as they are, of sequences of any length.

    No length is read back from the device, so lengths are not checked here; `packed_metadata` has padded them.

    Args:
        cu_seqlens_padded: where sequences begin, [sequences + 1]; on several ranks at multiples of 2 × cp_size.
        total_tokens: the last of them.
        cp_size: ranks that share the row.
        cp_rank: one of them.

    Raises:
        ConfigError: cp_rank not in [0, cp_size), or total_tokens not a multiple of 2 × cp_size on several ranks.
    """
    if not 0 <= cp_rank < cp_size:
        raise ConfigError(f"cp_rank is {cp_rank}; it must be in [0, {cp_size}).")
    if cp_size == 1:
        return torch.arange(total_tokens, device=cu_seqlens_padded.device)
    if total_tokens % (2 * cp_size):
        raise ConfigError(
            f"{total_tokens} packed tokens are not a multiple of {2 * cp_size} (2 × cp_size); pad every "
            "sequence to one."
        )
    starts = cu_seqlens_padded[:-1].to(torch.int64)
    chunks = cu_seqlens_padded.diff().to(torch.int64) // (2 * cp_size)
    # Two runs per sequence: (start of the run, its length), then every token of every run.
    run_starts = torch.stack([starts + chunks * cp_rank, starts + chunks * (2 * cp_size - 1 - cp_rank)], dim=1)
    run_lengths = chunks.repeat_interleave(2, output_size=2 * len(chunks))
    before = run_lengths.cumsum(0) - run_lengths
    shifts = (run_starts.reshape(-1) - before).repeat_interleave(run_lengths, output_size=total_tokens // cp_size)
    return shifts + torch.arange(total_tokens // cp_size, device=shifts.device)
