"""Inventories of samples: the same files and row groups, with samples counted instead of rows."""

from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import UNKNOWN, Int64s, Inventory
from torch_dataloader_utils._formats.arrow_schema import decode_schema
from torch_dataloader_utils._runtime.parallel import map_watched
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.tokens.documents import is_integer_list, plain_type
from torch_dataloader_utils.tokens.pack.packing_reader import PackingReader, count_from_footer, footer_counts
from torch_dataloader_utils.tokens.pack.token_packing import TokenPacking


def token_type(schema: pa.Schema, packing: TokenPacking) -> pa.DataType:
    """The integer type of the tokens in the packed column.

    Raises:
        ConfigError: no such column, one that is not a list of integers, or an eod or pad_id that the type cannot hold.
    """
    if schema.names.count(packing.column) != 1:
        raise ConfigError(f"pack_tokens: column {packing.column!r} is not in the data set; it has {schema.names}.")
    arrow = plain_type(schema.field(packing.column).type)
    if not is_integer_list(arrow):
        raise ConfigError(
            f"pack_tokens: column {packing.column!r} is {arrow}, and tokens are a list of integers. For text, tokenize "
            "first (torch_dataloader_utils.tokens.build_corpus does)."
        )
    largest = (1 << (arrow.value_type.bit_width - pa.types.is_signed_integer(arrow.value_type))) - 1
    for name, value in (("eod", packing.eod or 0), ("pad_id", packing.pad_id)):
        if value > largest:
            raise ConfigError(f"pack_tokens: {name}={value} does not fit the column's {arrow.value_type} tokens.")
    return arrow.value_type


_PACKING = b"torch_dataloader_utils.packing"
_STORED_SCHEMA = b"torch_dataloader_utils.stored_schema"
_NOTE = "packed: "
_BYTES_BESIDE_TOKEN = 5  # positions and loss mask


def stored_inventory(inventory: Inventory, packing: TokenPacking | None) -> Inventory:
    """The inventory of documents that an inventory of samples was made of; any other one as it is.

    Raises:
        ConfigError: the inventory counts samples, and `packing` is None.
    """
    metadata = decode_schema(inventory.schema).metadata or {}
    if _PACKING not in metadata:
        return inventory
    if packing is None:
        raise ConfigError(
            f"The inventory counts packed samples ({metadata[_PACKING].decode()}), not rows: pass the same pack=, or "
            "an inventory from scan_files."
        )
    unknown = np.full(len(inventory.groups), UNKNOWN, dtype=np.int64)
    return replace(
        inventory,
        schema=metadata[_STORED_SCHEMA],
        groups=replace(inventory.groups, live_rows=unknown),
        notes=tuple(note for note in inventory.notes if not note.startswith(_NOTE)),
    )


def count_packed(inventory: Inventory, reader: PackingReader, share: Share) -> Inventory:
    """The inventory of samples; one that already counts them is returned as it is.

    Raises:
        ConfigError: the inventory counts samples of another packing, or the column does not hold tokens.
        DataError, StoreError: see Reader.read and Share.check_alike; all processes of the share raise it.
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
    stored = stored_inventory(inventory, packing)
    schema = _packed_schema(stored.schema, packing)
    share.check_alike(stored)
    samples = share.exchange(share.together(lambda: _count(stored, reader, share)))
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
        notes=(*stored.notes, f"{_NOTE}{samples.sum()} samples of {packing.sample_tokens} tokens, {packing.fill}"),
    )


def _packed_schema(stored: bytes, packing: TokenPacking) -> pa.Schema:
    """The Arrow schema of samples, all fields; its metadata holds the packing and the documents' schema, as given."""
    token, length = token_type(decode_schema(stored), packing), packing.sequence_length
    return pa.schema(
        [
            pa.field("tokens", pa.list_(token, packing.sample_tokens)),
            pa.field("positions", pa.list_(pa.int32(), length)),
            pa.field("loss_mask", pa.list_(pa.bool8(), length)),
            pa.field("cu_seqlens", pa.list_(pa.int32())),
        ],
        metadata={_PACKING: packing.describe().encode(), _STORED_SCHEMA: stored},
    )


def _count(inventory: Inventory, reader: PackingReader, share: Share) -> Int64s:
    """Samples of every row group of this process's share, 0 elsewhere; int64 [groups]."""
    groups = inventory.groups
    formats = inventory.files.formats[groups.file]
    countable = np.array([footer_counts(int(each), reader.packing) for each in range(int(formats.max(initial=0)) + 1)])
    is_whole = (groups.live_rows == groups.physical_rows) & (groups.live_rows != UNKNOWN)
    by_footer = is_whole & countable[formats]
    counted = np.zeros(len(groups), dtype=np.int64)
    in_threads = partial(map_watched, threads=share.threads, name="tdu-pack")
    files = np.unique(groups.file[by_footer])[share.index :: share.count]
    for indices, counts in in_threads(lambda file: _from_footer(inventory, reader, file, by_footer), files.tolist()):
        counted[indices] = counts
    # UNKNOWN for row groups that the footer cannot count; the process whose share they are reads them.
    unread = np.flatnonzero(~by_footer)[share.index :: share.count]
    unread = np.concatenate([unread, np.flatnonzero(counted == UNKNOWN)])
    counted[unread] = in_threads(lambda group: reader.count_rows(inventory.task(group)), unread.tolist())
    return counted


def _from_footer(
    inventory: Inventory, reader: PackingReader, file: int, by_footer: npt.NDArray[np.bool_]
) -> tuple[Int64s, list[int]]:
    """The row groups of a file that may be counted by its footer, and their samples (UNKNOWN if it does not say)."""
    first, stop = np.searchsorted(inventory.groups.file, [file, file + 1])
    indices = first + np.flatnonzero(by_footer[first:stop])
    items = reader.reader.list_items(inventory.task(int(indices[0])), reader.packing.column)
    if items is None:
        return indices, [UNKNOWN] * len(indices)
    ordinals = inventory.groups.ordinal[indices].tolist()
    if max(ordinals) >= len(items):
        return indices, [UNKNOWN] * len(indices)  # reading says what is wrong with the file
    return indices, [count_from_footer(items[ordinal], reader.packing) for ordinal in ordinals]
