"""Which rows the sequences of a row group have, from where runs begin: a pure function on arrays.

Rows are counted from the first row of the row group. Earlier rows of its first run are negative, and rows of the
following row groups (the halo) come after its own rows. A sequence belongs to the row group with its first row.
"""

from typing import NamedTuple

import numpy as np

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.row_group_task import SequencePlace
from torch_dataloader_utils._core.units import ranges
from torch_dataloader_utils.samples.sequences import Sequences


class Spans(NamedTuple):
    """Sequence i is rows [starts[i], stops[i]); both int64 [sequences], ascending."""

    starts: Int64s
    stops: Int64s


def sequence_spans(
    begins: Int64s, end: int, place: SequencePlace, sequences: Sequences, events: Int64s | None = None
) -> Spans:
    """Return the sequences that begin in a row group.

        rows=5, lead=2, runs from 3 on, end=7, length=3, stride=2      sequences 0-3 (the run begins at -2), 3-6

    Args:
        begins: First rows of the runs that begin at row 0 or later; row 0 is among them if nothing leads it.
        end: Row after the last known row. The last run may go on after it if no sequence of the row group does.
        place: Rows of the row group, and rows of its first run before it.
        events: Rows of the column `at`, ascending; None for every row.
    """
    begins = np.append(-place.lead, begins) if place.lead else begins
    ends = np.append(begins[1:], end)
    if sequences.length is None:
        own = (begins >= 0) & (begins < place.rows)
        return Spans(begins[own], ends[own])
    if sequences.at is not None:
        return _before_events(begins, ends, place, sequences, events)
    total, stride, lengths = sequences.sequence_rows, sequences.stride, ends - begins
    full = np.where(lengths >= total, (lengths - total) // stride + 1, 0)
    counts = full
    if sequences.incomplete != "drop":
        # One more where rows are left that no complete sequence has: at least one before the horizon.
        left = lengths - full * stride
        is_new = (full == 0) | ((full - 1) * stride + total < lengths)
        counts = full + (is_new & (left > sequences.horizon_rows))
    first = -(np.minimum(begins, 0) // stride)
    stop = np.minimum(counts, -((begins - place.rows) // stride))
    numbers = np.maximum(stop - first, 0)
    starts = np.repeat(begins, numbers) + stride * ranges(first, numbers)
    return Spans(starts, np.minimum(starts + total, np.repeat(ends, numbers)))


def _before_events(
    begins: Int64s, ends: Int64s, place: SequencePlace, sequences: Sequences, events: Int64s | None
) -> Spans:
    length = sequences.length or 0
    if events is None:
        events = np.arange(min(int(ends[-1]), place.rows + length + 1), dtype=np.int64)
    run = begins.searchsorted(events, side="right") - 1
    starts, stops = np.maximum(begins[run], events - length), events + sequences.horizon_rows
    least = length if sequences.incomplete == "drop" else 1
    kept = (events - starts >= least) & (stops <= ends[run]) & (starts >= 0) & (starts < place.rows)
    return Spans(starts[kept], stops[kept])
