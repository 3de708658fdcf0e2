"""What a blend is made of, checked once."""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch_dataloader_utils._core.arguments import check_integer, hold_flags, hold_integers, is_integer
from torch_dataloader_utils.errors import ConfigError

Unit = Literal["batch", "sample"]
StopPolicy = Literal["first_exhausted", "all_exhausted"]
Stop = StopPolicy | int

# A longer batch is no batch; one that has to be filled would be picked row by row for minutes before memory runs out.
_MOST_FILLED_ROWS = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendOptions:
    """See `blend`. batch_rows: rows of a batch with per="sample", 1 (a whole batch is the unit) with per="batch"."""

    weights: tuple[float, ...]
    per: Unit
    stop: Stop
    batch_rows: int
    drop_last: bool = False

    def __post_init__(self) -> None:
        hold_flags(self, "drop_last")
        for index, weight in enumerate(self.weights):
            if not (math.isfinite(weight) and weight > 0):
                raise ConfigError(f"Source {index} has the weight {weight}: pass positive numbers, or leave it out.")
        if self.per not in get_args(Unit):
            raise ConfigError(f'per={self.per!r}: pass "batch" or "sample".')
        if is_integer(self.stop):
            hold_integers(self, "stop", least=1)
        elif self.stop not in get_args(StopPolicy):
            raise ConfigError(f'stop={self.stop!r}: pass "first_exhausted", "all_exhausted" or a number of steps.')
        object.__setattr__(self, "batch_rows", check_integer("batch_size", self.batch_rows, least=1))
        if self.stop != "first_exhausted" and self.batch_rows > _MOST_FILLED_ROWS:
            raise ConfigError(
                f"batch_size={self.batch_rows} with stop={self.stop!r}: batches are filled with rows that come again. "
                f'Pass at most {_MOST_FILLED_ROWS}, or stop="first_exhausted".'
            )

    def describe(self) -> dict[str, Any]:
        """What decides the order of a blend, for its state."""
        return {
            "weights": list(self.weights),
            "per": self.per,
            "stop": self.stop,
            "batch_size": self.batch_rows,
            "drop_last": self.drop_last,
        }
