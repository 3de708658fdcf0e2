"""A Parquet file with a seal in its footer, which tells whether a byte of the file was changed.

The seal is a digest of all bytes but its own: the value of a metadata key, at the end of the file.
"""

import re
from hashlib import blake2b

import pyarrow as pa
import pyarrow.parquet as pq

from torch_dataloader_utils._store import Buffer
from torch_dataloader_utils.errors import InternalError
from torch_dataloader_utils.formats.errors import corrupt

_DIGEST_KEY = b"torch_dataloader_utils.seal"
_METHOD = b"blake2b-128:"
_BLANK = b"0" * 32
# The type and the length of the value, a byte each, lie between a key and its value.
_SEAL = re.compile(re.escape(_DIGEST_KEY) + b".." + _METHOD + b"(.{32})", re.DOTALL)


def sealed_parquet(table: pa.Table) -> bytearray:
    """Return the bytes of a Parquet file of the table, sealed. The same table gives the same bytes."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="zstd", use_dictionary=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({_DIGEST_KEY: _METHOD + _BLANK})
    data = bytearray(sink.getvalue())
    seal = _SEAL.match(data, data.rfind(_DIGEST_KEY))
    if seal is None:
        raise InternalError("the place of the seal is not in the footer")
    place = slice(*seal.span(1))
    data[place] = _digest(memoryview(data), place)
    return data


def check_seal(data: Buffer, path: str) -> bool:
    """Return whether the file has a seal.

    Raises:
        CorruptFileError: the seal does not match the bytes.
    """
    content = memoryview(data)
    seal = None
    for found in re.finditer(re.escape(_DIGEST_KEY), content):  # the last key is the seal's
        seal = _SEAL.match(content, found.start())
    if seal is None:
        return False
    if seal[1] != _digest(content, slice(*seal.span(1))):
        raise corrupt(path, "its bytes changed since it was written (the seal does not match)")
    return True


def _digest(data: memoryview, place: slice) -> bytes:
    digest = blake2b(data[: place.start], digest_size=16)
    digest.update(_BLANK)
    digest.update(data[place.stop :])
    return digest.hexdigest().encode()
