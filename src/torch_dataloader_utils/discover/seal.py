"""Parquet files that tell whether a bit of them changed: in the footer is a digest of all other bytes.

    …column data… | …key torch_dataloader_utils.seal, value blake2b-128:<32 hex digits>… | footer length, PAR1

The digest is blake2b (128 bits) of the file with zeros for the digits. It finds damage before anything is decoded. It
is no signature: whoever can write a file can seal it.
"""

import re
from hashlib import blake2b

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils._store import Buffer
from torch_dataloader_utils.discover.faults import corrupt
from torch_dataloader_utils.errors import InternalError

_KEY = b"torch_dataloader_utils.seal"
_METHOD = b"blake2b-128:"
_BLANK = b"0" * 32
# Between a key and its value are the type and the length of the value, a byte each.
_SEAL = re.compile(re.escape(_KEY) + b".." + _METHOD + b"(.{32})", re.DOTALL)


def sealed_parquet(table: pa.Table) -> bytearray:
    """The bytes of a Parquet file of the table, sealed; the same for the same table."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="zstd", use_dictionary=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({_KEY: _METHOD + _BLANK})
    data = bytearray(sink.getvalue())
    seal = _SEAL.match(data, data.rfind(_KEY))
    if seal is None:
        raise InternalError("the place of the seal is not in the footer")
    place = slice(*seal.span(1))
    data[place] = _digest(memoryview(data), place)
    return data


def check_seal(data: Buffer, path: str) -> bool:
    """Whether there is a seal in the file.

    Raises:
        CorruptFileError: there is one, and it is not that of these bytes.
    """
    content = bytes(data)
    seal = _SEAL.match(content, max(0, content.rfind(_KEY)))
    if seal is None:
        return False
    if seal[1] != _digest(memoryview(content), slice(*seal.span(1))):
        raise corrupt(path, "its bytes are not those that were written (the seal does not fit)")
    return True


def _digest(data: memoryview, place: slice) -> bytes:
    digest = blake2b(data[: place.start], digest_size=16)
    digest.update(_BLANK)
    digest.update(data[place.stop :])
    return digest.hexdigest().encode()
