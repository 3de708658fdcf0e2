"""Define the inputs of a schedule besides lengths: ranks and their capacity, a policy, the cost of a sequence."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.arguments import check_integer, hold_integers
from torch_dataloader_utils.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingShape:
    """Ranks that share a global batch, and the tokens that one rank holds.

    Attributes:
        max_seqlen_per_dp_cp_rank: largest number of tokens of one microbatch on one rank.
        cp_size: number of context-parallel ranks that share every pack of a fixed-size schedule.
        dp_size: number of data-parallel ranks.
        microbatch_group_size_per_vp_stage: number whose multiple the number of microbatches becomes; None without
            virtual pipeline stages.

    Raises:
        ConfigError: a value that is not a whole number from 1.
    """

    max_seqlen_per_dp_cp_rank: int
    cp_size: int = 1
    dp_size: int = 1
    microbatch_group_size_per_vp_stage: int | None = None

    def __post_init__(self) -> None:
        hold_integers(
            self, "max_seqlen_per_dp_cp_rank", "cp_size", "dp_size", "microbatch_group_size_per_vp_stage", least=1
        )

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the data × context parallel group."""
        return self.dp_size * self.cp_size

    @property
    def pack_tokens(self) -> int:
        """Largest number of tokens of one pack on `cp_size` ranks."""
        return self.max_seqlen_per_dp_cp_rank * self.cp_size

    @property
    def microbatch_multiple(self) -> int:
        """Number that divides the number of microbatches."""
        return self.microbatch_group_size_per_vp_stage or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePolicy:
    """Treatment of global batches that do not fit their shape.

    Attributes:
        over_long: treatment of a sequence above the capacity of a pack: "error" raises, "alone" puts the sequence into
            a pack above capacity (the caller must have the memory), "drop" leaves it out with a warning.
        missing_packs: treatment of fewer sequences than packs needed, so that a rank has nothing to compute: "error"
            raises, "fill" schedules empty packs, each filled with one padding sequence with loss mask 0.
    """

    over_long: Literal["error", "alone", "drop"] = "error"
    missing_packs: Literal["error", "fill"] = "error"

    def __post_init__(self) -> None:
        for name, allowed in (("over_long", ("error", "alone", "drop")), ("missing_packs", ("error", "fill"))):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; use one of {', '.join(map(repr, allowed))}.")


def alignment_of(num_ranks: int) -> int:
    """Return the multiple to which a sequence on `num_ranks` context-parallel ranks is padded: 2 × ranks, or 1 on one.

    Each rank computes two chunks of every sequence (one from the front, one from the back, so that causal
    attention costs all ranks the same), and all chunks of a sequence are equally long.
    """
    return 1 if num_ranks == 1 else 2 * num_ranks


def span_sizes(num_ranks: int) -> list[int]:
    """Return the numbers of ranks that may share a sequence, ascending; each divides the next, the last is `num_ranks`.

    num_ranks 8: 1 2 4 8.  12: 1 2 4 12.  9: 1 3 9.  Since sizes divide one another, packs laid out by falling span
    are aligned, and a rank needs one process group per size.
    """
    spans = [1]
    factor = 2
    while spans[-1] < num_ranks:
        while (num_ranks // spans[-1]) % factor == 0:
            spans.append(spans[-1] * factor)
        factor += 1
    return spans


# Of 7B-class models. A wrong hidden size changes how well packs balance, never whether sequences fit.
_HIDDEN_SIZE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Cost of a sequence: quadratic × length² + linear × length, in whole numbers of an arbitrary unit.

    Costs are whole numbers, because a float sum depends on its order and on the machine, and all ranks must agree.
    Only the ratio of the two weights matters; `CostModel.transformer` derives the ratio.

    Raises:
        ConfigError: a weight that is not a whole number from 0, or both 0.
    """

    quadratic: int = 1
    linear: int = 12 * _HIDDEN_SIZE

    def __post_init__(self) -> None:
        hold_integers(self, "quadratic", "linear", least=0)
        if self.quadratic == self.linear == 0:
            raise ConfigError("cost weights quadratic=0, linear=0: pass one above 0; nothing would cost anything.")

    @classmethod
    def transformer(cls, hidden_size: int) -> "CostModel":
        """Return the weights of a decoder layer with a 4 × hidden MLP and causal attention.

        A layer needs 24 × hidden² × length operations for its matrix products and 2 × hidden × length² for
        causal attention, a ratio of 12 × hidden to 1: attention overtakes the rest at length = 12 × hidden.
        """
        return cls(quadratic=1, linear=12 * check_integer("hidden_size", hidden_size, least=1))

    def of(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the cost of each sequence, int64 in the shape of `lengths`.

        Raises:
            ConfigError: the sum of all costs would pass 2^62.
        """
        # Floats do not wrap around. Floats round, but 2^62 is far enough below the limit of int64.
        tokens = lengths.astype(np.float64)
        if ((self.quadratic * tokens + self.linear) * tokens).sum() >= 1 << 62:
            raise ConfigError(
                f"{len(lengths)} sequences of up to {int(lengths.max())} tokens pass 2^62 with weights quadratic="
                f"{self.quadratic}, linear={self.linear}; use smaller weights with the same ratio."
            )
        return self.quadratic * lengths * lengths + self.linear * lengths
