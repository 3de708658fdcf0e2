"""Keeps the position of a blend in its epoch, encodes it as a state, and checks states that are loaded.

Weights of steps that are not taken yet may differ from the weights in the state.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch_dataloader_utils._core.arguments import check_epoch
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.sealed_state import (
    check_seal,
    check_version,
    is_count,
    is_list,
    refuse_misfits,
    sealed,
)
from torch_dataloader_utils._core.weight_schedule import WeightSchedule
from torch_dataloader_utils._runtime.user_warning import warn_of_earlier_epoch
from torch_dataloader_utils.blending.picks import BlendOptions
from torch_dataloader_utils.blending.sources import BlendSource, Mark
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, ConfigTypeError

_VERSION = 1
_SOURCE_KEYS = {"state", "topology", "passes", "taken"}
_KEYS = {"version", "kind", "options", "epoch", "steps", "counts", "sources", "checksum"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendPosition:
    """Position in an epoch of a blend.

    steps: Number of steps taken. counts: Items that each source gave. marks: Position of each source.
    capped: Pairs (source, items) of sources that reached their cap, with the items of all sources until then.
    """

    epoch: int
    steps: int
    counts: tuple[int, ...]
    marks: tuple[Mark, ...]
    capped: tuple[tuple[int, int], ...] = ()

    def after(self, steps: int, amounts: Int64s, capped: Sequence[tuple[int, int]]) -> "BlendPosition":
        """Return the position `steps` later, after the sources gave `amounts` more items; later caps are ignored."""
        given = amounts.tolist()
        counts = tuple(count + n for count, n in zip(self.counts, given, strict=True))
        return replace(
            self,
            steps=self.steps + steps,
            counts=counts,
            capped=tuple(each for each in capped if each[1] <= sum(counts)),
            marks=tuple(replace(mark, taken=mark.taken + n) for mark, n in zip(self.marks, given, strict=True)),
        )


class BlendProgress:
    """Position of a blend, its only mutable part; the rules of a single loader apply (see stream/progress.py)."""

    def __init__(self, options: BlendOptions, sources: Sequence[BlendSource[Any]]) -> None:
        self._options = options
        self._sources = sources
        self._epoch = 0
        self._loaded: BlendPosition | None = None
        self._present: Callable[[], BlendPosition] | None = None
        # Where the present pass began. An abandoned pass that still gives batches holds another object.
        self._begun: BlendPosition | None = None

    @property
    def epoch(self) -> int:
        """Epoch of the present or next pass."""
        return self._epoch

    @property
    def position(self) -> BlendPosition:
        """Position for the state: the present position, or the start of the next epoch after the last batch."""
        return self.next_position if self._present is None else self._present()

    @property
    def next_position(self) -> BlendPosition:
        """Position at which a pass would begin now."""
        return self._start(self._epoch) if self._loaded is None else self._loaded

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the epoch of the next pass; keep a loaded position that is in this epoch."""
        epoch = check_epoch(epoch)
        if self._loaded is not None and self._loaded.epoch != epoch:
            warn_of_earlier_epoch(self._loaded.epoch, epoch)
            self._loaded = None
        self._epoch, self._present, self._begun = epoch, None, None

    def begin(self) -> BlendPosition:
        """Begin a pass and return its position, which becomes the present position."""
        begun = self._begun = self.next_position
        self._present, self._loaded = lambda: begun, None
        return begun

    def reach(self, begun: BlendPosition, position: Callable[[], BlendPosition] | None) -> None:
        """Set the position of the pass that began at `begun`; ignore a pass that was abandoned.

        position: Function that returns the position: each step sets a position, and few are asked for. None: the pass
            has ended.
        """
        if self._begun is begun:
            self._present = position or partial(self._start, begun.epoch + 1)

    def encode(self, position: BlendPosition) -> dict[str, Any]:
        """Return the state of a position as a new JSON-able dict."""
        state = {
            "version": _VERSION,
            "kind": "blend",
            "options": self._options.describe(),
            "epoch": position.epoch,
            "steps": position.steps,
            "counts": list(position.counts),
            "sources": [source.encode(mark) for source, mark in zip(self._sources, position.marks, strict=True)],
        }
        if self._options.max_epochs is not None:
            state["capped"] = [list(each) for each in position.capped]
        return sealed(state)

    def load(self, state: Mapping[str, Any]) -> None:
        """Let the next pass continue at the position of `state`.

        Raises:
            CheckpointMismatchError: the state is of another blend, of other data or options, or was changed; or the
                blend cannot resume it on this topology.
        """
        self._check(state)
        marks = [source.decode(entry) for source, entry in zip(self._sources, state["sources"], strict=True)]
        self._loaded = BlendPosition(
            epoch=state["epoch"],
            steps=state["steps"],
            counts=tuple(state["counts"]),
            marks=tuple(s.passes.under_present_topology(mark) for s, mark in zip(self._sources, marks, strict=True)),
            capped=tuple((source, items) for source, items in state.get("capped", ())),
        )
        self._epoch, self._present, self._begun = self._loaded.epoch, None, None

    def _start(self, epoch: int) -> BlendPosition:
        marks = tuple(source.begin(epoch) for source in self._sources)
        return BlendPosition(epoch=epoch, steps=0, counts=(0,) * len(marks), marks=marks)

    def _check(self, state: Mapping[str, Any]) -> None:
        is_of_blend = isinstance(state, Mapping) and state.get("kind") == "blend"
        if is_of_blend:
            check_version(state, _VERSION)
        if not is_of_blend or set(state) - {"capped"} != _KEYS:
            found = sorted(state, key=str) if isinstance(state, Mapping) else type(state).__name__
            raise CheckpointMismatchError(
                f"Not a state of a blend: keys {found}, wanted {sorted(_KEYS)}. Pass what state_dict() of a blend "
                "returned; load the state of a single loader into a single loader."
            )
        check_seal(state)
        # 1 and 1.0 are equal, as JSON has only one kind of number.
        is_same = state["options"] == self._options.describe()
        if not is_same and not self._differs_in_weights(state["options"]):
            raise CheckpointMismatchError(
                f"The state does not fit: its blend is {state['options']}, this blend is {self._options.describe()}. "
                "Resume with the weights and options of the state, or start the epoch again."
            )
        refuse_misfits(self._findings(state))  # afterwards: a blend of more sources was not changed
        if not is_same:
            self._check_past(WeightSchedule.described(state["options"]["weights"]), state["steps"])

    def _differs_in_weights(self, saved: Any) -> bool:
        """Return whether the options of a state differ only in the weights, and have a weight for each source."""
        mine = self._options.describe()
        if not isinstance(saved, Mapping) or {**saved, "weights": mine["weights"]} != mine:
            return False
        try:
            weights = WeightSchedule.described(saved["weights"]).weights
        except (ConfigError, ConfigTypeError):
            return False
        return len(weights[0]) == len(self._sources)

    def _check_past(self, saved: WeightSchedule, steps: int) -> None:
        """Raise CheckpointMismatchError if shares differ before step `steps`; later shares may differ."""
        changed = saved.first_difference(self._options.schedule, steps)
        if changed is not None:
            first, last, source, theirs, mine = changed
            raise CheckpointMismatchError(
                f"The state does not fit: it stands at step {steps}, and weights before that were changed: from step "
                f"{first} to {last} source {source} had a share of {theirs:.6g}, here {mine:.6g}. Its weights are "
                f"{saved.describe()}, here they are {self._options.schedule.describe()}. Weights may change from "
                f"step {steps} on: pass a WeightSchedule with the old weights before that step."
            )

    def _findings(self, state: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
        """Yield the findings for `refuse_misfits`. Each source's own state and its topology are checked elsewhere."""
        for name in ("epoch", "steps"):
            yield name, state[name], is_count(state[name])
        counts, entries = state["counts"], state["sources"]
        yield "counts", counts, is_list(counts, len(self._sources)) and all(map(is_count, counts))
        yield "sources", entries, is_list(entries, len(self._sources))
        capped = state.get("capped", [])
        yield "capped", capped, is_list(capped) and all(self._is_cap(each, sum(counts)) for each in capped)
        yield "capped", capped, len({source for source, _ in capped}) == len(capped)
        yield "capped", capped, ("capped" in state) == (self._options.max_epochs is not None)
        for entry in entries:
            yield "sources", entries, isinstance(entry, Mapping) and set(entry) == _SOURCE_KEYS
            yield "topology", entry["topology"], _is_topology(entry["topology"])
            for name in ("passes", "taken"):
                yield name, entry[name], is_count(entry[name])

    def _is_cap(self, value: Any, given: int) -> bool:
        is_pair = is_list(value, 2) and all(map(is_count, value))
        return is_pair and value[0] < len(self._sources) and value[1] <= given


def _is_topology(value: Any) -> bool:
    try:
        Topology(**value)
    except (TypeError, ConfigError):
        return False
    return set(value) == set(Topology.__slots__)
