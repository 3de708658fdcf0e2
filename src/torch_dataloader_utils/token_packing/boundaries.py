"""Document boundaries of a whole batch, as kernels for attention over variable lengths take them."""

import torch
from torch import Tensor

from torch_dataloader_utils.shape.ragged import Ragged


def flat_cu_seqlens(cu_seqlens: Ragged, sequence_length: int) -> Tensor:
    """The boundaries of B samples laid end to end, int32, from 0 to B * sequence_length.

    The end of one sample is the beginning of the next:

        samples [0, 3, 8] and [0, 8], sequence_length=8      0 3 8 16
    """
    ends = cu_seqlens.values
    samples = torch.arange(len(cu_seqlens), device=ends.device, dtype=ends.dtype)
    sample = torch.repeat_interleave(samples, cu_seqlens.lengths, output_size=len(ends))
    flat = (ends + sample * sequence_length)[ends > 0]
    return torch.cat([flat.new_zeros(1), flat])
