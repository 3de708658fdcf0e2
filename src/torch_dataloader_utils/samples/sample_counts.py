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
from torch_dataloader_utils._runtime.parallel import map_watched
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.samples.batch_fields import own_types, token_type
from torch_dataloader_utils.samples.packing_reader import PackingReader, count_from_footer, footer_counts
from torch_dataloader_utils.samples.token_packing import FIELDS, TokenPacking

_log = logging.getLogger(__name__)

# Keys in the metadata of a schema. Saved inventories have them, and states are bound to the schema: never rename them.
_PACKING = b"torch_dataloader_utils.packing"
_STORED_SCHEMA = b"torch_dataloader_utils.stored_schema"
_NOTE = "packed: "
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
        notes=(*stored.notes, *_notes(packing, *counted.sum(axis=1).tolist())),
        nulls={},
        tokenizer="" if packing.tokenizer is None else packing.tokenizer.name or "",
    )


def _notes(packing: TokenPacking, samples: int, over_long: int, left_out: int) -> list[str]:
    notes = [f"{_NOTE}{samples} samples of {packing.sample_tokens} tokens, {packing.fill}"]
    if over_long:
        notes.append(
            f"{_NOTE}over_long={packing.over_long} left out {left_out:,} tokens of {over_long:,} documents that are "
            "longer than a sample"
        )
    return notes


def _packed_schema(stored: bytes, packing: TokenPacking) -> pa.Schema:
    """Return the Arrow schema of samples, for any `fields`; its metadata holds packing and schema of the documents."""
    own = own_types(token_type(decode_schema(stored), packing), packing)
    return pa.schema(
        [(name, own[name]) for name in FIELDS],
        metadata={_PACKING: packing.describe().encode(), _STORED_SCHEMA: stored},
    )


def _count(inventory: Inventory, reader: PackingReader, share: Share, read_lengths: ReadLengths) -> Int64s:
    """Return `count_lengths` of each row group of this process's share, 0 for other row groups; int64 [3, groups]."""
    groups = inventory.groups
    tokenizer = reader.packing.tokenizer
    if tokenizer is not None and inventory.rows_are_known:
        if tokenizer.version is not None:
            what = f"{reader.packing.column} by {tokenizer.version}"
            return _from_lengths(
                inventory, reader, share, read_lengths(inventory, reader.counter.read, share, what=what)
            )
        _log.warning(
            "This tokenizer cannot be identified in another process: all text is tokenized before every start, and the "
            "counts are not kept. Pass a function of a module in a file, or give the tokenizer an attribute "
            "`fingerprint`."
        )
    is_whole = (groups.live_rows == groups.physical_rows) & (groups.live_rows != UNKNOWN)
    by_footer = is_whole & footer_counts(reader.packing)
    counted = np.zeros((3, len(groups)), dtype=np.int64)
    in_threads = partial(map_watched, threads=share.threads, name="tdu-pack")
    files = np.unique(groups.file[by_footer])[share.index :: share.count]
    for indices, counts in in_threads(lambda file: _from_footer(inventory, reader, file, by_footer), files.tolist()):
        counted[0, indices] = counts
    # Row groups that the footer could not count are UNKNOWN; the process that read the footer reads them.
    unread = np.flatnonzero(~by_footer)[share.index :: share.count]
    unread = np.concatenate([unread, np.flatnonzero(counted[0] == UNKNOWN)])
    read = in_threads(lambda group: reader.count_documents(inventory.task(group)), unread.tolist())
    counted[:, unread] = np.array(read, dtype=np.int64).reshape(-1, 3).T
    return counted


def _from_lengths(inventory: Inventory, reader: PackingReader, share: Share, lengths: npt.NDArray[Any]) -> Int64s:
    """Return the result of `_count` from the lengths of all documents of the share, in order."""
    mine = share.of(inventory.num_groups)
    counted = np.zeros((3, inventory.num_groups), dtype=np.int64)
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
