"""Define a schedule (packs of sequences, each on a span of ranks of one microbatch), and arrange packs into one."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils.errors import ConfigError

Int64s = npt.NDArray[np.int64]
SampleGroups = list[list[list[int]]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """Packs in order of (microbatch, first rank). In every microbatch the spans of the packs tile [0, num_ranks).

    Pack p holds samples[offsets[p]:offsets[p + 1]] and is computed by ranks
    [first_rank[p], first_rank[p] + span[p]) of the data × context parallel group together.

        2 microbatches of 4 ranks, 4 packs      samples 7 | 0 1 | 2 3 | 4 5 6
        microbatch   0 1 1 1                    rank      0   1   2   3
        first_rank   0 0 2 3                    micro 0   7   7   7   7
        span         4 2 1 1                    micro 1   01  01  23  456

    Attributes:
        num_ranks: number of ranks of the data × context parallel group.
        num_microbatches: number of microbatches, the same for every rank.
        samples: int64: positions in the global batch, pack by pack.
        offsets: int64 [packs + 1]: range of each pack in `samples`.
        microbatch: int64 [packs]: microbatch of each pack.
        first_rank: int64 [packs]: first rank that computes each pack.
        span: int64 [packs]: number of ranks that compute each pack.
    """

    num_ranks: int
    num_microbatches: int
    samples: Int64s
    offsets: Int64s
    microbatch: Int64s
    first_rank: Int64s
    span: Int64s

    @classmethod
    def of_packs(cls, packs: Sequence[Sequence[int]], spans: Sequence[int], *, num_ranks: int) -> "Schedule":
        """Lay `packs` of `spans` ranks one after the other, with `num_ranks` ranks per microbatch."""
        span = np.asarray(spans, dtype=np.int64)
        ends = np.cumsum(span)
        first_slot = ends - span
        return cls(
            num_ranks=num_ranks,
            num_microbatches=int(ends[-1]) // num_ranks,
            samples=np.fromiter((sample for pack in packs for sample in pack), dtype=np.int64),
            offsets=np.concatenate([[0], np.cumsum([len(pack) for pack in packs])]).astype(np.int64),
            microbatch=first_slot // num_ranks,
            first_rank=first_slot % num_ranks,
            span=span,
        )

    @classmethod
    def of_groups(cls, groups: SampleGroups, *, num_ranks: int, empty_span: int = 1) -> "Schedule":
        """Return the schedule of nested lists: for each microbatch and each rank, the samples.

        Neighbouring ranks with equal lists share a pack. Neighbouring ranks without samples share an empty pack, at
        most `empty_span` ranks each.

        Raises:
            ConfigError: no microbatch, or a microbatch without an entry for every rank.
        """
        packs: list[list[int]] = []
        spans: list[int] = []
        for index, ranks in enumerate(groups):
            if len(ranks) != num_ranks:
                raise ConfigError(
                    f"microbatch {index} of the schedule has {len(ranks)} entries for {num_ranks} ranks "
                    "(dp_size × cp_size); return one list of samples per rank."
                )
            for rank, samples in enumerate(ranks):
                is_shared = rank > 0 and (samples is ranks[rank - 1] or list(samples) == list(ranks[rank - 1]))
                if is_shared and (len(samples) or spans[-1] < empty_span):
                    spans[-1] += 1
                else:
                    packs.append(samples)
                    spans.append(1)
        if not packs:
            raise ConfigError(
                "the schedule has no microbatch; a global batch needs at least one. Correct the scheduler."
            )
        return cls.of_packs(packs, spans, num_ranks=num_ranks)

    def to_groups(self, ids: Sequence[int]) -> SampleGroups:
        """Return for each microbatch and each rank the ids of its samples; ranks of one pack share one list object."""
        named = [ids[position] for position in self.samples.tolist()]
        bounds = self.offsets.tolist()
        groups: SampleGroups = [[] for _ in range(self.num_microbatches)]
        for pack, (microbatch, span) in enumerate(zip(self.microbatch.tolist(), self.span.tolist(), strict=True)):
            groups[microbatch].extend([named[bounds[pack] : bounds[pack + 1]]] * span)
        return groups

    def digest(self) -> int:
        """Return a digest of 56 bits (never negative), equal on ranks that have made the same schedule."""
        shape = np.array([self.num_ranks, self.num_microbatches, len(self.samples), len(self.span)])
        arrays = (shape, self.samples, self.offsets, self.microbatch, self.first_rank, self.span)
        return int.from_bytes(hashlib.blake2b(b"".join(map(np.ndarray.tobytes, arrays)), digest_size=7).digest())

    def packs_of_rank(self, rank: int) -> Int64s:
        """Return the pack that `rank` computes in each microbatch, int64 [num_microbatches]."""
        return np.flatnonzero((self.first_rank <= rank) & (rank < self.first_rank + self.span))

    def samples_of_pack(self, pack: int) -> Int64s:
        """Return the positions of the samples of one pack, in the order of packing."""
        members: Int64s = self.samples[self.offsets[pack] : self.offsets[pack + 1]]
        return members

    def samples_of_rank(self, rank: int) -> Int64s:
        """Return the positions of all samples that `rank` takes part in, ascending."""
        return np.sort(np.concatenate([self.samples_of_pack(pack) for pack in self.packs_of_rank(rank).tolist()]))

    def sum_of_packs(self, values: Int64s) -> Int64s:
        """Return for each pack the sum of `values` (one per position of the global batch), int64 [packs]."""
        sums = np.concatenate([[0], np.cumsum(values[self.samples])])
        per_pack: Int64s = np.diff(sums[self.offsets])
        return per_pack


def arrange_packs(
    packs: Sequence[Sequence[int]],
    *,
    spans: Sequence[int],
    loads: Sequence[int],
    num_ranks: int,
) -> Schedule:
    """Lay packs out by falling span, then falling load; every other microbatch is mirrored.

    Ranks wait for the slowest rank of a microbatch. With packs of one span in falling order, the slowest rank of
    microbatch m + 1 is no slower than the mean of microbatch m. So the sum of the slowest ranks over microbatches is at
    most the sum of the means, a bound for every schedule, plus the greatest load (with several spans: plus the greatest
    load of each span). For packs of one span no other order of the same packs does better.

    Mirroring gives the heaviest pack of a microbatch to the first and to the last rank alternately, so that the totals
    of the ranks stay close, too. Inside a pack the samples are in ascending order.

    Args:
        packs: positions in each pack; the spans add up to whole microbatches.
        spans: number of ranks of each pack.
        loads: compute per rank of each pack, in any unit.
        num_ranks: number of ranks of a microbatch.
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
