"""Turns inventories of documents into inventories of samples: same files and row groups, samples instead of rows."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s, Inventory, RowGroupTask
from torch_dataloader_utils._core.skipping import report_left_out
from torch_dataloader_utils._runtime.parallel import map_watched
from torch_dataloader_utils.errors import ConfigError, NoDataError
from torch_dataloader_utils.formats.registry import format_of
from torch_dataloader_utils.samples.batch_fields import own_types, token_type
from torch_dataloader_utils.samples.packing_reader import (
    DocumentCounts,
    PackingReader,
    count_from_footer,
    footer_counts,
)
from torch_dataloader_utils.samples.text import TokenizingReader
from torch_dataloader_utils.samples.token_packing import FIELDS, TokenPacking

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
        if metadata[_PACKING].decode() != packing.describe():
            raise ConfigError(
                f"The inventory counts samples of {metadata[_PACKING].decode()}; this call packs {packing.describe()}. "
                "Pass the same options, or an inventory from scan_files."
            )
        if inventory.rows_are_known:
            return inventory
    stored = stored_inventory(inventory)
    schema = _packed_schema(stored.schema, packing)
    share.check_alike(stored)
    counted = share.exchange(share.together(lambda: _count(stored, reader, share, read_lengths)))
    samples = counted[0]
    item_bytes = schema.field("tokens").type.value_type.bit_width // 8
    groups = replace(
        stored.groups,
        live_rows=samples,
        projected_bytes=samples * packing.sample_tokens * (item_bytes + _BYTES_BESIDE_TOKEN),
    )
    return replace(
        stored,
        schema=schema.serialize().to_pybytes(),
        groups=groups.take(np.flatnonzero(samples > 0)),
        notes=(*stored.notes, *(f"{_NOTE}{note}" for note in _notes(stored, packing, counted))),
        nulls={},
        tokenizer="" if packing.tokenizer is None else packing.tokenizer.name or "",
    )


def _notes(inventory: Inventory, packing: TokenPacking, counted: Int64s) -> list[str]:
    total = DocumentCounts(*counted.sum(axis=1).tolist())
    notes = [f"{total.samples} samples of {packing.sample_tokens} tokens, {packing.fill}"]
    if total.over_long:
        notes.append(
            f"over_long={packing.over_long} left out {total.left_out:,} tokens of {total.over_long:,} documents that "
            "are longer than a sample"
        )
    if total.bad and not total.samples:
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


def _packed_schema(stored: bytes, packing: TokenPacking) -> pa.Schema:
    """Return the Arrow schema of samples, for any `fields`; its metadata holds packing and schema of the documents."""
    own = own_types(token_type(decode_schema(stored), packing), packing)
    return pa.schema(
        [(name, own[name]) for name in FIELDS],
        metadata={_PACKING: packing.describe().encode(), _STORED_SCHEMA: stored},
    )


def _count(inventory: Inventory, reader: PackingReader, share: Share, read_lengths: ReadLengths) -> Int64s:
    """Return `count_lengths` of each row group of this process's share, 0 for other row groups; int64 [6, groups]."""
    groups = inventory.groups
    counter = reader.counter
    if isinstance(counter, TokenizingReader) and inventory.rows_are_known:
        if counter.tokenizer.version is not None:
            skips = " that takes them" * counter.skips_bad_rows
            what = f"{reader.packing.column} by {counter.tokenizer.version}{skips}"
            return _from_lengths(inventory, reader, share, read_lengths(inventory, counter.measure, share, what=what))
        _log.warning(
            "This tokenizer cannot be identified in another process: all text is tokenized before every start, and the "
            "counts are not kept. Pass a function of a module in a file, or give the tokenizer an attribute "
            "`fingerprint`."
        )
    is_whole = (groups.live_rows == groups.physical_rows) & (groups.live_rows != UNKNOWN)
    formats = inventory.files.formats
    with_items = [number for number in np.unique(formats).tolist() if format_of(number).list_items is not None]
    by_footer = is_whole & np.isin(formats[groups.file], with_items) & footer_counts(reader.packing)
    counted = np.zeros((_NUM_COUNTS, len(groups)), dtype=np.int64)
    in_threads = partial(map_watched, threads=share.threads, name="tdu-pack")
    files = np.unique(groups.file[by_footer])[share.index :: share.count]
    for indices, counts in in_threads(lambda file: _from_footer(inventory, reader, file, by_footer), files.tolist()):
        counted[0, indices] = counts
    # Row groups that the footer could not count are UNKNOWN; the process that read the footer reads them.
    unread = np.flatnonzero(~by_footer)[share.index :: share.count]
    unread = np.concatenate([unread, np.flatnonzero(counted[0] == UNKNOWN)])
    read = in_threads(lambda group: reader.count_documents(inventory.task(group)), unread.tolist())
    counted[:, unread] = np.array(read, dtype=np.int64).reshape(-1, _NUM_COUNTS).T
    return counted


def _from_lengths(inventory: Inventory, reader: PackingReader, share: Share, lengths: npt.NDArray[Any]) -> Int64s:
    """Return the result of `_count` from the lengths of all documents of the share, in order."""
    mine = share.of(inventory.num_groups)
    counted = np.zeros((_NUM_COUNTS, inventory.num_groups), dtype=np.int64)
    ends = np.cumsum(inventory.groups.live_rows[mine.start :: mine.step])
    for group, documents in zip(mine, np.split(lengths.astype(np.int64), ends)[:-1], strict=True):
        counted[:, group] = reader.count_lengths(documents, inventory.task(group))
    return counted


def _from_footer(
    inventory: Inventory, reader: PackingReader, file: int, by_footer: npt.NDArray[np.bool_]
) -> tuple[Int64s, list[int]]:
    """Return the row groups of a file that its footer may count, and their samples (UNKNOWN where it does not)."""
    first, stop = np.searchsorted(inventory.groups.file, [file, file + 1])
    indices = first + np.flatnonzero(by_footer[first:stop])
    items = reader.reader.list_items(inventory.task(int(indices[0])), reader.packing.column)
    if items is None:
        return indices, [UNKNOWN] * len(indices)
    ordinals = inventory.groups.ordinal[indices].tolist()
    if max(ordinals) >= len(items):
        return indices, [UNKNOWN] * len(indices)  # reading the file raises the error with its reason
    return indices, [count_from_footer(items[ordinal], reader.packing) for ordinal in ordinals]
