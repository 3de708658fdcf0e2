"""Which packs share a microbatch: those that cost about the same."""

from collections.abc import Sequence

import numpy as np

from torch_dataloader_utils.packing.plan.schedule import Schedule


def arrange_packs(
    packs: Sequence[Sequence[int]],
    *,
    spans: Sequence[int],
    loads: Sequence[int],
    num_ranks: int,
) -> Schedule:
    """The schedule that lays packs out by falling span, then falling load; every other microbatch is mirrored.

    Ranks wait for the slowest of a microbatch. With packs of one span in falling order, the slowest of microbatch
    m + 1 is no slower than the mean of microbatch m. So the sum of the slowest over microbatches is at most the sum
    of the means, which nothing can beat, plus the greatest load (with several spans: plus one greatest load for
    each). For packs of one span no other order of the same packs does better.

    Mirroring gives the heaviest pack of a microbatch to the first and to the last rank in turn, so that the totals
    of the ranks stay close, too. Inside a pack the samples are in ascending order.

    Args:
        packs: positions per pack; the spans add up to whole microbatches.
        spans: ranks per pack.
        loads: compute per rank, in any unit.
        num_ranks: ranks of a microbatch.
    """
    order = sorted(range(len(packs)), key=lambda pack: (-spans[pack], -loads[pack], pack))
    first_slots = np.cumsum([0, *(spans[pack] for pack in order)])[:-1]
    mirrored: list[list[int]] = [[] for _ in range(-(-sum(spans) // num_ranks))]
    for pack, slot in zip(order, first_slots.tolist(), strict=True):
        mirrored[slot // num_ranks].append(pack)
    laid = [
        pack for index, microbatch in enumerate(mirrored) for pack in (microbatch[::-1] if index % 2 else microbatch)
    ]
    return Schedule.of_packs(
        [sorted(packs[pack]) for pack in laid],
        [spans[pack] for pack in laid],
        num_ranks=num_ranks,
    )
