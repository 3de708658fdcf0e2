"""Decoding ahead: starts decoding the row groups of one lane in the order of their first use, within the budget."""

import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from torch_dataloader_utils._core.uses import GroupUses
from torch_dataloader_utils.stream.decode import Decoder
from torch_dataloader_utils.stream.follow_up import Pending
from torch_dataloader_utils.stream.row_span import RowSpan
from torch_dataloader_utils.stream.small_groups import MOST_TOGETHER, JointDecode


@dataclass(slots=True)
class _Job:
    """Row groups decoded by one job. left: how many are still needed. is_told: see `DecodeAhead.joined`."""

    groups: Sequence[int]
    left: int
    pending: Future[RowSpan] | JointDecode
    is_told: bool = False

    def rows(self, group: int) -> Pending[RowSpan]:
        """The rows of one of the row groups."""
        return self.pending.rows(group) if isinstance(self.pending, JointDecode) else self.pending


class DecodeAhead:
    """Starts decoding row groups, and holds each one's pending rows until `done` is called for it.

    decodes_rows_needed: decode a row group only up to the last row that the lane uses, where the format allows it;
        False where row counts are not known.
    """

    def __init__(self, decoder: Decoder, uses: GroupUses, *, decodes_rows_needed: bool) -> None:
        self._decoder = decoder
        groups, first, number = np.unique(uses.group, return_index=True, return_inverse=True)
        stop = np.zeros(len(groups), dtype=np.int64)
        np.maximum.at(stop, number, uses.stop)
        stops = stop.tolist() if decodes_rows_needed else [None] * len(groups)
        self._stop_row: dict[int, int | None] = dict(zip(groups.tolist(), stops, strict=True))
        self._waiting: list[int] = groups[np.argsort(first)].tolist()[::-1]
        self._jobs: dict[int, _Job] = {}
        self._at_once = 1

    def prefetch(self) -> None:
        """Start decoding the next row groups, as far as the budget allows."""
        while self._waiting:
            groups = self._next_groups()
            if self._decoder.room_for(groups) < len(groups):
                return
            self._begin(groups)

    def rows(self, group: int) -> Pending[RowSpan]:
        """The rows of a row group; starts decoding it now if need be, even beyond the budget.

        Row groups that the same job decodes are started only as far as the budget allows.
        """
        return self._job_of(group).rows(group)

    def begun(self, group: int) -> Pending[RowSpan] | None:
        """The rows of a row group, if its decoding was started and it is still needed."""
        job = self._jobs.get(group)
        return None if job is None else job.rows(group)

    def joined(self, group: int) -> JointDecode | None:
        """The job of several row groups that begins with this one, or None; given once. Starts it if need be."""
        job = self._job_of(group)
        if job.is_told or group != job.groups[0] or not isinstance(job.pending, JointDecode):
            return None
        job.is_told = True
        return job.pending

    def done(self, group: int) -> None:
        """The row group is not needed any more. Row groups of one job share memory, which is freed with the last."""
        job = self._jobs.pop(group)
        job.left -= 1
        self._decoder.release(() if job.left else job.groups)

    def _job_of(self, group: int) -> _Job:
        while group not in self._jobs:
            groups = self._next_groups()
            self._begin(groups[: max(1, self._decoder.room_for(groups))])
        return self._jobs[group]

    def _begin(self, groups: Sequence[int]) -> None:
        """Start one job for the next row groups."""
        del self._waiting[-len(groups) :]
        if self._decoder.is_small(groups[0]):
            self._at_once = min(2 * self._at_once, MOST_TOGETHER)
        wanted = [(group, self._stop_row[group]) for group in groups]
        pending = self._decoder.submit(*wanted[0]) if len(wanted) == 1 else self._decoder.submit_together(wanted)
        self._jobs.update(dict.fromkeys(groups, _Job(groups, left=len(groups), pending=pending)))

    def _next_groups(self) -> list[int]:
        """The row groups of the next job: one, or several small ones (one at first, then twice as many each time)."""
        following = self._waiting[-self._at_once :][::-1]
        small = list(itertools.takewhile(self._decoder.is_small, following))
        return small[: self._decoder.most_of_one_job(small)] if small else following[:1]
