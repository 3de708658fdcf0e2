"""`RowOrder`: the order of all rows, by random words that any process computes for any rows."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.permute import Purpose, random_words

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrder:
    """Stable order of random words, word i for row i. Each of `outputs` files holds an equal range of words.

    `permutation(num_rows, seed=seed, epoch=0, purpose=Purpose.ROWS)` is the same order.
    """

    seed: int
    outputs: int

    def words(self, first: int, count: int) -> Words:
        """Return the words of rows [first, first + count)."""
        return random_words(count, seed=self.seed, epoch=0, purpose=Purpose.ROWS, first=first)

    def edge(self, output: int) -> int:
        """Return the least word of an output file; 2^64 for the number after the last file."""
        return -(-(output << 64) // self.outputs)

    def cut(self, ascending: Words) -> list[int]:
        """Return where the rows of each output file begin among ascending words, and where the last file's rows end.

        2 files, words 1, 5, 2^63      0 2 3
        """
        edges = np.array([self.edge(output) for output in range(1, self.outputs)], np.uint64)
        return [0, *np.searchsorted(ascending, edges).tolist(), len(ascending)]
