"""Turns inventories of rows into inventories of sequences: same files and row groups, sequences instead of rows.

The key columns are read once. Of its neighbours a row group needs a few numbers, so processes divide the row groups,
exchange the numbers, and know where each run begins and ends:

    read       every process the keys of neighbouring row groups: where runs begin, first and last values
    exchange   these numbers
    link       the rows of each row group's first run before it (lead), and of its last run after it
    count      every process its row groups: sequences that begin there, and the rows after it that they have (halo)
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils._core.division import Share, even_span
from torch_dataloader_utils._core.inventory import Int64s, Inventory, SequenceTable
from torch_dataloader_utils._core.row_group_task import SequencePlace
from torch_dataloader_utils._runtime.parallel import OnProgress, map_watched
from torch_dataloader_utils.errors import DataError, NoDataError, plural
from torch_dataloader_utils.samples.sequence_keys import (
    KeyRows,
    broken_steps,
    group_hashes,
    how_to_sort,
    key_values,
    out_of_order,
)
from torch_dataloader_utils.samples.sequence_layout import sequence_spans
from torch_dataloader_utils.samples.sequences import Sequences, key_type
from torch_dataloader_utils.tables.reader import Reader


class KeptCounts(Protocol):
    """Place where counts are kept on this host for other processes and later jobs."""

    def get(self) -> Int64s | None:
        """Return the kept counts, None if there are none."""

    def put(self, counts: Int64s) -> None:
        """Keep the counts."""


class _Counts(NamedTuple):
    """Counts of all row groups, int64 [row groups] each; see `SequenceTable`.

    runs: Runs that begin in the row group. short: How many of these are shorter than a sequence.
    """

    sequences: Int64s
    rows: Int64s
    lead: Int64s
    halo: Int64s
    runs: Int64s
    short: Int64s


class _Ends(NamedTuple):
    """First and last run of a row group, which its neighbours need.

    runs: Number of runs, if its first row begins one. first_run, last_run: Rows of the first and the last of these.
    first_group, last_group: Hash of the group of its first and last row. first_order, last_order: Their order.
    """

    rows: int
    runs: int = 0
    first_run: int = 0
    last_run: int = 0
    first_group: int = 0
    last_group: int = 0
    first_order: int = 0
    last_order: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _GroupKeys:
    """Keys of one row group. begins: First rows of its runs, row 0 included. groups: Hash of the group of each."""

    ends: _Ends
    begins: Int64s
    groups: Int64s
    events: Int64s


def count_sequences(
    inventory: Inventory,
    reader: Reader,
    sequences: Sequences,
    share: Share,
    kept: KeptCounts,
    on_progress: OnProgress | None = None,
) -> Inventory:
    """Return the inventory of sequences.

    Args:
        inventory: Inventory of rows, counted or not.
        reader: Reader of the key columns.
        sequences: Options that decide which sequences exist.
        share: Part of the row groups that this process reads.
        kept: Place of kept counts.
        on_progress: Function called after each row group that is read; see `map_watched`.

    Raises:
        NoDataError: there are rows, and no sequence.
        DataError: rows are not in order, rows of a group are not neighbours, or a key is null.
        DataError, StoreError: see Reader.read and Share.check_alike; all processes of the share raise the error.
    """
    share.check_alike(inventory)
    found = kept.get()
    # All processes count if one has to, since counting exchanges numbers.
    num_kept = int(share.exchange(np.array([found is not None], dtype=np.int64))[0])
    if found is None or num_kept < share.count:
        found = np.stack(_Counter(inventory, reader, sequences, share, on_progress).counts())
        kept.put(found)
    counts = _Counts(*found)
    groups = np.flatnonzero(counts.rows)
    counts = _Counts(*(each[groups] for each in counts))
    if counts.rows.any() and not counts.sequences.any():
        raise NoDataError(
            f"{inventory.source}: no sequence in {plural(int(counts.rows.sum()), 'row')} of "
            f"{plural(int(counts.runs.sum()), 'run')}, all shorter than {sequences.sequence_rows} rows (length and "
            'horizon). Pass a shorter length=, or incomplete="pad".'
        )
    stored = inventory.groups.take(groups)
    read = stored.projected_bytes * (1 + counts.halo / counts.rows)
    table = SequenceTable(options=sequences.describe(), rows=counts.rows, lead=counts.lead, halo=counts.halo)
    return replace(
        inventory,
        groups=replace(
            stored,
            live_rows=counts.sequences,
            projected_bytes=np.where(counts.sequences > 0, np.rint(read), 0).astype(np.int64),
        ),
        notes=(*inventory.notes, _note(counts, sequences)),
        nulls={},
        sequences=table,
    )


def _note(counts: _Counts, sequences: Sequences) -> str:
    rows = "whole runs" if sequences.length is None else f"{sequences.length} + {sequences.horizon_rows} rows"
    twice = 100 * counts.halo.sum() / max(1, counts.rows.sum())
    short = int(counts.short.sum())
    left_out = f"; {plural(short, 'run')} shorter than a sequence left out" if short else ""
    return (
        f"sequences: {int(counts.sequences.sum()):,} of {rows} in {plural(int(counts.runs.sum()), 'run')}; {twice:.1f} "
        f"% of the rows are read twice, around borders of row groups{left_out}"
    )


class _Counter:
    """The count of one process."""

    def __init__(
        self,
        inventory: Inventory,
        reader: Reader,
        sequences: Sequences,
        share: Share,
        on_progress: OnProgress | None,
    ) -> None:
        self._inventory = inventory
        self._reader = reader
        self._sequences = sequences
        self._share = share
        self._on_progress = on_progress
        self._own = range(*even_span(inventory.num_groups, share.count, share.index))
        self._keys: dict[int, _GroupKeys] = {}

    def counts(self) -> _Counts:
        """Return the counts of all row groups; rows are 0 where a filter leaves none."""
        own = self._share.together(self._read_own)
        self._keys = dict(zip(self._own, own, strict=True))
        ends = np.zeros((len(_Ends._fields), self._inventory.num_groups), dtype=np.int64)
        for group, keys in self._keys.items():
            ends[:, group] = keys.ends
        ends = self._share.exchange(ends)
        here = np.flatnonzero(ends[0])
        linked = _Ends(*ends[:, here])
        continues = self._share.together(lambda: self._links(linked, here))
        self._check_groups_once(linked, here)
        lead, after = _link(linked, continues)
        counted = np.zeros((4, self._inventory.num_groups), dtype=np.int64)
        mine = np.flatnonzero((here >= self._own.start) & (here < self._own.stop)).tolist()

        def count() -> None:
            for index in mine:
                counted[:, here[index]] = self._count(index, here, lead, after)

        self._share.together(count)
        numbers, halo, runs, short = self._share.exchange(counted)
        all_lead = np.zeros_like(numbers)
        all_lead[here] = lead
        return _Counts(numbers, ends[0], all_lead, halo, runs, short)

    def _read_own(self) -> list[_GroupKeys]:
        return map_watched(
            self._read, self._own, threads=self._share.threads, name="tdu-sequences", on_progress=self._on_progress
        )

    def _rows(self, group: int) -> pa.RecordBatch:
        return self._reader.read(self._inventory.task(group))

    def _read(self, group: int) -> _GroupKeys:
        rows = self._rows(group)
        keys = KeyRows.of(rows, self._sequences, self._inventory.task(group).where)
        if not rows.num_rows:
            none = np.zeros(0, dtype=np.int64)
            return _GroupKeys(ends=_Ends(0), begins=none, groups=none, events=none)
        begins = np.append(0, keys.begins)
        groups = group_hashes(rows.take(pa.array(begins)), self._sequences)
        ends = _Ends(
            rows=rows.num_rows,
            runs=len(begins),
            first_run=int(begins[1]) if len(begins) > 1 else rows.num_rows,
            last_run=rows.num_rows - int(begins[-1]),
            first_group=int(groups[0]),
            last_group=int(groups[-1]),
            first_order=int(keys.order[0]),
            last_order=int(keys.order[-1]),
        )
        events = begins[:0] if keys.events is None else keys.events
        return _GroupKeys(ends=ends, begins=begins, groups=groups, events=events)

    def _links(self, ends: _Ends, here: Int64s) -> Int64s:
        """Return 1 for each row group whose first row continues the run before it. here: Row groups with rows."""
        keys = ends.first_group, ends.last_group, ends.first_order, ends.last_order
        first_group, last_group, first, last = map(np.asarray, keys)
        is_same = np.append(False, first_group[1:] == last_group[:-1])
        if self._sequences.order is not None:
            data_type = key_type(decode_schema(self._inventory.schema), self._sequences.order)
            wrong, is_gap = broken_steps(last[:-1], first[1:], self._sequences, data_type)
            bad = np.flatnonzero(is_same[1:] & wrong) + 1
            if len(bad):
                before, after = here[bad[0] - 1], here[bad[0]]
                where = f"{self._inventory.task(int(after)).where}, live row 0"
                raise out_of_order(self._rows(before)[-1:], self._rows(after)[:1], self._sequences, where)
            is_same[1:] &= ~is_gap
        return is_same.astype(np.int64)

    def _check_groups_once(self, ends: _Ends, here: Int64s) -> None:
        """Check that the runs of each group are neighbours.

        Raises:
            DataError: a group begins again after rows of another group.
        """
        runs = np.asarray(ends.runs)
        stops = np.cumsum(runs)
        hashes = np.zeros(int(stops[-1]) if len(stops) else 0, dtype=np.int64)
        for index, group in enumerate(here.tolist()):
            if group in self._keys:
                hashes[stops[index] - runs[index] : stops[index]] = self._keys[group].groups
        hashes = self._share.exchange(hashes)
        begins = np.flatnonzero(np.diff(hashes, prepend=~hashes[:1]))  # not where a gap ends a run
        order = np.argsort(hashes[begins], kind="stable")
        again = order[1:][np.diff(hashes[begins][order]) == 0]
        if not len(again):
            return

        def explain() -> None:
            run = int(begins[again.min()])
            index = int(stops.searchsorted(run, side="right"))
            group, number = int(here[index]), run - int(stops[index] - runs[index])
            rows = self._rows(group)
            row = int(self._read(group).begins[number])
            before = rows if row else self._rows(int(here[index - 1]))
            old, new = (
                {name: key_values(part, name)[at].as_py() for name in self._sequences.by}
                for part, at in ((before, row - 1), (rows, row))
            )
            raise DataError(
                f"{self._inventory.task(group).where}, live row {row}: the group {new} begins again, after rows of "
                f"{old}. Rows of a group have to be neighbours. {how_to_sort(self._sequences)}"
            )

        self._share.together(explain)

    def _count(self, index: int, here: Int64s, lead: Int64s, after: Int64s) -> tuple[int, int, int, int]:
        """Return sequences, halo, runs and short runs of one row group."""
        keys, sequences = self._keys[int(here[index])], self._sequences
        place = SequencePlace(keys.ends.rows, int(lead[index]), 0)
        begins = keys.begins[1:] if place.lead else keys.begins
        end = place.rows + int(after[index])
        events = np.concatenate(list(self._events(index, here, end))) if sequences.has_events else None
        spans = sequence_spans(begins, end, place, sequences, events)
        halo = max(int(spans.stops.max(initial=0)) - place.rows, 0)
        lengths = np.diff(begins, append=end)
        least = sequences.sequence_rows if sequences.incomplete == "drop" else sequences.horizon_rows + 1
        return len(spans.starts), halo, len(begins), int((lengths < least).sum())

    def _events(self, index: int, here: Int64s, end: int) -> Iterator[Int64s]:
        """Yield the events that sequences of a row group may have, counted from its first row."""
        first, last = 0, min(end, self._keys[int(here[index])].ends.rows + self._sequences.sequence_rows)
        while first < last:
            group = int(here[index])
            if group not in self._keys:  # of another process
                self._keys[group] = self._read(group)
            keys = self._keys[group]
            yield keys.events + first
            first, index = first + keys.ends.rows, index + 1


def _link(ends: _Ends, continues: Int64s) -> tuple[Int64s, Int64s]:
    """Return the rows of each row group's first run before it, and of its last run after it."""
    counts = ends.rows, ends.runs, ends.first_run, ends.last_run
    rows, runs, first_run, last_run = (np.asarray(each).tolist() for each in counts)
    goes_on = continues.tolist()
    lead, after = [0] * len(rows), [0] * len(rows)
    for index in range(1, len(rows)):
        if goes_on[index]:
            lead[index] = lead[index - 1] + rows[index - 1] if runs[index - 1] == 1 else last_run[index - 1]
    for index in range(len(rows) - 2, -1, -1):
        if goes_on[index + 1]:
            after[index] = rows[index + 1] + after[index + 1] if runs[index + 1] == 1 else first_run[index + 1]
    return np.array(lead, dtype=np.int64), np.array(after, dtype=np.int64)
