"""Small row groups, decoded several by one job and joined there.

The trainer's thread would wake up for each, and take the interpreter's lock from the thread that decodes; joining small
blocks there costs more than to decode them.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from dataclasses import dataclass

from torch_dataloader_utils._core.block import Block
from torch_dataloader_utils._core.turns import Turns

Wanted = tuple[int, int | None]
"""A row group, and up to which of its rows it is needed (None: all)."""

MOST_TOGETHER = 16
"""Row groups of one job: 16 of 20 KB take 4 ms, in which the trainer waits for the first of them at worst."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Together:
    """Row groups of one job. alone: the block of each. joined: all in one, where that was asked for."""

    groups: tuple[int, ...]
    alone: "tuple[Future[Block], ...]"
    joined: "Future[Block] | None"

    def cancel(self) -> None:
        """Let go of whoever waits for what has not come."""
        for future in self.alone:
            future.cancel()
        if self.joined is not None:
            self.joined.cancel()


class SmallGroups:
    """Starts jobs over several row groups, in a pool that others use too.

    decode: gives the block of a row group. concat: joins blocks. One job at a time while they are quick, see `Turns`.
    """

    def __init__(
        self, pool: Executor, decode: Callable[[Wanted], Block], concat: Callable[[Sequence[Block]], Block]
    ) -> None:
        self._pool = pool
        self._decode = decode
        self._concat = concat
        self._turns = Turns()
        self._is_closed = False

    def start(self, wanted: Sequence[Wanted], *, joins: bool) -> Together:
        """Start decoding these, one after the other in one thread; errors come where the block is taken."""
        together = Together(
            groups=tuple(group for group, _ in wanted),
            alone=tuple(Future() for _ in wanted),
            joined=Future() if joins else None,
        )
        job = self._pool.submit(self._run, wanted, together)
        job.add_done_callback(lambda _: together.cancel())  # nothing, unless the job was cancelled or is broken
        return together

    def close(self) -> None:
        """Let running jobs end with the row group that they have."""
        self._is_closed = True

    def _run(self, wanted: Sequence[Wanted], together: Together) -> None:
        outcomes = self._turns.each(self._outcome, wanted)
        # News comes at the end, of all at once.
        for future, outcome in zip(together.alone, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        blocks = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        # Of row groups that do not all decode, those before the first bad one are taken alone.
        if together.joined is not None and len(blocks) == len(wanted):
            together.joined.set_result(self._concat(blocks))

    def _outcome(self, wanted: Wanted) -> Block | BaseException:
        if self._is_closed:
            return CancelledError()
        try:
            return self._decode(wanted)
        except BaseException as error:  # noqa: BLE001 - raised where the rows are taken, as executors do
            return error
