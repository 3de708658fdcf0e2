"""The rows that are left of an epoch after some steps, of one rank and of all ranks."""

from torch_dataloader_utils._core.position import Segment
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.plan.deal import Deal, RankDeal
from torch_dataloader_utils.plan.steps import batches_of_worker


def remaining_lanes(deal: RankDeal, steps: int) -> list[Units]:
    """The rows of each worker that its rank has not received after `steps` steps."""
    lanes = []
    for worker, lane in enumerate(deal.workers):
        sizes = deal.sizes.of_worker(worker, len(deal.workers))
        done = batches_of_worker(min(steps, deal.sizes.steps), worker, len(deal.workers))
        lanes.append(lane.split_at(sizes.rows_before(done))[1])
    return lanes


def remaining_units(deal: Deal, segment: Segment) -> Units:
    """The rows that no rank has received in this segment of the epoch, in canonical order.

    The order: for each rank, the rest of each worker's lane, then the rows that the rank would have dropped. The rest
    of a lane stays together, so that a worker that takes a run of these rows opens few row groups.
    """
    parts = []
    for rank in range(deal.topology.num_ranks):
        share = deal.rank(rank)
        parts.extend([*remaining_lanes(share, segment.steps_of(rank)), share.dropped])
    return Units.concat(parts)
