"""Keep the position of a loader: the epoch, the batches received, and the position where the next pass begins."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch.utils.data import get_worker_info

from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.position import Cursor, Position, RankCursors, Segment
from torch_dataloader_utils._core.state import Identity, decode_state, encode_state, partial_state
from torch_dataloader_utils._runtime.shared_memory import SharedEpoch, SharedPasses
from torch_dataloader_utils._runtime.user_warning import warn_of_earlier_epoch, warn_user
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError

_log = logging.getLogger(__name__)

# States of up to about 200 topologies are smaller.
_SMALL_BYTES = 1_000


class Pass:
    """Pass over an epoch, or over the rest of an epoch; counts the batches that were received.

    stride: number of steps from one batch to the next: 1, or the number of workers if one worker counts its own
        batches.
    was_out_of_order: true if a batch ever came before a batch of an earlier step (`in_order=False`).
    """

    def __init__(self, position: Position, rank: int, stride: int) -> None:
        self._begin = position
        self._rank = rank
        self._stride = stride
        self._steps = position.segment.steps_of(rank)
        stored = dict(position.segment.cursors or ()).get(rank)
        num_workers = position.segment.topology.num_workers
        self._stored = ((0, 0),) * num_workers if stored is None else stored.workers
        self._reached: list[Cursor] | None = None if stored is None else list(stored.workers)
        self._next_worker = position.segment.next_worker(rank)
        self._before_last: Position | None = None
        self._from_worker: dict[int, int] = {}
        self.was_out_of_order = False

    @property
    def before_last(self) -> Position:
        """Position before the last batch; with known row counts, the same as `position`."""
        return self._before_last or self.position

    @property
    def position(self) -> Position:
        """Position after the last batch received."""
        cursors = None
        if self._reached is not None:
            reached = RankCursors(workers=tuple(self._reached), next_worker=self._next_worker)
            cursors = ((self._rank, reached),)
        segment = replace(self._begin.segment, steps=self._steps, cursors=cursors)
        return replace(self._begin, segment=segment)

    def count(self) -> None:
        """Count one more received batch."""
        self._steps += self._stride

    def count_out_of_order(self, worker: int) -> None:
        """Count a batch of `worker` that may come before a batch of an earlier step (`in_order=False`)."""
        self._steps += 1
        self._from_worker[worker] = self._from_worker.get(worker, 0) + 1
        self.was_out_of_order = self.was_out_of_order or not self.is_in_order

    def count_with_cursor(self, worker: int, cursor: Cursor) -> None:
        """Count a batch of `worker`, without row counts. cursor: progress of its lane since the pass began."""
        self._before_last = self.position
        self._steps += self._stride
        if self._reached is None:
            self._reached = list(self._stored)
        self._next_worker = (worker + self._stride) % len(self._stored)
        units, rows = self._stored[worker]
        self._reached[worker] = (units + cursor[0], cursor[1] if cursor[0] else rows + cursor[1])

    @property
    def is_in_order(self) -> bool:
        """True if the received batches are the first batches of the epoch, so that their count identifies them."""
        workers = self._begin.segment.topology.num_workers
        first, count = self._begin.segment.steps_of(self._rank) % workers, sum(self._from_worker.values())
        return all(
            self._from_worker.get((first + offset) % workers, 0) == (count - offset + workers - 1) // workers
            for offset in range(workers if self._from_worker else 0)
        )


class Progress:
    """Mutable part of a data set: the position. Plans are made from the position, and states are taken from it.

    Everything else in a data set is constant. Only `ComparedPasses` also counts passes, to compare the passes of ranks;
    no row depends on that count.

    Workers of a foreign DataLoader have copies of the `Progress` from the time they started. Through shared memory a
    copy learns the epoch that was set in the trainer's process, and whether a state was loaded there later.

    A pass begins at the start of the epoch or, once, at the position of a loaded state. After `break`, a new pass
    begins the epoch again; a state taken in between has the position of the broken pass. After the last batch the state
    names the next epoch. A pass without `set_epoch` still repeats the old epoch, as always in PyTorch, with a warning
    if shuffled.

    is_read_ahead: true if the reader holds one batch that was not used yet. Lightning does this if it does not know the
    length. Without row counts, states then name the position before this batch.

    files_may_change: true if a state at the start of an epoch may be of other plain files; see `decode_state`.

    With several ranks the state at the end of an epoch keeps the log of that epoch, the same on every rank: other ranks
    may still be in the epoch, and `merge_states` must know that this rank has taken all its steps.

    Inside a DataLoader with W workers each worker p counts for itself: only the steps p, p + W, p + 2W, ... of the
    rank. So the number of steps identifies both the worker and its place.
    """

    def __init__(self, identity: Identity, topology: Topology, rank: int) -> None:
        self._identity = identity
        self._topology = topology
        self._rank = rank
        self._epoch = 0
        self._loaded: Position | None = None
        self._loaded_worker: int | None = None
        self._worker: int | None = None
        self._pass: Pass | None = None
        self._finished_epoch: int | None = None
        self._has_ended = False
        self._has_warned = False
        self.is_read_ahead = False
        self.files_may_change = False
        self._shared_epoch = SharedEpoch()
        self._shared_passes = SharedPasses()
        # What this copy has seen in shared memory: the epoch that was set last, and the number of loaded states.
        self._known_epoch = 0
        self._known_loads = 0

    @property
    def epoch(self) -> int:
        """Epoch of the present or next pass."""
        return self._epoch

    @property
    def has_finished(self) -> bool:
        """True if the last pass took all its steps, and no other epoch was chosen since."""
        return self._finished_epoch is not None

    @property
    def has_begun_in_workers(self) -> bool:
        """True if workers of a foreign DataLoader have begun a pass over this data."""
        return self._shared_passes.has_begun

    def change_data(self, identity: Identity) -> None:
        """Change the data of the next pass; only between epochs.

        Raises:
            ConfigError: the position is inside an epoch.
        """
        self.check_between_epochs()
        self._identity = identity
        # The log is of other data: no state of another rank fits it any more.
        self._pass = None
        if self._loaded is not None:
            self._loaded = replace(self._loaded, before=())
        self._known_loads = self._shared_passes.count_load()

    def check_between_epochs(self) -> None:
        """Raise ConfigError if the position is inside an epoch."""
        if self.position.segments:
            raise ConfigError(
                f"Epoch {self._epoch} is in progress: its data cannot change until it ends. Refresh after its last "
                "batch, or after set_epoch() to another epoch."
            )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass. Keeps a loaded position of that epoch, but no log of the epoch before."""
        if self._loaded is not None:
            warn_of_earlier_epoch(self._loaded.epoch, epoch)
        self._shared_epoch.value = epoch
        self._shared_passes.forget()
        self._go_to_epoch(epoch)

    def _go_to_epoch(self, epoch: int) -> None:
        self._known_epoch = epoch
        if self._loaded is not None and self._loaded.epoch != epoch:
            self._forget_loaded()
        elif self._loaded is not None:
            self._loaded = replace(self._loaded, before=())
        self._epoch = epoch
        self._pass = None
        self._finished_epoch = None

    def follow_trainer(self, worker: int | None) -> None:
        """Take over the epoch that was set in the trainer's process since this copy last looked.

        worker: worker of a foreign DataLoader that begins a pass; None in the trainer's process.

        Raises:
            ConfigError: a state was loaded in the trainer's process, and it does not reach running workers.
        """
        passes, epoch = self._shared_passes, self._shared_epoch.value
        if passes.loads != self._known_loads:
            raise ConfigError(
                "A state was loaded into a data set (or the data set was refreshed) after persistent workers of a "
                "DataLoader had begun to read it, and the change does not reach them. Do this before the first pass, "
                "make a new DataLoader, or use create_dataloader."
            )
        has_begun = passes.has_begun if worker is None else not passes.begin(worker)
        if has_begun and self._loaded_worker is None:
            # Each new worker gets a copy from before the pass that used the loaded state.
            self._forget_loaded()
        if epoch != self._known_epoch:
            self._go_to_epoch(epoch)

    def _forget_loaded(self) -> None:
        """Begin the next pass at the start of the epoch."""
        self._loaded = None
        self._loaded_worker = None

    def next_position(self, topology: Topology) -> Position:
        """Return the position where a pass under `topology` would begin now."""
        if self._loaded is not None:
            return self._loaded.under(topology)
        return Position(epoch=self._epoch, segment=Segment(topology=topology))

    def begin(self, topology: Topology, worker: int | None = None) -> Pass:
        """Begin a pass of the whole rank, or of one DataLoader worker of the rank.

        Raises:
            CheckpointMismatchError: the loaded state is the state of one of several workers, under another topology.
        """
        position = self.next_position(topology)
        if worker is not None:
            self._check_own_topology(topology)
            position = self._own_place(position, worker)
        options = self._identity.options
        if self._finished_epoch == self._epoch and (options.shuffle or options.shuffle_rows is not None):
            warn_user(
                f"A second pass over epoch {self._epoch} without set_epoch: the order is the same as before. Call "
                "set_epoch(epoch) before each pass."
            )
        self._forget_loaded()
        self._finished_epoch = None
        self._has_ended = False
        self._worker = worker
        self._pass = Pass(position, self._rank, 1 if worker is None else topology.num_workers)
        return self._pass

    def _check_own_topology(self, topology: Topology) -> None:
        """Raise CheckpointMismatchError if a worker's state is of another topology.

        Planning the rest of the epoch needs the positions of all workers, and a worker knows only its own.
        """
        loaded = self._loaded
        if self._loaded_worker is None or loaded is None or topology.num_workers == 1:
            return
        if loaded.segment.has_begun and loaded.topology != topology:
            raise CheckpointMismatchError(
                "With several workers, a StatefulDataLoader resumes only with the same ranks, workers and batch size: "
                f"the state is of {loaded.topology}, and here it is {topology}. Resume with the topology of the state, "
                "or use create_dataloader: its states load with any topology."
            )

    def _own_place(self, position: Position, worker: int) -> Position:
        """Return the position at the next batch of `worker`. A position of one worker is returned as it is.

        A foreign DataLoader takes its first batch from its own worker 0. Any worker of the plan may give this batch.
        """
        segment = position.segment
        steps = segment.steps_of(self._rank)
        if self._loaded_worker is not None and steps:
            return position
        cursors = tuple(
            (rank, replace(each, next_worker=(each.next_worker + worker) % len(each.workers)))
            for rank, each in segment.cursors or ()
        )
        return replace(position, segment=replace(segment, steps=steps + worker, cursors=cursors or None))

    def finish(self, of: Pass) -> None:
        """Record that pass `of` has delivered its last batch: from now on the state names the next epoch."""
        if self._pass is of:
            self._finished_epoch = self._epoch

    def end(self, of: Pass) -> None:
        """Record that pass `of` was asked for a batch after its last batch."""
        self.finish(of)
        self._has_ended = self._has_ended or self._pass is of

    @property
    def position(self) -> Position:
        """Position of the state: the current position, or after the last batch the start of the next epoch.

        One of several workers stays in its epoch after its last step: other workers may still have batches of it.
        """
        if self._finished_epoch is not None and self._worker is None:
            start = Segment(topology=self._topology)
            return Position(epoch=self._finished_epoch + 1, segment=start, before=self._finished_log())
        if self._pass is not None:
            return self._pass.before_last if self.is_read_ahead else self._pass.position
        if self._loaded is not None and self._loaded_worker is not None:
            return self._loaded
        return self.next_position(self._topology)

    def _finished_log(self) -> tuple[Segment, ...]:
        """Return the log of the finished epoch if there are several ranks, else (). See the class."""
        if self._pass is None or self._topology.num_ranks == 1:
            return ()
        passed = self._pass.position
        return (*passed.history, Segment(topology=passed.topology, steps=None))

    def state_dict(self) -> dict[str, Any]:
        """Return the state as a new JSON-able dict.

        Raises:
            ConfigError: batches came out of order (`in_order=False`), and a number of steps cannot identify them; or
                workers of a DataLoader read the data set, and only the workers know their positions.
        """
        if get_worker_info() is None and self._shared_passes.has_begun:
            raise ConfigError(
                "Workers of a DataLoader read this data set, and their positions are not known in this process. Take "
                "states from the loader that create_dataloader gives, or from torchdata's StatefulDataLoader around "
                "for_torchdata(dataset); after a pass, set_epoch() to the next epoch first."
            )
        if self._finished_epoch is None and self._pass is not None and not self._pass.is_in_order:
            raise _out_of_order()
        return self._encoded(self.position)

    def state_for_torchdata(self) -> dict[str, Any]:
        """Return the state for torchdata: it still names the present epoch after the last batch.

        The state names the next epoch once a batch after the last batch was requested. A pass that continues from the
        state in between is empty.

        Raises:
            ConfigError: see `state_dict`.
        """
        if self._pass is None or self._has_ended or self._finished_epoch is None:
            return self.state_dict()
        return self._encoded(self._pass.position)

    def encode(self, position: Position) -> dict[str, Any]:
        """Return the state of a former position of this data set.

        Raises:
            ConfigError: batches of its pass came out of order, perhaps before this position.
        """
        if self._pass is not None and self._pass.was_out_of_order and position.epoch == self._pass.position.epoch:
            raise _out_of_order()
        return self._encoded(position)

    def _encoded(self, position: Position) -> dict[str, Any]:
        # Before its first pass, a worker is at the position of the loaded state, which may be the worker's own state.
        worker = self._loaded_worker if self._pass is None else self._worker
        state = encode_state(self._identity, position, worker)
        topologies = len(position.segments or position.before)
        if topologies > 1 and not self._has_warned and (size := len(json.dumps(state))) > _SMALL_BYTES:
            self._has_warned = True
            warn_user(
                f"The state has {size:,} bytes, more than 1 kB: it lists the {topologies} topologies that its epoch "
                "has seen, and is exact. Store it where larger states fit; in the next epoch it is small again."
            )
        return state

    def load_state_dict(
        self, state: Mapping[str, Any], counted: Callable[[Position], Position], *, in_worker: bool = False
    ) -> None:
        """Let the next pass continue from `state`.

        counted: function that replaces "all steps" in a position's log by the plan's number of steps.
        in_worker: true if a worker of a foreign DataLoader loads the state; then it may be the worker's own state.

        Raises:
            CheckpointMismatchError: the state is of other data or other options, or was changed; without row counts,
                it is the state of another rank; or it is the state of one worker.
        """
        loaded, worker = decode_state(state, self._identity, self._topology, files_may_change=self.files_may_change)
        if worker is not None and not in_worker:
            raise partial_state(worker)
        if state["fingerprint"] != self._identity.fingerprint:
            before = dict(state["settings"])
            moves = [f"{name} {text}, before {before.get(name)}" for name, text in self._identity.settings]
            _log.info(
                "Epoch %d begins with later data than the state was saved with: %s", loaded.epoch, "; ".join(moves)
            )
        stopped = loaded.segment
        if stopped.cursors and stopped.topology == self._topology:
            stopped.cursors_of([self._rank])  # raises if the state lacks this rank's cursors
        self._loaded, self._loaded_worker = counted(loaded), worker
        self._epoch = self._loaded.epoch
        self._pass = None
        self._finished_epoch = None
        if not in_worker:
            self._known_loads = self._shared_passes.count_load()
            self._shared_epoch.value = self._known_epoch = self._epoch


def _out_of_order() -> ConfigError:
    return ConfigError(
        "With in_order=False the batches received so far are not the first of the epoch, and a state would lose or "
        "repeat rows. Save states at the end of an epoch, or leave in_order=True."
    )
