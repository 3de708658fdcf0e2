"""The deletion vectors of a Delta table. Source: Delta protocol, "Deletion Vectors"."""

from base64 import b85decode
from uuid import UUID

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils.discover.decode_errors import corrupt, decoding
from torch_dataloader_utils.discover.deleted_rows import decode_framed, decode_vector
from torch_dataloader_utils.discover.delta.actions import VectorPlace
from torch_dataloader_utils.discover.delta.log import absolute_path
from torch_dataloader_utils.discover.table_files import TableFiles
from torch_dataloader_utils.errors import UnsupportedFeatureError

# The digits of Z85 (ZeroMQ RFC 32), and those of Python's base 85.
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85 = bytes.maketrans(_Z85, _B85)

# A UUID in Z85.
_UUID_DIGITS = 20
_FRAME_BYTES = 8  # length and CRC around a vector in a file


def read_vector(root: str, where: str, vector: VectorPlace, files: TableFiles) -> Int64s:
    """The rows that a vector deletes, ascending, each once.

    root: of the table. where: the data file, for messages.

    Raises:
        CorruptFileError: it does not lie where the log says, does not decode, or deletes another number of rows.
        UnsupportedFeatureError: a place of another kind, or outside of where the table's files may lie.
    """
    if vector.storage == "i":
        with decoding(where, "inline deletion vector"):
            positions = decode_vector(where, _z85(vector.place)[: vector.size])
    else:
        path = _path(root, where, vector)
        store = files.store(path)
        now, size = store.stat(path), vector.size + _FRAME_BYTES
        if vector.offset + size > now.size:
            raise corrupt(path, f"a deletion vector of {size} bytes at {vector.offset} is not in its {now.size} bytes")
        (blob,) = store.ranges(path, [(vector.offset, size)], now.identity)
        positions = decode_framed(path, bytes(blob))
    if len(positions) != vector.cardinality:
        raise corrupt(where, f"its deletion vector has {len(positions)} rows, and {vector.cardinality} by the log")
    return positions


def _path(root: str, where: str, vector: VectorPlace) -> str:
    if vector.storage == "p":
        return absolute_path(root, vector.place)
    if vector.storage != "u":
        raise UnsupportedFeatureError(
            f"{where}: a deletion vector stored as {vector.storage!r} is not supported. Write the table again without."
        )
    with decoding(where, "name of a deletion vector"):
        prefix, digits = vector.place[:-_UUID_DIGITS], vector.place[-_UUID_DIGITS:]
        name = f"deletion_vector_{UUID(bytes=_z85(digits))}.bin"
    return absolute_path(root, f"{prefix}/{name}" if prefix else name)


def _z85(text: str) -> bytes:
    digits = text.encode("ascii")
    if len(digits) % 5 or not set(digits) <= set(_Z85):
        raise ValueError(f"{text[:40]!r} is not Z85 text")
    return b85decode(digits.translate(_TO_B85))
