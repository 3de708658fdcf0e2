"""Files known by what is in them: `identified` gives each file of an inventory a digest of its footer and its ends.

Copies of a file, and files that were touched, have the digest of the original, in any directory and any store. It does
not cover all bytes: only the size, the first and last 64 KiB, and all of a larger footer. Footers of Parquet and ORC
say how long every column of every row group is, and its least and greatest value.
"""

from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import assert_never

from torch_dataloader_utils._core.inventory import FileFormat, Inventory, StringColumn
from torch_dataloader_utils._core.option_values import FileIdentity
from torch_dataloader_utils._formats.parquet_trailer import checked_footer_length
from torch_dataloader_utils._runtime.parallel import map_watched
from torch_dataloader_utils._store import TAIL_BYTES, Buffer, StoreAccess, open_store, redact
from torch_dataloader_utils.discover.arrow import footer_bytes as arrow_footer_bytes
from torch_dataloader_utils.discover.decode_errors import corrupt, decoding
from torch_dataloader_utils.discover.formats import REMOTE_THREADS
from torch_dataloader_utils.discover.orc import footer_bytes as orc_footer_bytes


def identified(inventory: Inventory, identity: FileIdentity, access: StoreAccess) -> Inventory:
    """The inventory with its files known as `identity` says: by content, states of it fit copies in another place.

    An inventory whose files are known by content already stays as it is. Else each file costs a read of both ends,
    pinned to the identity that it was scanned with.

    Raises:
        FileChangedError: a file was changed since. NoDataError: it is gone. CorruptFileError: a footer that is larger
            than its file. StoreError: the storage failed.
    """
    if identity == "strict" or inventory.files.contents is not None:
        return inventory
    contents = map_watched(
        partial(_content, inventory, access), range(inventory.num_files), threads=REMOTE_THREADS, name="tdu-content"
    )
    return replace(inventory, files=replace(inventory.files, contents=StringColumn.of(contents)))


def _content(inventory: Inventory, access: StoreAccess, file: int) -> str:
    files = inventory.files
    path, size, identity = files.paths[file], int(files.sizes[file]), files.pin(file)
    if not size:
        return blake2b(b"0", digest_size=16).hexdigest()
    store, length = open_store(path, access), min(size, TAIL_BYTES)
    head, tail = store.ranges(path, [(0, length), (size - length, length)], identity)
    need = _footer_bytes(path, FileFormat(int(files.formats[file])), tail, size)
    if need > size:
        raise corrupt(path, f"the footer claims {need} bytes of a file of {size}")
    if need > length:
        (tail,) = store.ranges(path, [(size - need, need)], identity)
    digest = blake2b(str(size).encode(), digest_size=16)
    digest.update(head)
    digest.update(tail)
    return digest.hexdigest()


def _footer_bytes(path: str, file_format: FileFormat, tail: Buffer, size: int) -> int:
    """Bytes of the footer at the end of the file; 0 for text, which has none."""
    with decoding(path, "footer"):
        match file_format:
            case FileFormat.PARQUET:
                return checked_footer_length(tail, size, redact(path))
            case FileFormat.ORC:
                return orc_footer_bytes(tail)
            case FileFormat.ARROW:
                return arrow_footer_bytes(tail)
            case FileFormat.CSV | FileFormat.JSON:
                return 0
            case _:
                assert_never(file_format)
