"""What a schedule has to fit: ranks, tokens per rank, and what to do with sequences that do not fit."""

from dataclasses import dataclass
from typing import Literal

from torch_dataloader_utils._core.arguments import hold_integers
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
        ConfigError: a value that is no whole number from 1.
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
        group = self.microbatch_group_size_per_vp_stage
        return 1 if group is None else group


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePolicy:
    """What to do where a global batch does not fit its shape.

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
