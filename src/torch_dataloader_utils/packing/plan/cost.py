"""What a sequence costs to compute: attention grows with length², all else with length."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.arguments import check_integer, hold_integers
from torch_dataloader_utils.errors import ConfigError

# 7B-class models; a wrong hidden size changes how well packs balance, never whether they fit.
_HIDDEN_SIZE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """cost(length) = quadratic × length² + linear × length, in whole numbers of an arbitrary unit.

    Whole numbers, because a float sum depends on its order and on the machine, and all ranks must agree.
    Only the ratio of the two weights matters; see `CostModel.transformer` for where it comes from.

    Raises:
        ConfigError: a weight that is no whole number from 0, or both 0.
    """

    quadratic: int = 1
    linear: int = 12 * _HIDDEN_SIZE

    def __post_init__(self) -> None:
        hold_integers(self, "quadratic", "linear", least=0)
        if self.quadratic == self.linear == 0:
            raise ConfigError("cost weights quadratic=0, linear=0: pass one above 0; nothing would cost anything.")

    @classmethod
    def transformer(cls, hidden_size: int) -> "CostModel":
        """The weights of a decoder layer with a 4 × hidden MLP and causal attention.

        A layer needs 24 × hidden² × length operations for its matrix products and 2 × hidden × length² for
        causal attention, a ratio of 12 × hidden to 1: attention overtakes the rest at length = 12 × hidden.
        """
        return cls(quadratic=1, linear=12 * check_integer("hidden_size", hidden_size, least=1))

    def of(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The cost of each sequence, int64, shape of `lengths`.

        Raises:
            ConfigError: the sum of all costs would pass 2^62.
        """
        # In floats, which do not wrap around. They round, but 2^62 is far enough below the limit of int64.
        tokens = lengths.astype(np.float64)
        if ((self.quadratic * tokens + self.linear) * tokens).sum() >= 1 << 62:
            raise ConfigError(
                f"{len(lengths)} sequences of up to {int(lengths.max())} tokens pass 2^62 with weights quadratic="
                f"{self.quadratic}, linear={self.linear}; use smaller weights with the same ratio."
            )
        return self.quadratic * lengths * lengths + self.linear * lengths
