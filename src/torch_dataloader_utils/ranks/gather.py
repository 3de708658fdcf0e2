"""`gather_metrics`: the metrics of all ranks, by one collective."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch.distributed as dist

from torch_dataloader_utils._observe.metrics import Metrics
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.ranks.agree import add_over_ranks
from torch_dataloader_utils.ranks.resolve import running_ranks

# Seconds travel as whole nanoseconds beside the counts.
_SCALES = {name: 1e9 if isinstance(number, float) else 1 for name, number in Metrics().to_dict().items()}

# A rank is slow by itself if it waits more than this many times the median.
_SLOW_RANK_FACTOR = 2


class HasMetrics(Protocol):
    """Object with metrics, such as a loader."""

    def metrics(self) -> Metrics: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Minimum, median and maximum of one number over all ranks, each with its rank; the median is the lower middle."""

    minimum: float
    minimum_rank: int
    median: float
    median_rank: int
    maximum: float
    maximum_rank: int


@dataclass(frozen=True, slots=True)
class GatheredMetrics:
    """Metrics of all ranks. ranks: one Metrics for each rank of the default process group, in order."""

    ranks: tuple[Metrics, ...]

    def spread(self, name: str) -> Spread:
        """Return the spread of one number, such as "rows_per_second" or "request_errors.throttled".

        Raises:
            ConfigError: metrics have no number with this name.
        """
        values: list[Any] = [each.to_dict().get(name, getattr(each, name, None)) for each in self.ranks]
        if not all(isinstance(value, (int, float)) for value in values):
            raise ConfigError(f"Metrics have no number called {name!r}. Take one of {', '.join(_SCALES)}.")
        order = np.argsort(values, kind="stable").tolist()
        low, middle, high = order[0], order[(len(order) - 1) // 2], order[-1]
        return Spread(
            minimum=values[low],
            minimum_rank=low,
            median=values[middle],
            median_rank=middle,
            maximum=values[high],
            maximum_rank=high,
        )

    @property
    def diagnosis(self) -> str | None:
        """Sentence that says why trainers wait for data, and names a slow rank; None if no trainer waits."""
        waits = self.spread("wait_fraction")
        cause = self.ranks[waits.maximum_rank].diagnosis
        if cause is None or len(self.ranks) == 1:
            return cause
        if waits.maximum > _SLOW_RANK_FACTOR * waits.median:
            return (
                f"Rank {waits.maximum_rank} holds up the others (which wait {waits.median:.0%} for data in the median, "
                f"and then for its gradients). {cause}"
            )
        alike = f"{waits.minimum:.0%} to {waits.maximum:.0%}"
        return f"All ranks wait about as long ({alike}); rank {waits.maximum_rank}: {cause}"


def gather_metrics(source: HasMetrics | Metrics) -> GatheredMetrics:
    """Return the metrics of all ranks, on every rank; one all-reduce of some hundred bytes a rank.

        gathered = gather_metrics(loader)
        gathered.spread("wait_seconds").maximum_rank, gathered.diagnosis

    Collective: every rank of the default process group calls it, in the trainer's thread. Without a group there is one
    rank.

    Args:
        source: loader, for its metrics since it was built; or Metrics, such as `loader.metrics() - before`.

    Raises:
        ConfigTypeError: source is neither.
    """
    if not isinstance(source, Metrics) and not callable(getattr(source, "metrics", None)):
        raise ConfigTypeError(f"gather_metrics got {of_type(source)}: pass a loader, or the value of loader.metrics().")
    metrics = source if isinstance(source, Metrics) else source.metrics()
    if running_ranks() < 2:
        return GatheredMetrics((metrics,))
    numbers = np.zeros((running_ranks(), len(_SCALES)), dtype=np.int64)
    own = metrics.to_dict()
    numbers[dist.get_rank()] = [round(own[name] * scale) for name, scale in _SCALES.items()]
    return GatheredMetrics(tuple(_metrics(row) for row in add_over_ranks(numbers).tolist()))


def _metrics(numbers: list[int]) -> Metrics:
    pairs = zip(_SCALES.items(), numbers, strict=True)
    return Metrics.from_dict({name: number if scale == 1 else number / scale for (name, scale), number in pairs})
