"""Next-fit in the original order, then as many packs as the ranks need: the schedule `dp_balanced`."""

import numpy as np

from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.packing.plan.fit import fitting_positions
from torch_dataloader_utils.packing.plan.schedule import Int64s, Schedule
from torch_dataloader_utils.packing.plan.shape import PackingShape, SchedulePolicy

Packs = list[list[int]]


def next_fit_schedule(lengths: Int64s, *, shape: PackingShape, policy: SchedulePolicy) -> Schedule:
    """Sequences in order, a new pack whenever the next one does not fit; every pack on `cp_size` ranks.

    The rule of Megatron Core's DpBalancedScheduler. It balances the number of packs, not their compute.

        lengths 3 4 5 2 6 1 7, 8 tokens a pack, dp 2    packs 01 | 23 | 45 | 6     microbatches [01, 23] [45, 6]
        lengths 3 4 5 2 6 1                             packs 01 | 23 | 45         one short: 5 moves out
                                                                                   microbatches [01, 23] [4, 5]

    Raises:
        ConfigError: an over-long sequence, or too few sequences for the ranks, unless the policy allows it.
    """
    kept = fitting_positions(lengths, capacity=shape.pack_tokens, policy=policy)
    packs = split_last_packs(
        next_fit(lengths, kept, capacity=shape.pack_tokens),
        multiple=shape.dp_size * shape.microbatch_multiple,
        policy=policy,
    )
    return Schedule.of_packs(packs, [shape.cp_size] * len(packs), num_ranks=shape.num_ranks)


def next_fit(lengths: Int64s, positions: Int64s, *, capacity: int) -> Packs:
    """Runs of `positions`, each as long as its sum of lengths stays within `capacity`; one too long is alone."""
    ends = np.cumsum(lengths[positions])
    listed = positions.tolist()
    packs: Packs = []
    start = 0
    while start < len(listed):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + capacity, side="right")), start + 1)
        packs.append(listed[start:stop])
        start = stop
    return packs


def split_last_packs(packs: Packs, *, multiple: int, policy: SchedulePolicy) -> Packs:
    """As many packs as the next multiple: the last sequences of the last packs become packs of their own.

    A pack gives its last sequence, then its last but one, until one is left; then the pack before it gives.
    What moved stands at the end, in the order in which it moved.

    Raises:
        ConfigError: every pack holds one sequence and the multiple is not reached (policy "error").
    """
    missing = -len(packs) % multiple
    if not missing:
        return packs
    kept = [list(pack) for pack in packs]
    moved: Packs = []
    for pack in reversed(kept):
        while len(pack) > 1 and len(moved) < missing:
            moved.append([pack.pop()])
    if len(moved) < missing and policy.missing_packs == "error":
        raise ConfigError(
            f"{sum(map(len, packs))} sequences make at most {len(packs) + len(moved)} packs; the ranks need a multiple "
            f"of {multiple} (dp_size × microbatch_group_size_per_vp_stage). Use a larger global batch, or "
            'missing_packs="fill" to give the idle ranks a padding sequence without loss.'
        )
    return kept + moved + [[] for _ in range(missing - len(moved))]
