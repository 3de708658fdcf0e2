"""Content identity: `identified` gives each file of an inventory a digest of all its bytes.

    size, bytes 0 to 4 MiB, 4 to 8 MiB, ...  ─►  a digest of each piece  ─►  a digest of the size and the digests

Copies of a file, and files that were touched, have the digest of the original, in any directory and any store. Pieces
are read in parallel, also within one file, and only a few are in memory. Rows that a table deletes by position count
too. Files of equality deletes are not read: the snapshot names them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from torch_dataloader_utils._core.inventory import Inventory, StringColumn
from torch_dataloader_utils._core.option_values import FileIdentity
from torch_dataloader_utils._core.table_file import TableFile
from torch_dataloader_utils._runtime.parallel import map_in_order, map_watched, threads_for
from torch_dataloader_utils._runtime.threads import available_cpus
from torch_dataloader_utils._store import FileStat, StoreAccess, is_local, open_store, redact
from torch_dataloader_utils._store.identity import check_identity
from torch_dataloader_utils.errors import FileChangedError
from torch_dataloader_utils.formats.registry import REMOTE_THREADS
from torch_dataloader_utils.formats.whole_reads import (
    KEPT_DIGEST,
    PIECE_BYTES,
    ContentDigest,
    kept_results,
    piece_digest,
)


def identified(inventory: Inventory, identity: FileIdentity, access: StoreAccess) -> Inventory:
    """Return the inventory with its files known as `identity` says.

    "content": every byte of every file is read, unless this host keeps the digest of this version of the file. Digests
    that the inventory has already are compared. Local files are then pinned to the time of their last change.

    Raises:
        FileChangedError: a file was changed since the scan. NoDataError: a file is gone. StoreError: the storage
            failed.
    """
    if identity == "strict":
        return inventory
    files = inventory.files
    all_local = all(map(is_local, files.paths))
    threads = available_cpus() if all_local else REMOTE_THREADS
    known = map_watched(
        partial(_look_up, inventory, access), range(inventory.num_files), threads=threads, name="tdu-content"
    )
    contents = [version.digest for version in known]
    left = [file for file, digest in enumerate(contents) if not digest]
    for file, digest in _digests(inventory, access, [(file, known[file].stat) for file in left], threads):
        contents[file] = digest
        path = files.paths[file]
        kept_results(open_store(path, access), path, known[file].stat).put(KEPT_DIGEST, digest.encode())
    contents = list(map(_with_deletes, contents, files.extras)) if files.extras else contents
    _compare(inventory, contents)
    changed = [version.stat.changed_ns for version in known]
    return replace(
        inventory,
        files=replace(
            files,
            contents=StringColumn.of(contents),
            changed_ns=None if None in changed else np.array(changed, dtype=np.int64),
        ),
    )


class _Version(NamedTuple):
    """Version of a file that is read now, and the digest that this host keeps for it; "" for none."""

    stat: FileStat
    digest: str


def _look_up(inventory: Inventory, access: StoreAccess, file: int) -> _Version:
    files = inventory.files
    path = files.paths[file]
    store = open_store(path, access)
    if store.is_local:
        stat = store.stat(path)
        check_identity(path, files.pin(file), stat)
    else:
        stat = FileStat(size=int(files.sizes[file]), identity=files.identities[file])
    kept = kept_results(store, path, stat).get(KEPT_DIGEST)
    return _Version(stat, "" if kept is None else bytes(kept).decode())


def _digests(
    inventory: Inventory, access: StoreAccess, files: Sequence[tuple[int, FileStat]], threads: int
) -> Iterator[tuple[int, str]]:
    """Read each file (number, version) whole; yield (number, digest) in the order of the files."""

    def read(piece: tuple[int, FileStat, int]) -> bytes:
        file, stat, start = piece
        path, span = inventory.files.paths[file], (start, min(PIECE_BYTES, stat.size - start))
        return piece_digest(open_store(path, access).ranges(path, [span], stat.pin)[0])

    pieces = ((file, stat, start) for file, stat in files for start in range(0, stat.size, PIECE_BYTES))
    with threads_for(threads, "tdu-content") as pool:
        digests = map_in_order(read, pieces, pool, 2 * threads)
        for file, stat in files:
            content = ContentDigest(stat.size)
            while (digest := content.result()) is None:
                content.add_piece(next(digests))
            yield file, digest


def _with_deletes(digest: str, extra: Any) -> str:
    if not isinstance(extra, TableFile) or not len(extra.positions):
        return digest
    return blake2b(digest.encode() + extra.positions.tobytes(), digest_size=16).hexdigest()


def _compare(inventory: Inventory, contents: list[str]) -> None:
    """Raise FileChangedError if a file has other bytes than the inventory's digest says."""
    if inventory.files.contents is None:
        return
    for file, (was, now) in enumerate(zip(inventory.files.contents, contents, strict=True)):
        if was != now:
            raise FileChangedError(
                f"{redact(inventory.files.paths[file])} is not the file that was planned: its bytes have digest {now}, "
                f"planned {was}, though size and time are the same. Restore the file, or scan the data set again."
            )
