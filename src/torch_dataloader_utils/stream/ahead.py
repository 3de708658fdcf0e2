"""Decoding ahead: the row groups of one lane, begun in the order of their first use as far as the budget allows."""

import itertools
from concurrent.futures import Future

import numpy as np

from torch_dataloader_utils._core.block import Block
from torch_dataloader_utils._core.uses import GroupUses
from torch_dataloader_utils.stream.decode import Decoder
from torch_dataloader_utils.stream.together import MOST_TOGETHER, Together


class DecodeAhead:
    """Begins row groups, and keeps what will come of each until it is done with.

    decodes_rows_needed: decode a row group only up to the last row that the lane uses, as far as the format can; not
    where row counts are not known. joins: give small row groups that one job decodes as one block too, see `joined`.
    """

    def __init__(self, decoder: Decoder, uses: GroupUses, *, decodes_rows_needed: bool, joins: bool) -> None:
        self._decoder = decoder
        self._joins = joins
        groups, first, number = np.unique(uses.group, return_index=True, return_inverse=True)
        stop = np.zeros(len(groups), dtype=np.int64)
        np.maximum.at(stop, number, uses.stop)
        stops = stop.tolist() if decodes_rows_needed else [None] * len(groups)
        self._stop_row: dict[int, int | None] = dict(zip(groups.tolist(), stops, strict=True))
        self._waiting: list[int] = groups[np.argsort(first)].tolist()[::-1]
        self._begun: dict[int, Future[Block]] = {}
        self._joined: dict[int, Together] = {}
        self._at_once = 1

    def prefetch(self) -> None:
        """Begin the next row groups, as far as the budget goes."""
        while self._waiting and self._decoder.has_room(self._waiting[-1]):
            self._begin_next()

    def block(self, group: int) -> Future[Block]:
        """The block of a row group, which is begun now if it was not, whatever the budget says."""
        while group not in self._begun:
            self._begin_next()
        return self._begun[group]

    def begun(self, group: int) -> Future[Block] | None:
        """The block of a row group, if it was begun and not done with."""
        return self._begun.get(group)

    def joined(self, group: int) -> Together | None:
        """The job that began with this row group and joins its own; told once."""
        self.block(group)
        return self._joined.pop(group, None)

    def done(self, group: int) -> None:
        """Nobody needs the row group any more: its budget is given back."""
        del self._begun[group]
        self._decoder.release(group)

    def _begin_next(self) -> None:
        """The next row group; with small ones the next few, at first one alone, then twice as many each time."""
        groups = self._small_groups()
        if len(groups) < 2:
            group = self._waiting.pop()
            self._begun[group] = self._decoder.submit(group, self._stop_row[group])
            return
        del self._waiting[-len(groups) :]
        wanted = [(group, self._stop_row[group]) for group in groups]
        together = self._decoder.submit_together(wanted, joins=self._joins)
        if self._joins:
            self._joined[groups[0]] = together
        self._begun.update(zip(groups, together.alone, strict=True))

    def _small_groups(self) -> list[int]:
        """The small row groups that come next, as many as one job is to decode and the budget allows."""
        following = self._waiting[-self._at_once :][::-1]
        groups = list(itertools.takewhile(self._decoder.is_small, following))
        while len(groups) > 1 and not self._decoder.has_room(*groups):
            groups.pop()
        if groups:
            self._at_once = min(2 * self._at_once, MOST_TOGETHER)
        return groups
