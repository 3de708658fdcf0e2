"""Where a blend stands, and its state as JSON.

    {"version": 1, "kind": "blend", "options": {"weights": [...], ...}, "epoch": 0, "steps": 120, "counts": [60, 60],
     "sources": [{"state": {...}, "topology": {...}, "passes": 0, "taken": 60}, ...], "checksum": "..."}

Under 1 kB a source, whatever the number of steps; the same on every rank.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch_dataloader_utils._core.arguments import check_integer
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.state import check_seal, check_version, is_count, is_list, refuse_misfits, sealed
from torch_dataloader_utils.blending.options import BlendOptions
from torch_dataloader_utils.blending.passes import Mark
from torch_dataloader_utils.blending.source import Source
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError

_VERSION = 1
_SOURCE_KEYS = {"state", "topology", "passes", "taken"}
_KEYS = {"version", "kind", "options", "epoch", "steps", "counts", "sources", "checksum"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendPosition:
    """A place in a blend's epoch. steps: taken. counts: units that each source gave. marks: where each stands."""

    epoch: int
    steps: int
    counts: tuple[int, ...]
    marks: tuple[Mark, ...]

    def after(self, amounts: Int64s) -> "BlendPosition":
        """The place one step later, in which the sources gave these units."""
        given = amounts.tolist()
        return replace(
            self,
            steps=self.steps + 1,
            counts=tuple(count + n for count, n in zip(self.counts, given, strict=True)),
            marks=tuple(replace(mark, taken=mark.taken + n) for mark, n in zip(self.marks, given, strict=True)),
        )


class BlendProgress:
    """The one mutable thing of a blend; the same rules as those of a single loader (see stream/progress.py)."""

    def __init__(self, options: BlendOptions, sources: Sequence[Source]) -> None:
        self._options = options
        self._sources = sources
        self._epoch = 0
        self._loaded: BlendPosition | None = None
        self._present: BlendPosition | None = None
        # Where the present pass began; this very object tells it from a pass that was left and still gives batches.
        self._begun: BlendPosition | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the present or next pass."""
        return self._epoch

    @property
    def position(self) -> BlendPosition:
        """What the state says: the present place, or the start of the next epoch once the last batch is out."""
        return self.next_position if self._present is None else self._present

    @property
    def next_position(self) -> BlendPosition:
        """Where a pass would begin now."""
        return self._start(self._epoch) if self._loaded is None else self._loaded

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass one over `epoch`; keeps a loaded position that is in this epoch."""
        epoch = check_integer("epoch", epoch, least=0)
        if self._loaded is not None and self._loaded.epoch != epoch:
            self._loaded = None
        self._epoch, self._present, self._begun = epoch, None, None

    def begin(self) -> BlendPosition:
        """Begin a pass; where it stands then is the present place."""
        self._present = self._begun = self.next_position
        self._loaded = None
        return self._present

    def reach(self, begun: BlendPosition, position: BlendPosition, *, is_last: bool) -> None:
        """The pass that `begin` started at `begun` stands at `position`, or is over; says nothing if it was left."""
        if self._begun is begun:
            self._present = self._start(position.epoch + 1) if is_last else position

    def encode(self, position: BlendPosition) -> dict[str, Any]:
        """The state of a position as a new JSON-able dict."""
        state = {
            "version": _VERSION,
            "kind": "blend",
            "options": self._options.describe(),
            "epoch": position.epoch,
            "steps": position.steps,
            "counts": list(position.counts),
            "sources": [source.encode(mark) for source, mark in zip(self._sources, position.marks, strict=True)],
        }
        return sealed(state)

    def load(self, state: Mapping[str, Any]) -> None:
        """Let the next pass continue where `state` stood.

        Raises:
            CheckpointMismatchError: another blend, other data or options, a topology on which it cannot go on, or a
                state that was changed.
        """
        self._check(state)
        marks = [source.decode(entry) for source, entry in zip(self._sources, state["sources"], strict=True)]
        self._loaded = BlendPosition(
            epoch=state["epoch"],
            steps=state["steps"],
            counts=tuple(state["counts"]),
            marks=tuple(s.passes.under_present_topology(mark) for s, mark in zip(self._sources, marks, strict=True)),
        )
        self._epoch, self._present, self._begun = self._loaded.epoch, None, None

    def _start(self, epoch: int) -> BlendPosition:
        marks = tuple(source.begin(epoch) for source in self._sources)
        return BlendPosition(epoch=epoch, steps=0, counts=(0,) * len(marks), marks=marks)

    def _check(self, state: Mapping[str, Any]) -> None:
        is_of_blend = isinstance(state, Mapping) and state.get("kind") == "blend"
        if is_of_blend:
            check_version(state, _VERSION)
        if not is_of_blend or set(state) != _KEYS:
            found = sorted(state, key=str) if isinstance(state, Mapping) else type(state).__name__
            raise CheckpointMismatchError(
                f"Not a state of a blend: keys {found}, wanted {sorted(_KEYS)}. Pass what state_dict() of a blend "
                "returned; states of single loaders are for those."
            )
        check_seal(state)
        # As JSON has it: 1 and 1.0 are one number, and so they are here.
        if state["options"] != self._options.describe():
            raise CheckpointMismatchError(
                f"The state does not fit: its blend is {state['options']}, this one is {self._options.describe()}. "
                "Resume with the weights and options that it was saved with, or start the epoch afresh."
            )
        refuse_misfits(self._findings(state))  # afterwards: a blend of more sources was not changed

    def _findings(self, state: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
        """See `refuse_misfits`; what is in a source's own state and topology is for these to check."""
        for name in ("epoch", "steps"):
            yield name, state[name], is_count(state[name])
        counts, entries = state["counts"], state["sources"]
        yield "counts", counts, is_list(counts, len(self._sources)) and all(map(is_count, counts))
        yield "sources", entries, is_list(entries, len(self._sources))
        for entry in entries:
            yield "sources", entries, isinstance(entry, Mapping) and set(entry) == _SOURCE_KEYS
            yield "topology", entry["topology"], _is_topology(entry["topology"])
            for name in ("passes", "taken"):
                yield name, entry[name], is_count(entry[name])


def _is_topology(value: Any) -> bool:
    try:
        Topology(**value)
    except (TypeError, ConfigError):
        return False
    return set(value) == set(Topology.__slots__)
