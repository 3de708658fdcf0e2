"""Batch the rows of a map-style data set by tokens, padded or not, from known lengths."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from torch_dataloader_utils._core.arguments import check_flag, check_integer, check_seed
from torch_dataloader_utils._core.division import even_counts
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.permute import Purpose, random_words
from torch_dataloader_utils._core.token_budget import TokenBudget, halve_largest
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError

# Index of the random words of purpose BUCKETS. Windows of streams use plan rows as indices, and plan rows are smaller.
_WHOLE_EPOCH = 1 << 63

# No batch is this large, and a width (a length rounded up) still fits int64.
_MOST_TOKENS = 2**62


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpochBatches:
    """All batches of one epoch, over all ranks: batch b holds rows[start[b]:stop[b]]; all arrays are int64.

    Attributes:
        rows: numbers of the rows, batch by batch.
        start: index in `rows` of the first row of each batch.
        stop: index in `rows` after the last row of each batch.
        repeated_rows: number of rows in the batches that come a second time, so that all ranks take equal steps.
    """

    rows: Int64s
    start: Int64s
    stop: Int64s
    repeated_rows: int = 0

    def __len__(self) -> int:
        return len(self.start)


class TokenBatchSampler(Sampler[list[int]]):
    """Batches of rows of similar length for one rank, each within `max_tokens_per_batch` padded tokens.

    A batch has as many tokens as its rows × its longest row, rounded up to `pad_to_multiple_of`, so the memory and the
    time of a step are bounded, and long rows get small batches. Over all ranks every row comes once per epoch and all
    ranks take equal steps: if the batches do not divide by the ranks, the batches with most rows are halved. (If all
    batches have one row, some batches come twice: see `repeated_rows`.)

        lengths 9 2 3 8 2, max_tokens_per_batch=9      {9}  {8}  {3 2 2}

    With `padding_free` a batch has as many tokens as the sum of its lengths, and batches mix rows of all lengths:

        lengths 9 2 3 8 2, max_tokens_per_batch=12     {9 2}  {8 3}  {2}

    Pass it as `batch_sampler`. The order is a function of (lengths, options, seed, epoch), the same on every rank:

        rows = RowDataset("s3://bucket/texts", length_column="tokens")
        sampler = TokenBatchSampler(rows.lengths, 16_384, num_ranks=8, rank=rank, num_workers=4, window_rows=65_536)
        DataLoader(rows, batch_sampler=sampler, num_workers=4, collate_fn=...)
    """

    def __init__(
        self,
        lengths: Sequence[float] | npt.NDArray[Any],
        max_tokens_per_batch: int,
        *,
        num_ranks: int = 1,
        rank: int = 0,
        num_workers: int = 1,
        shuffle: bool = True,
        seed: int = 42,
        window_rows: int | None = None,
        max_rows_per_batch: int | None = None,
        pad_to_multiple_of: int = 1,
        padding_free: bool = False,
    ) -> None:
        """Check the lengths. Batches are made once per epoch, on first use.

        Args:
            lengths: number of tokens of every row, for example `RowDataset.lengths`.
            max_tokens_per_batch: largest number of tokens of a batch, padding included unless padding_free.
            num_ranks: number of training processes.
            rank: number of this process, in [0, num_ranks).
            num_workers: number of workers of the DataLoader: each worker gets its own batches, of neighbouring rows.
            shuffle: whether windows, batches in a window and rows of equal length come in random order. Otherwise each
                window gives its longest rows first.
            seed: any integer, taken modulo 2^64.
            window_rows: number of neighbouring rows that are sorted together, so that few row groups are open at
                once; None sorts all rows. Windows begin elsewhere in every shuffled epoch, so batches change.
            max_rows_per_batch: largest number of rows of a batch; None sets no limit.
            pad_to_multiple_of: number whose multiples the collate function rounds lengths up to.
            padding_free: whether the collate function joins the rows without padding.

        Raises:
            ConfigTypeError: lengths that are not a list of numbers, or a number that is not whole.
            ConfigError: a number out of range, a row that alone exceeds max_tokens_per_batch, or pad_to_multiple_of
                with padding_free.
        """
        max_tokens_per_batch = check_integer("max_tokens_per_batch", max_tokens_per_batch, least=1)
        num_ranks = check_integer("num_ranks", num_ranks, least=1)
        self._num_workers = check_integer("num_workers", num_workers, least=1)
        pad_to_multiple_of = check_integer("pad_to_multiple_of", pad_to_multiple_of, least=1)
        seed, rank = check_seed("seed", seed), check_integer("rank", rank)
        shuffle = check_flag("shuffle", shuffle)
        if not 0 <= rank < num_ranks:
            raise ConfigError(f"rank={rank} must be in [0, num_ranks={num_ranks}).")
        measured = _as_lengths(lengths)
        all_rows = max(1, len(measured))
        self._budget = TokenBudget(
            max_tokens=max_tokens_per_batch,
            max_rows=_number_or("max_rows_per_batch", max_rows_per_batch, all_rows),
            pad_to_multiple_of=pad_to_multiple_of,
            padding_free=check_flag("padding_free", padding_free),
        )
        if self._budget.padding_free and pad_to_multiple_of > 1:
            raise ConfigError(
                f"pad_to_multiple_of={pad_to_multiple_of} with padding_free=True: rows that are not padded count as "
                "they are. Leave one of them out."
            )
        self._widths = _fitting_widths(measured, self._budget)
        self._window_rows = _number_or("window_rows", window_rows, all_rows)
        self._num_ranks, self._rank = num_ranks, rank
        self._shuffle, self._seed = shuffle, seed
        self._epoch, self._first_batch = 0, 0
        self._made: tuple[int, EpochBatches] | None = None

    def set_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """Choose the epoch of the next pass and, to resume in constant time, how many of its batches to leave out.

        Count steps in the trainer: with workers the sampler runs ahead of the received batches. Another number of ranks
        makes other batches, so change the number of ranks between epochs only.

        Raises:
            ConfigTypeError, ConfigError: not a whole number, or one below 0.
        """
        epoch = check_integer("epoch", epoch, least=0)
        self._first_batch = check_integer("first_batch", first_batch, least=0)
        self._epoch = epoch

    @property
    def repeated_rows(self) -> int:
        """Number of rows that come a second time this epoch, over all ranks: 0 if any batch has two rows."""
        return self._batches.repeated_rows

    def __len__(self) -> int:
        """Return the number of batches of this rank, the same on every rank; may differ from epoch to epoch."""
        return len(self._batches) // self._num_ranks

    def __iter__(self) -> Iterator[list[int]]:
        batches, first = self._batches, self._first_batch
        self._first_batch = 0
        for batch in self._own_batches()[first:].tolist():
            yield batches.rows[batches.start[batch] : batches.stop[batch]].tolist()

    @property
    def _batches(self) -> EpochBatches:
        if self._made is None or self._made[0] != self._epoch:
            batches = _level_batches(self._cut(), self._num_ranks)
            self._made = (self._epoch, batches)
        return self._made[1]

    def _own_batches(self) -> Int64s:
        """Return the numbers of this rank's batches, int64, in the order of the DataLoader.

        The batches of a rank are one range; each worker has a range of this range, and workers are read round robin.
        """
        steps = len(self)
        order = np.arange(steps)
        worker, place = order % self._num_workers, order // self._num_workers
        counts = even_counts(steps, self._num_workers)
        first_of_worker: Int64s = (np.cumsum(counts) - counts)[worker]
        return self._rank * steps + first_of_worker + place

    def _cut(self) -> EpochBatches:
        """Cut windows of rows, sorted by length, into batches in the order of this epoch.

        Random words: for each row one word for its place among equal widths, one for the place of its window and one
        for the place of its batch in the window; one more word for the row at which windows begin.
        """
        count = len(self._widths)
        ties, places_of_windows, places, shift = self._random_words(count)
        window = (np.arange(count) + int(shift[0] % np.uint64(self._window_rows))) // self._window_rows
        rows = np.lexsort((ties, -self._widths, window)).astype(np.int64, copy=False)
        if self._budget.padding_free:
            rows, start = self._fill(rows, window[rows])
        else:
            stop_of_window = np.searchsorted(window[rows], window[rows], side="right")
            start = self._budget.first_rows(self._widths[rows], stop_of_window)
        window = window[rows]
        stop = np.append(start[1:], count)[: len(start)]
        order = np.lexsort((places[start], window[start], places_of_windows[window[start]]))
        return EpochBatches(rows=rows, start=start[order], stop=stop[order])

    def _fill(self, rows: Int64s, window: Int64s) -> tuple[Int64s, Int64s]:
        """Return the rows batch by batch and the start of each batch, for `padding_free`.

        Args:
            rows: numbers of the rows, by window, longest row first.
            window: number of the window of each of these rows.
        """
        bounds = np.flatnonzero(np.diff(window, prepend=-1)).tolist()
        filled, start = [], []
        for begin, end in pairwise([*bounds, len(rows)]):
            batch = self._budget.batches(self._widths[rows[begin:end]])
            filled.append(rows[begin:end][np.argsort(batch, kind="stable")])
            sizes = np.bincount(batch)
            start.append(begin + np.cumsum(sizes) - sizes)
        nothing = np.zeros(0, dtype=np.int64)
        return np.concatenate([nothing, *filled]), np.concatenate([nothing, *start])

    def _random_words(self, count: int) -> list[npt.NDArray[np.uint64]]:
        """Return three arrays of `count` random words and an array of one word, all 0 without `shuffle`."""
        total = 3 * count + 1
        words = random_words(total, seed=self._seed, epoch=self._epoch, purpose=Purpose.BUCKETS, index=_WHOLE_EPOCH)
        return np.split(words if self._shuffle else np.zeros_like(words), [count, 2 * count, 3 * count])


def _level_batches(batches: EpochBatches, num_ranks: int) -> EpochBatches:
    """Make the number of batches divide by the ranks.

    The batches with most rows are halved. If every batch has one row, batches from the start are repeated.
    """
    start, stop, _ = halve_largest(batches.start, batches.stop, num_ranks)
    missing = -len(start) % num_ranks
    again = np.resize(np.arange(len(start)), missing)
    return EpochBatches(
        rows=batches.rows,
        start=np.append(start, start[again]),
        stop=np.append(stop, stop[again]),
        repeated_rows=int((stop - start)[again].sum()),
    )


def _number_or(name: str, value: int | None, default: int) -> int:
    return default if value is None else check_integer(name, value, least=1)


def _as_lengths(lengths: Any) -> npt.NDArray[Any]:
    measured = np.asarray(lengths)
    if measured.ndim != 1 or (measured.size and measured.dtype.kind not in "iuf"):
        raise ConfigTypeError(
            f"lengths is {'a ' + type(lengths).__name__ if measured.ndim != 1 else 'of ' + str(measured.dtype)}: pass "
            "a list of numbers, the tokens of each row, such as RowDataset.lengths."
        )
    # A width or the limit may overflow a small integer type.
    is_small = measured.dtype.kind in "iu" and measured.dtype.itemsize < np.dtype(np.int64).itemsize
    return measured.astype(np.int64) if is_small else measured


def _fitting_widths(lengths: npt.NDArray[Any], budget: TokenBudget) -> Int64s:
    """Return the padded width of every row.

    Raises:
        ConfigError: a length that is not a number of tokens, or a row wider than the budget.
    """
    wrong = np.flatnonzero(~np.isfinite(lengths) | (lengths < 0))
    if len(wrong):
        raise ConfigError(f"lengths: row {wrong[0]} has length {lengths[wrong[0]]}. Give numbers of tokens.")
    # Limit first: a length may be larger than int64 holds.
    widths = budget.widths(np.minimum(lengths, min(budget.max_tokens, _MOST_TOKENS) + 1))
    too_long = np.flatnonzero(widths > budget.max_tokens)
    if len(too_long):
        first = too_long[0]
        raise ConfigError(
            f"{len(too_long)} rows alone take more than max_tokens_per_batch={budget.max_tokens}; the first is row "
            f"{first} with {max(lengths[first], widths[first])} tokens. Raise the limit, filter long rows out, or clip "
            "the lengths if the collate function truncates."
        )
    return widths
