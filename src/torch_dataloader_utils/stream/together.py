"""Small row groups, decoded several by one job, as one block.

The trainer's thread would wake up for each, and take the interpreter's lock from the thread that decodes; and of what a
row group takes alone, two thirds are not decoding it.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import NamedTuple, Self

from torch_dataloader_utils._core.block import Block, JoinedGroups
from torch_dataloader_utils._core.turns import Turns

Wanted = tuple[int, int | None]
"""A row group, and up to which of its rows it is needed (None: all)."""

MOST_TOGETHER = 64
"""Row groups of one job: 64 of 20 KB take 4 to 8 ms, in which the trainer waits for the first of them at worst."""

MOST_BYTES_TOGETHER = 2 << 20
"""Encoded bytes of them, so that no larger ones take longer."""


class GroupRows(NamedTuple):
    """Rows of one row group: rows [start, stop) of a block, which may have those of others too."""

    block: Block
    start: int
    stop: int

    @classmethod
    def of(cls, block: Block) -> Self:
        """Those of a row group that is a block of its own."""
        return cls(block, 0, block.num_rows)

    def cut(self, start: int, stop: int) -> Self:
        """Rows [start, stop) of these; rows past the end are left out."""
        return self._replace(start=min(self.start + start, self.stop), stop=min(self.start + stop, self.stop))

    def rows(self) -> Block:
        """The rows, as a block of their own."""
        return self.block.slice(self.start, self.stop)


def in_few_blocks(parts: Iterable[GroupRows]) -> list[Block]:
    """The rows of all parts, in their order; those that follow each other in one block are one block again."""
    runs: list[GroupRows] = []
    for part in parts:
        if runs and runs[-1].block is part.block and runs[-1].stop == part.start:
            runs[-1] = runs[-1]._replace(stop=part.stop)
        else:
            runs.append(part)
    return [run.rows() for run in runs]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Together:
    """Row groups of one job.

    alone: all rows of each. joined: the block that has just these, if all of them decode.
    """

    groups: tuple[int, ...]
    alone: "tuple[Future[GroupRows], ...]"
    joined: "Future[Block]"

    def cancel(self) -> None:
        """Let go of whoever waits for what has not come."""
        for future in self.alone:
            future.cancel()
        self.joined.cancel()


class SmallGroups:
    """Starts jobs over several row groups, in a pool that others use too.

    decode: the block of one row group. decode_joined: several as one. Jobs that one call does run side by side. Of
    others, which are mostly Python, one at a time while they are quick, see `Turns`.
    """

    def __init__(
        self,
        pool: Executor,
        decode: Callable[[Wanted], Block],
        decode_joined: Callable[[Sequence[Wanted]], JoinedGroups],
    ) -> None:
        self._pool = pool
        self._decode = decode
        self._decode_joined = decode_joined
        self._turns = Turns()
        self._do_join = True
        self._takes_one_call = False

    def start(self, wanted: Sequence[Wanted]) -> Together:
        """Start decoding these in one thread; errors come where the rows are taken."""
        together = Together(
            groups=tuple(group for group, _ in wanted), alone=tuple(Future() for _ in wanted), joined=Future()
        )
        job = self._pool.submit(self._run, wanted, together)
        job.add_done_callback(lambda _: together.cancel())  # nothing, unless the job was cancelled or is broken
        return together

    def _run(self, wanted: Sequence[Wanted], together: Together) -> None:
        job = partial(self._outcomes, wanted)
        # Most often the next one is like the last one.
        joined, outcomes = job() if self._takes_one_call else self._turns.take(job, len(wanted))
        # News comes at the end, of all at once.
        for future, outcome in zip(together.alone, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        if joined is not None:
            together.joined.set_result(joined)

    def _outcomes(self, wanted: Sequence[Wanted]) -> tuple[Block | None, Sequence[GroupRows | BaseException]]:
        """The joined block, if there is one, and of each row group its rows or its error."""
        joined = self._joined(wanted) if self._do_join else None
        if joined is None:
            alone = list(map(self._outcome, wanted))
            # If it is not the fault of one of them, the next ones will not join either.
            self._do_join = self._do_join and any(isinstance(outcome, BaseException) for outcome in alone)
            return None, alone
        ends = accumulate(joined.rows)
        rows = [GroupRows(joined.block, end - rows, end) for end, rows in zip(ends, joined.rows, strict=True)]
        return joined.block, rows

    def _joined(self, wanted: Sequence[Wanted]) -> JoinedGroups | None:
        try:
            joined = self._decode_joined(wanted)
        except BaseException:  # noqa: BLE001 - decoding them alone tells which one it is of, and raises it there
            return None
        self._takes_one_call = joined.by_one_call
        return joined

    def _outcome(self, wanted: Wanted) -> GroupRows | BaseException:
        try:
            return GroupRows.of(self._decode(wanted))
        except BaseException as error:  # noqa: BLE001 - raised where the rows are taken, as executors do
            return error
