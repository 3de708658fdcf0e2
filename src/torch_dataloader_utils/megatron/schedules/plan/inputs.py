"""The inputs of a schedule besides lengths: ranks and their capacity, a policy, and the cost of a sequence."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.arguments import check_integer, hold_integers
from torch_dataloader_utils.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingShape:
    """The ranks that share a global batch, and the tokens one of them holds.

    Attributes:
        max_seqlen_per_dp_cp_rank: most tokens of one microbatch on one rank.
        cp_size: context-parallel ranks that share every pack of a fixed-size schedule.
        dp_size: data-parallel ranks.
        microbatch_group_size_per_vp_stage: the number of microbatches becomes a multiple of this; None without
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
        """Ranks of the data × context parallel group."""
        return self.dp_size * self.cp_size

    @property
    def pack_tokens(self) -> int:
        """Most tokens of one pack on `cp_size` ranks."""
        return self.max_seqlen_per_dp_cp_rank * self.cp_size

    @property
    def microbatch_multiple(self) -> int:
        """The number of microbatches is a multiple of this."""
        return self.microbatch_group_size_per_vp_stage or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePolicy:
    """The treatment of global batches that do not fit their shape.

    Attributes:
        over_long: a sequence above the capacity of a pack is an "error", is put "alone" into a pack above
            capacity (memory is then the caller's business), or is left out ("drop", with a warning).
        missing_packs: fewer sequences than packs needed (a rank would have nothing to compute) is an "error", or
            the empty packs are scheduled ("fill"); the runtime puts one padding sequence with loss mask 0 there.
    """

    over_long: Literal["error", "alone", "drop"] = "error"
    missing_packs: Literal["error", "fill"] = "error"

    def __post_init__(self) -> None:
        for name, allowed in (("over_long", ("error", "alone", "drop")), ("missing_packs", ("error", "fill"))):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; use one of {', '.join(map(repr, allowed))}.")


def alignment_of(num_ranks: int) -> int:
    """The multiple to which a sequence on `num_ranks` context-parallel ranks is padded: 2 × ranks, 1 on one rank.

    Each rank computes two chunks of every sequence (one from the front, one from the back, so that causal
    attention costs all ranks the same), and all chunks of a sequence are equally long.
    """
    return 1 if num_ranks == 1 else 2 * num_ranks


def span_sizes(num_ranks: int) -> list[int]:
    """The numbers of ranks that may share a sequence, ascending; each divides the next and the last is all of them.

    num_ranks 8: 1 2 4 8.  12: 1 2 4 12.  9: 1 3 9.  Since they divide one another, packs laid out by falling span
    are aligned, and a rank needs one process group per size.
    """
    spans = [1]
    factor = 2
    while spans[-1] < num_ranks:
        while (num_ranks // spans[-1]) % factor == 0:
            spans.append(spans[-1] * factor)
        factor += 1
    return spans


# 7B-class models; a wrong hidden size changes how well packs balance, never whether they fit.
_HIDDEN_SIZE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """cost(length) = quadratic × length² + linear × length, in whole numbers of an arbitrary unit.

    Whole numbers, because a float sum depends on its order and on the machine, and all ranks must agree.
    Only the ratio of the two weights matters; see `CostModel.transformer` for where it comes from.

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
