"""Checks that all ranks of a job read the same, through the key-value store of the default process group.

Each rank publishes a record, and the last rank marks the comparison as complete. Every rank then learns from one sum
whether the records are equal, and reads all records only if they differ. No collective: a rank whose peers never
publish goes on without an answer. See docs/design/0014-trainers.md.
"""

import json
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, DataError, LoaderError, plural
from torch_dataloader_utils.ranks.resolve import running_ranks

Record = Mapping[str, str]

# Number of comparisons that a process keeps in the store; older comparisons are deleted.
_KEPT = 16

# Longest wait of a rank for its peers before a collective; after that it waits in the collective.
_LONGEST_WAIT = timedelta(seconds=60)

# Time between two looks at a rank that is waited for between passes.
_LOOK_AGAIN = timedelta(seconds=1)

# The sum over 2^23 ranks fits into the store's 64 bits.
_NUMBER_BITS = 40

# Of more files, every second, third, ... name is compared: a million names would take a second.
_COMPARED_NAMES = 10_000

_ADVICE = {
    "files": "Files may have come while the ranks looked. Pass the same path on all ranks, with "
    "broadcast_inventory=True or one inventory= for all",
    "blend epoch": "Call set_epoch of the blend on every rank with the same number",
    "epoch": "Call set_epoch on every rank with the same number",
    "log": "Load the same state on every rank; merge_states makes one of several",
    "filters": "Pass the same filter on every rank, and a list instead of a set, whose order differs in each process",
}


class Comparison:
    """One comparison of the records of several ranks. peers: global ranks that compare, this rank included."""

    def __init__(self, name: str, peers: Sequence[int], record: Record) -> None:
        self.key = f"torch_dataloader_utils/{name}/{_digest(str(list(peers)))}"
        self._peers = peers
        self._record = dict(record)
        self._number = int(_digest(json.dumps(self._record))[: _NUMBER_BITS // 4], 16)
        self._is_settled = False
        # Keys that must be in the store too before a difference is an error.
        self._conditions: tuple[str, ...] = (f"{self.key}/waited",)

    def publish(self) -> None:
        """Publish the record of this rank; the last rank marks the comparison as complete."""
        try:
            store = _store()
            store.set(self._of(dist.get_rank()), json.dumps(self._record))
            store.add(f"{self.key}/sum", self._number)
            if store.add(f"{self.key}/count", 1) == len(self._peers):
                store.set(f"{self.key}/all", "1")
        except RuntimeError:  # a store that is gone or lacks an operation ends the comparison, not the job
            self._is_settled = True

    def check(self) -> None:
        """Compare if all records are published; return at once.

        Raises:
            ConfigError, DataError, CheckpointMismatchError: records differ. All ranks that check raise the same error.
        """
        records: list[Record] = []
        try:
            if self._is_settled or not running_ranks() or not _store().check([f"{self.key}/all"]):
                return
            store, names = _store(), list(map(self._of, self._peers))
            if store.add(f"{self.key}/sum", 0) == len(self._peers) * self._number:
                self._is_settled = True
            elif store.check([*names, *self._conditions]):
                records = [json.loads(store.get(name)) for name in names]
        except RuntimeError:  # as above
            self._is_settled = True
        _refuse_differences(self._peers, records)

    def wait(self) -> None:
        """Wait for all records, then compare; for ranks that meet in a collective next.

        Raises:
            ConfigError, DataError: see `check`.
        """
        try:
            _store().set(f"{self.key}/waited", "1")
            _store().wait([f"{self.key}/all"], _LONGEST_WAIT)
        except RuntimeError:  # a rank is missing: the collective will say so
            return
        self.check()

    def wait_between_passes(self, following: "Comparison", call: str) -> None:
        """Wait for all records; for a call that all ranks must make between the same two passes.

        following: comparison of the next pass. Each rank watches only the rank after it, so that large jobs ask the
        store little.

        Raises:
            ConfigError: a rank began the next pass without the call, or the time-out of the process group is over.
        """
        place = self._peers.index(dist.get_rank())
        watched = self._peers[(place + 1) % len(self._peers)]
        with suppress(RuntimeError):  # as above
            store, waited_from = _store(), time.monotonic()
            while True:
                has_gone_on = store.check([f"{following._of(watched)}/inside"])
                if store.check([f"{self.key}/all"]):  # the watched rank made the call first
                    return
                is_over = time.monotonic() - waited_from > store.timeout.total_seconds()
                if has_gone_on or is_over:
                    who = (
                        f"rank {watched} began its next pass without it"
                        if has_gone_on
                        else "some ranks have not made this call"
                    )
                    raise ConfigError(f"{call}: {who}. Call it on every rank, between the same two epochs.")
                with suppress(RuntimeError):  # the others may still come
                    store.wait([f"{self.key}/all"], _LOOK_AGAIN)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Mark this rank as inside the pass; a difference is an error only while all ranks are inside.

        A rank that iterated over its loader alone is in another pass than the others. A rank that leaves with the error
        keeps its mark, so that the others find the error too.
        """
        self._conditions = tuple(f"{self._of(rank)}/inside" for rank in self._peers)
        self._mark(lambda store, name: store.set(name, "1"))
        try:
            yield
        except LoaderError:
            raise
        except BaseException:
            self._mark(lambda store, name: store.delete_key(name))
            raise
        self._mark(lambda store, name: store.delete_key(name))

    def _mark(self, change: Callable[[Any, str], object]) -> None:
        if running_ranks():
            with suppress(RuntimeError):  # as above
                change(_store(), f"{self._of(dist.get_rank())}/inside")

    def settle(self) -> None:
        """End the comparison without a result."""
        self._is_settled = True

    def delete(self) -> None:
        """Delete the keys of this rank and the shared keys from the store."""
        if not running_ranks():
            return
        try:
            for name in (str(dist.get_rank()), f"{dist.get_rank()}/inside", "sum", "count", "all", "waited"):
                _store().delete_key(f"{self.key}/{name}")
        except RuntimeError:  # as above
            return

    def _of(self, rank: int) -> str:
        return f"{self.key}/{rank}"


_recent: deque[Comparison] = deque()
_built: Counter[str] = Counter()


def publish(name: str, peers: Sequence[int], record: Record) -> Comparison:
    """Publish a record under a name, and return the comparison. An earlier comparison of the same name is reused.

    peers: global ranks that compare; () for all ranks of the default process group.
    """
    comparison = Comparison(name, peers or range(running_ranks()), record)
    for earlier in _recent:
        if earlier.key == comparison.key:
            return earlier
    comparison.publish()
    _recent.append(comparison)
    if len(_recent) > _KEPT:
        _recent.popleft().delete()
    return comparison


def check_published() -> None:
    """Check all comparisons that this process keeps."""
    for comparison in tuple(_recent):
        comparison.check()


def name_of_call(kind: str) -> str:
    """Return a name that is equal on all ranks that run the same code: from the calling lines and their count.

    An object that one rank alone builds elsewhere in the program does not shift the names of other objects.
    """
    lines, frame = [], sys._getframe(1)
    while frame is not None:
        lines.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    name = f"{kind}-{_digest(' '.join(lines))}"
    _built[name] += 1
    return f"{name}-{_built[name]}"


def check_alike(inventory: Inventory) -> None:
    """Check that all ranks have the same row groups, before they divide row groups by number. All ranks call it.

    Raises:
        DataError: row groups differ. All ranks raise it.
    """
    publish(name_of_call("data"), (), data_record(inventory)).wait()


def data_record(inventory: Inventory) -> dict[str, str]:
    """Return digests of everything that determines the rows of row group i.

    Times and the common directory of all files are left out: ranks may have copies on local disks.
    """
    groups, paths, root = inventory.groups, inventory.files.paths, len(inventory.files.root)
    some = range(0, len(paths), 1 + len(paths) // _COMPARED_NAMES)
    names = "\n".join(paths[file][root:] for file in some)
    arrays = inventory.files.sizes, groups.file, groups.ordinal, groups.physical_rows, groups.live_rows
    content = b"".join(np.ascontiguousarray(array).tobytes() for array in (*arrays, groups.projected_bytes))
    content += names.encode()
    counts = f"{plural(inventory.num_files, 'file')} with {plural(inventory.num_groups, 'row group')}"
    return {
        "files": f"{counts}, sizes, rows and names {_digest(content)}",
        "snapshot": str(inventory.snapshot or "none"),
    }


def options_record(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as short texts."""
    return {name: _short(str(value)) for name, value in options.items()}


class ComparedPasses:
    """Comparisons of the passes of one data set, each under a number that is equal on all ranks.

    A pass that was left and begins again at its old place keeps its number, so that one rank may look at a batch alone.

    peers: see `Comparison`. options: see `options_record`.
    compares_places: whether epoch and log are compared; False where a blend chooses both.
    """

    def __init__(self, peers: Sequence[int], options: Record) -> None:
        self.peers = peers
        self.options = options
        self.compares_places = True
        self._name = name_of_call("pass")
        self._number = 0
        self._place: Hashable = None
        # Batches that the present pass has not delivered yet, if known.
        self.left: int | None = None

    def meet(self, call: str) -> None:
        """Wait until every rank has made this call after the same pass; see `Comparison.wait_between_passes`."""
        number = self._number if self._place is None else self._number + 1
        following = Comparison(f"{self._name}-{number}", self.peers or range(running_ranks()), {})
        publish(f"{self._name}-{number}-{call}", self.peers, {}).wait_between_passes(following, call)

    @contextmanager
    def comparing(self, record: Record, place: Hashable, left: int | None) -> Iterator["PassComparison"]:
        """Publish the record of the pass inside; `PassComparison.before_batch` compares it with the other ranks.

        place: start of the pass, any value; None: passes are not distinguished.
        left: number of batches of the pass; None if not known.

        Raises:
            ConfigError, DataError, CheckpointMismatchError: see `Comparison.check`.
        """
        if self._place is not None and (place != self._place or self.left == 0):
            self._number += 1
        self._place, self.left = place, left
        comparison = publish(f"{self._name}-{self._number}", self.peers, {**self.options, **record})
        with comparison.inside():
            compared = PassComparison(self)
            yield compared
            if self._place is not None:
                self.left = 0
            if compared.num_given < 2:
                check_published()


class PassComparison:
    """Checks of published records before batches 2, 4, 8, ... of one pass, and after a single batch.

    If ranks meet in a collective at each step, all ranks have published before the second batch, so all ranks raise
    there. A check before the first batch would let some ranks raise and the others wait.
    """

    def __init__(self, passes: ComparedPasses) -> None:
        self._passes = passes
        self.num_given = 0

    def before_batch(self) -> None:
        """Count the next batch, and check if its number is 2, 4, 8, ...

        Raises:
            ConfigError, DataError, CheckpointMismatchError: see `Comparison.check`.
        """
        self.num_given += 1
        if self.num_given > 1 and self.num_given.bit_count() == 1:
            check_published()
        if self._passes.left:
            self._passes.left -= 1


def _refuse_differences(peers: Sequence[int], records: Sequence[Record]) -> None:
    """Raise if a record differs from the first record; the message has each different field with both values."""
    other = next((index for index, record in enumerate(records) if record != records[0]), None)
    if other is None:
        return
    first, second = records[0], records[other]
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    sides = f"rank {peers[0]}", f"rank {peers[other]}"
    values = [f"{name} is {first.get(name)} on {sides[0]} and {second.get(name)} on {sides[1]}" for name in names]
    kind = {"files": DataError, "snapshot": DataError, "log": CheckpointMismatchError}.get(names[0], ConfigError)
    for comparison in _recent:  # a caller who catches this does not get the error again
        comparison.settle()
    raise kind(
        f"Ranks differ: {'; '.join(values)}. Rows would be lost, read twice or waited for. "
        f"{_ADVICE.get(names[0], 'Pass the same on every rank')}; or pass check_ranks=False if this is meant."
    )


def _store() -> Any:
    # The only access to the store that works for every way to initialise a process group.
    return dist.distributed_c10d._get_default_store()


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:184]}... {_digest(text)}"


def _digest(content: str | bytes) -> str:
    return blake2b(content.encode() if isinstance(content, str) else content, digest_size=8).hexdigest()
