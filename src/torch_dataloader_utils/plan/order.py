"""The order in which an epoch deals its chunks."""

from torch_dataloader_utils._core.options import PlanOptions
from torch_dataloader_utils._core.permute import Purpose, permutation
from torch_dataloader_utils._core.units import Units


def order_chunks(chunks: Units, options: PlanOptions, epoch: int) -> Units:
    """The chunks in this epoch's order: as stored, or permuted by (seed, epoch) with `shuffle`."""
    if not options.shuffle:
        return chunks
    return chunks.take(permutation(len(chunks), seed=options.seed, epoch=epoch, purpose=Purpose.CHUNKS))
