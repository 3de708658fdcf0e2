"""Microbatches handed to the training loop: one iterator, or one per virtual pipeline stage."""

from collections.abc import Iterator

from torch_dataloader_utils.packing.groups import PackingGroups, group_rank, group_size
from torch_dataloader_utils.packing.microbatches import METADATA_KEYS, Microbatch

DataIterator = Iterator[Microbatch] | None | list[Iterator[Microbatch] | None]
"""None on every tensor rank but 0; a list of one entry per stage with virtual pipeline stages."""


def create_data_iterator(
    microbatches: list[Microbatch], groups: PackingGroups, virtual_pipeline_size: int | None = None
) -> DataIterator:
    """The iterator of this process over its packed microbatches.

    With virtual pipeline stages a process holds several stages, and each goes through all microbatches. Only the
    first stage of the first process and the last of the last get tokens; the others get the metadata.

        pp 2, virtual 2      process 0: [tokens, metadata]     process 1: [metadata, tokens]
    """
    has_data = group_rank(groups.tp) == 0
    if virtual_pipeline_size is None or virtual_pipeline_size == 1:
        return iter(microbatches) if has_data else None
    if not has_data:
        return [None] * virtual_pipeline_size
    pp_rank, pp_size = group_rank(groups.pp), group_size(groups.pp)
    metadata = [{key: each[key] for key in METADATA_KEYS if key in each} for each in microbatches]
    needs_tokens = [
        (pp_rank == 0 and stage == 0) or (pp_rank == pp_size - 1 and stage == virtual_pipeline_size - 1)
        for stage in range(virtual_pipeline_size)
    ]
    return [iter(microbatches if needed else metadata) for needed in needs_tokens]
