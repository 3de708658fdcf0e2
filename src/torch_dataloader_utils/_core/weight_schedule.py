"""Weights of a blend that change over time: shares by the place in the blend, and their integral in closed form.

{0: [8, 2], 1_000: [5, 5]}      pieces [0, 1000) and [1000, ∞), in each of which shares are linear
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_dataloader_utils._core.arguments import check_flag, check_integer
from torch_dataloader_utils._core.blend_index import BlendRule, as_weights, normalize_weights
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError

Floats = npt.NDArray[np.float64]

# Picks are counted in float64, where a place is exact up to here.
_MOST_STEPS = 1 << 52
# Shares written with other numbers, such as 7 3 and .7 .3, are the same shares.
_SAME_SHARE = 1e-9


@dataclass(frozen=True, slots=True, init=False)
class WeightSchedule:
    """Weights of a blend by the step of its epoch; the weights of the last step stay.

        WeightSchedule({0: [8, 2], 1_000: [5, 5]})                  8 2 up to step 1,000, then 5 5
        WeightSchedule({0: [8, 2], 1_000: [5, 5]}, linear=True)     on a straight line from 8 2 to 5 5

    Weights of a step are divided by their sum: they are shares. A source whose weight stays 0 gives nothing.

    Args:
        weights: Weights by step (0 included): one number a source, not negative. Steps are batches of the blend.
        linear: Move evenly from each step to the next; otherwise weights change at the steps.
        step_tokens: Number of tokens of a step, over all ranks; the keys of `weights` are then tokens. Weights change
            at the first step that begins at or after this number of tokens.

    Raises:
        ConfigTypeError, ConfigError: not a dict of steps and weights, no weights for step 0, other numbers of
            sources, or a source that never has a weight.
    """

    steps: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...]
    linear: bool

    def __init__(
        self, weights: Mapping[int, Sequence[float]], *, linear: bool = False, step_tokens: int | None = None
    ) -> None:
        if not isinstance(weights, Mapping):
            raise ConfigTypeError(
                f"weights={weights!r} of a schedule: pass a dict, such as {{0: [8, 2], 1_000: [5, 5]}}."
            )
        unit = 1 if step_tokens is None else check_integer("step_tokens", step_tokens, least=1)
        keys = sorted(check_integer("A step of a weight schedule", key, least=0) for key in weights)
        steps = tuple(-(-key // unit) for key in keys)
        if not steps or steps[0] != 0:
            raise ConfigError(f"The weight schedule begins at {keys[:1]}: give weights for step 0.")
        if len(set(steps)) < len(steps) or steps[-1] > _MOST_STEPS:
            raise ConfigError(
                f"The weight schedule has weights for steps {steps}: pass steps that differ, up to 2**52."
            )
        rows = tuple(tuple(as_weights(weights[key]).tolist()) for key in keys)
        for row in rows:
            normalize_weights(row)
            if len(row) != len(rows[0]):
                raise ConfigError(
                    f"A weight schedule of {len(rows[0])} sources has the weights {list(row)}: pass one for each."
                )
        unused = [source for source, column in enumerate(zip(*rows, strict=True)) if not any(column)]
        if unused:
            raise ConfigError(f"Source {unused[0]} never has a weight above 0: leave it out.")
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "weights", rows)
        object.__setattr__(self, "linear", check_flag("linear", linear))

    @classmethod
    def described(cls, value: Any) -> "WeightSchedule":
        """Return the schedule that `describe` described.

        Raises:
            ConfigTypeError, ConfigError: the value is not a description.
        """
        if not isinstance(value, Mapping):
            return cls({0: value})
        lists = value.get("steps"), value.get("weights")
        if set(value) != {"steps", "weights", "linear"} or not all(isinstance(each, list) for each in lists):
            raise ConfigTypeError(f"{value!r} is not a weight schedule.")
        if len(value["steps"]) != len(value["weights"]):
            raise ConfigError(f"{len(value['steps'])} steps and {len(value['weights'])} lists of weights.")
        return cls(dict(zip(value["steps"], value["weights"], strict=True)), linear=value["linear"])

    def describe(self) -> Any:
        """Return the schedule for JSON; weights that never change are a list."""
        if len(self.steps) == 1:
            return list(self.weights[0])
        return {"steps": list(self.steps), "weights": list(map(list, self.weights)), "linear": self.linear}

    def shares_at(self, step: float, *, before: bool = False) -> Floats:
        """Return the share of each source at a step [K]; `before`: just before the step."""
        index = max(0, (bisect_left if before else bisect_right)(self.steps, step) - 1)
        shares: Floats = np.array(normalize_weights(self.weights[index]))
        if not self.linear or index + 1 == len(self.steps):
            return shares
        first, last = self.steps[index : index + 2]
        return shares + (np.array(normalize_weights(self.weights[index + 1])) - shares) * (
            (step - first) / (last - first)
        )

    def first_difference(self, other: "WeightSchedule", stop: int) -> tuple[int, int, int, float, float] | None:
        """Return where shares first differ before step `stop`: (first step, last step, source, own share, other's)."""
        borders = sorted({step for step in (*self.steps, *other.steps) if step < stop} | {stop})
        for first, last in pairwise(borders):
            for place, before in ((first, False), (last, True)):
                mine, theirs = (each.shares_at(place, before=before) for each in (self, other))
                apart = np.abs(mine - theirs)
                if apart.max() > _SAME_SHARE:
                    source = int(apart.argmax())
                    return first, last, source, float(mine[source]), float(theirs[source])
        return None

    def pieces(self, step_items: int = 1, capped: Collection[tuple[int, int]] = ()) -> "tuple[SchedulePiece, ...]":
        """Return the schedule by items, with `step_items` items a step, as pieces in which shares are linear.

        capped: (source, items) pairs. After this number of items of the blend the source gives nothing more: from then
        on only the other sources have weights, as if the source did not exist.
        """
        nodes = [float(step * step_items) for step in self.steps]
        borders = [*sorted({*nodes, *(float(items) for _, items in capped)}), np.inf]
        base = np.zeros(len(self.weights[0]))
        pieces = []
        for start, stop in pairwise(borders):
            given = [source for source, items in capped if items <= start]
            index = bisect_right(nodes, start) - 1
            shares, half_slopes = self._between(index, nodes, start, given)
            pieces.append(SchedulePiece(start=start, stop=stop, base=base, shares=shares, half_slopes=half_slopes))
            if stop < np.inf:
                base = base + (stop - start) * (shares + half_slopes * (stop - start))
        return tuple(pieces)

    def _between(self, index: int, nodes: list[float], start: float, given: list[int]) -> tuple[Floats, Floats]:
        """Return shares at `start` and half of their slopes, in the part of the schedule after node `index`."""
        first = self._shares_without(index, given)
        if not self.linear or index + 1 == len(nodes):
            return first, np.zeros_like(first)
        last = self._shares_without(index + 1, given)
        # All other sources have weight 0 at this end of the part: take the proportions of the other end.
        first, last = (first if first.any() else last), (last if last.any() else first)
        slopes = (last - first) / (nodes[index + 1] - nodes[index])
        return first + slopes * (start - nodes[index]), slopes / 2

    def _shares_without(self, index: int, given: list[int]) -> Floats:
        weights = np.array(self.weights[index])
        weights[given] = 0.0
        total = np.sum(weights)
        return weights / total if total > 0 else weights


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SchedulePiece:
    """Items [start, stop) of a blend: shares at its start [K], half of their slopes, and their integral up to it."""

    start: float
    stop: float
    base: Floats
    shares: Floats
    half_slopes: Floats

    @property
    def active(self) -> npt.NDArray[np.intp]:
        """Sources that give something in this piece."""
        return np.flatnonzero((self.shares > 0) | (self.half_slopes > 0))

    def rule(self, active: npt.NDArray[np.intp], others: int) -> BlendRule:
        """Return the rule for the active sources, by the items that they gave; other sources gave `others` items."""
        base = self.base[active] if self.base.any() else None
        half_slopes = self.half_slopes[active]
        return BlendRule(
            shares=self.shares[active],
            limits=None,
            base=base,
            half_slopes=half_slopes if half_slopes.any() else None,
            start=self.start - others,
            least=1.0 - others,
        )
