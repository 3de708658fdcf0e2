"""Turns inventories of documents into inventories of samples: same files and row groups, samples instead of rows."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s, Inventory
from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils._core.skipping import report_left_out
from torch_dataloader_utils._runtime.parallel import map_watched
from torch_dataloader_utils.errors import ConfigError, NoDataError
from torch_dataloader_utils.formats.registry import format_of
from torch_dataloader_utils.samples.batch_fields import own_types, token_type
from torch_dataloader_utils.samples.layout import count_best_fit, count_greedy
from torch_dataloader_utils.samples.packing_reader import (
    DocumentCounts,
    PackingReader,
    footer_counts,
    tokens_from_footer,
)
from torch_dataloader_utils.samples.token_packing import FIELDS, TokenPacking
from torch_dataloader_utils.samples.tokenizing_reader import TokenizingReader

_log = logging.getLogger(__name__)

# Keys in the metadata of a schema. Saved inventories have them, and states are bound to the schema: never rename them.
_PACKING = b"torch_dataloader_utils.packing"
_STORED_SCHEMA = b"torch_dataloader_utils.stored_schema"
_NOTE = "packed: "
_NUM_COUNTS = len(DocumentCounts._fields)
_BYTES_BESIDE_TOKEN = 5  # positions and loss mask


def check_counts_rows(inventory: Inventory) -> None:
    """Check that an inventory that is to be read without `pack=` counts rows.

    Raises:
        ConfigError: the inventory counts samples.
    """
    metadata = decode_schema(inventory.schema).metadata or {}
    if inventory.sequences is not None:
        raise ConfigError(
            f"The inventory counts sequences ({inventory.sequences.options}), not rows: pass one from scan_files."
        )
    if _PACKING in metadata:
        raise ConfigError(
            f"The inventory counts packed samples ({metadata[_PACKING].decode()}), not rows: pass the same pack=, or "
            "an inventory from scan_files."
        )


def stored_inventory(inventory: Inventory) -> Inventory:
    """Return the inventory of documents from which an inventory of samples was made; any other one unchanged."""
    metadata = decode_schema(inventory.schema).metadata or {}
    if _PACKING not in metadata:
        return inventory
    unknown = np.full(len(inventory.groups), UNKNOWN, dtype=np.int64)
    return replace(
        inventory,
        schema=metadata[_STORED_SCHEMA],
        groups=replace(inventory.groups, live_rows=unknown),
        notes=tuple(note for note in inventory.notes if not note.startswith(_NOTE)),
        tokenizer="",
        window_tokens=0,
    )


class ReadLengths(Protocol):
    """Signature of `read_lengths` in datasets/row_counts.py, which keeps the lengths on this host."""

    def __call__(
        self, inventory: Inventory, read: Callable[[RowGroupTask], pa.RecordBatch], share: Share, *, what: str
    ) -> npt.NDArray[Any]: ...


def count_packed(inventory: Inventory, reader: PackingReader, share: Share, read_lengths: ReadLengths) -> Inventory:
    """Return the inventory of samples; an inventory that already counts samples is returned as it is.

    read_lengths: Function that measures documents of text where rows are known.

    Raises:
        ConfigError: the inventory counts samples of another packing, or the column does not hold tokens.
        DataError, StoreError: see Reader.read and Share.check_alike; all processes of the share raise the error.
    """
    packing = reader.packing
    metadata = decode_schema(inventory.schema).metadata or {}
    if _PACKING in metadata:
        if metadata[_PACKING].decode() not in (packing.describe(), packing.describe(joins=True)):
            raise ConfigError(
                f"The inventory counts samples of {metadata[_PACKING].decode()}; this call packs {packing.describe()}. "
                "Pass the same options, or an inventory from scan_files."
            )
        # An inventory of a release without windows has samples of single row groups.
        if inventory.rows_are_known and (inventory.window_tokens or 1) == packing.least_window_tokens:
            return inventory
    stored = stored_inventory(inventory)
    share.check_alike(stored)
    found = share.together(lambda: _count(stored, reader, share, read_lengths))
    counted = share.exchange(found.counts)
    groups, first = cut_windows(counted[0], packing.least_window_tokens)
    samples = _count_windows(counted, groups, first, found, packing, share)
    is_kept = np.repeat(samples > 0, np.diff(first, append=len(groups)))
    joins = len(first) < len(groups)
    live_rows = np.zeros(len(groups), dtype=np.int64)
    live_rows[first] = samples
    schema = _packed_schema(stored.schema, packing, joins=joins)
    item_bytes = schema.field("tokens").type.value_type.bit_width // 8
    packed = replace(
        stored.groups.take(groups),
        live_rows=live_rows,
        projected_bytes=live_rows * packing.sample_tokens * (item_bytes + _BYTES_BESIDE_TOKEN),
    )
    return replace(
        stored,
        schema=schema.serialize().to_pybytes(),
        groups=packed.take(np.flatnonzero(is_kept)),
        notes=(*stored.notes, *(f"{_NOTE}{note}" for note in _notes(stored, packing, counted, int(samples.sum())))),
        nulls={},
        tokenizer="" if packing.tokenizer is None else packing.tokenizer.name or "",
        window_tokens=packing.least_window_tokens,
    )


def cut_windows(tokens: Int64s, least_tokens: int) -> tuple[Int64s, Int64s]:
    """Return the row groups that have tokens, and the index of the first one of each packing window among them.

    A window takes neighbouring row groups until it has `least_tokens`. What is left at the end joins the last window.

        tokens 3 0 2 4 1, least_tokens=5      row groups 0 2 3 4, windows from 0
        least_tokens=4                        the same row groups, windows from 0 and from 2
    """
    groups = np.flatnonzero(tokens)
    ends = np.cumsum(tokens[groups])
    total = int(ends[-1]) if len(ends) else 0
    first: list[int] = []
    start = begun = 0
    while begun < total and (not first or total - begun >= least_tokens):
        first.append(start)
        start = int(ends.searchsorted(begun + least_tokens)) + 1
        begun = int(ends[min(start, len(ends)) - 1])
    return groups, np.array(first, dtype=np.int64)


def _count_windows(
    counted: Int64s, groups: Int64s, first: Int64s, found: "_Counted", packing: TokenPacking, share: Share
) -> Int64s:
    """Return the samples of each packing window. counted: Counts of the row groups of all processes."""
    if found.tokens is None:
        sums = np.add.reduceat(counted[0][groups], first) if len(first) else first
        return np.array([count_greedy(tokens, packing) for tokens in sums.tolist()], dtype=np.int64)
    ends = np.cumsum(counted[3])
    documents = np.zeros(int(ends[-1]) if len(ends) else 0, dtype=np.int64)
    for group, tokens in found.tokens.items():
        documents[ends[group] - len(tokens) : ends[group]] = tokens
    documents = share.exchange(documents)
    samples = np.zeros(len(first), dtype=np.int64)
    stops = np.append(first[1:], len(groups))
    for window in share.of(len(first)):
        begin, last = groups[first[window]], groups[stops[window] - 1]
        samples[window] = count_best_fit(documents[ends[begin] - counted[3, begin] : ends[last]], packing)
    return share.exchange(samples)


# Below this part of tokens in samples, a plan says that padding is what the model computes.
_LOW_FILL = 0.95


def _notes(inventory: Inventory, packing: TokenPacking, counted: Int64s, samples: int) -> list[str]:
    total = DocumentCounts(*counted.sum(axis=1).tolist())
    fill = total.tokens / max(1, samples * packing.sequence_length)
    low = ""
    if samples and fill < _LOW_FILL:
        low = (
            f"; LOW: {1 - fill:.0%} of every step is padding. Pass a shorter sequence_length, or a larger window_tokens"
        )
    notes = [f"{samples} samples of {packing.sample_tokens} tokens, {packing.fill}, fill {min(1.0, fill):.3f}{low}"]
    if total.over_long:
        notes.append(
            f"over_long={packing.over_long} left out {total.left_out:,} tokens of {total.over_long:,} documents that "
            "are longer than a sample"
        )
    if total.bad and not samples:
        raise NoDataError(
            f"{inventory.source}: the tokenizer refuses {total.bad:,} of {total.rows:,} rows, and the other rows have "
            "no tokens. The log has each reason; check the tokenizer and column=."
        )
    if total.bad:
        of_groups = (DocumentCounts(*counts) for counts in counted.T.tolist())
        places = (
            f"{inventory.task(group).where}: {counts.bad:,} rows, the first is live row {counts.first_bad}"
            for group, counts in enumerate(of_groups)
            if counts.bad
        )
        notes += report_left_out(places, count=total.bad, total=total.rows, units="rows", rows=None)
    return notes


def _packed_schema(stored: bytes, packing: TokenPacking, *, joins: bool) -> pa.Schema:
    """Return the Arrow schema of samples, for any `fields`; its metadata holds packing and schema of the documents."""
    own = own_types(token_type(decode_schema(stored), packing), packing)
    return pa.schema(
        [(name, own[name]) for name in FIELDS],
        metadata={_PACKING: packing.describe(joins=joins).encode(), _STORED_SCHEMA: stored},
    )


class _Counted(NamedTuple):
    """Result of one process.

    counts: int64 [6, row groups], `DocumentCounts` of the process's row groups, 0 for other row groups. tokens: Tokens
    that each document takes, by row group; None for greedy fill, which needs sums alone.
    """

    counts: Int64s
    tokens: dict[int, Int64s] | None

    def add(self, group: int, counts: DocumentCounts, tokens: Int64s) -> None:
        self.counts[:, group] = counts
        if self.tokens is not None:
            self.tokens[group] = tokens


def _count(inventory: Inventory, reader: PackingReader, share: Share, read_lengths: ReadLengths) -> _Counted:
    """Count the row groups of this process's share."""
    groups = inventory.groups
    counter = reader.counter
    keeps_tokens = reader.packing.fill == "best_fit"
    found = _Counted(np.zeros((_NUM_COUNTS, len(groups)), dtype=np.int64), {} if keeps_tokens else None)
    if isinstance(counter, TokenizingReader) and inventory.rows_are_known:
        if counter.tokenizer.version is not None:
            skips = " that takes them" * counter.skips_bad_rows
            what = f"{reader.packing.column} by {counter.tokenizer.version}{skips}"
            lengths = read_lengths(inventory, counter.measure, share, what=what)
            mine = share.of(inventory.num_groups)
            ends = np.cumsum(groups.live_rows[mine.start :: mine.step])
            for group, documents in zip(mine, np.split(lengths.astype(np.int64), ends)[:-1], strict=True):
                found.add(group, *reader.count_lengths(documents, inventory.task(group)))
            return found
        _log.warning(
            "This tokenizer cannot be identified in another process: all text is tokenized before every start, and the "
            "counts are not kept. Pass a function of a module in a file, or give the tokenizer an attribute "
            "`fingerprint`."
        )
    is_whole = (groups.live_rows == groups.physical_rows) & (groups.live_rows != UNKNOWN)
    formats = inventory.files.formats
    with_items = [number for number in np.unique(formats).tolist() if format_of(number).list_items is not None]
    by_footer = is_whole & np.isin(formats[groups.file], with_items) & footer_counts(reader.packing)
    in_threads = partial(map_watched, threads=share.threads, name="tdu-pack")
    files = np.unique(groups.file[by_footer])[share.index :: share.count]
    for indices, tokens in in_threads(lambda file: _from_footer(inventory, reader, file, by_footer), files.tolist()):
        found.counts[0, indices] = tokens
    # Row groups that the footer could not count are UNKNOWN; the process that read the footer reads them.
    unread = np.flatnonzero(~by_footer)[share.index :: share.count]
    unread = np.concatenate([unread, np.flatnonzero(found.counts[0] == UNKNOWN)])
    read = in_threads(lambda group: reader.count_documents(inventory.task(group)), unread.tolist())
    for group, counted in zip(unread.tolist(), read, strict=True):
        found.add(group, *counted)
    return found


def _from_footer(
    inventory: Inventory, reader: PackingReader, file: int, by_footer: npt.NDArray[np.bool_]
) -> tuple[Int64s, list[int]]:
    """Return the row groups of a file that its footer may count, and their tokens (UNKNOWN where it does not)."""
    first, stop = np.searchsorted(inventory.groups.file, [file, file + 1])
    indices = first + np.flatnonzero(by_footer[first:stop])
    items = reader.reader.list_items(inventory.task(int(indices[0])), reader.packing.column)
    if items is None:
        return indices, [UNKNOWN] * len(indices)
    ordinals = inventory.groups.ordinal[indices].tolist()
    if max(ordinals) >= len(items):
        return indices, [UNKNOWN] * len(indices)  # reading the file raises the error with its reason
    return indices, [tokens_from_footer(items[ordinal], reader.packing) for ordinal in ordinals]
