"""Deletion vectors of a Delta table. Source: Delta protocol, "Deletion Vectors"."""

from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils.formats.errors import corrupt, decoding
from torch_dataloader_utils.tables.deleted_rows import decode_framed, decode_vector
from torch_dataloader_utils.tables.delta.paths import VectorPlace, vector_path, z85
from torch_dataloader_utils.tables.table_files import TableFiles

_FRAME_BYTES = 8  # length and CRC around a vector in a file


def read_vector(root: str, where: str, vector: VectorPlace, files: TableFiles) -> Int64s:
    """Return the rows that a vector deletes, ascending, each once.

    root: Directory of the table. where: Data file, for messages.

    Raises:
        CorruptFileError: the vector is not at its place in the log, does not decode, or deletes another number of rows.
        UnsupportedFeatureError: a place of another kind, or outside of the table's roots.
    """
    if vector.storage == "i":
        with decoding(where, "inline deletion vector"):
            positions = decode_vector(where, z85(vector.place)[: vector.size])
    else:
        path = vector_path(root, where, vector)
        store = files.store(path)
        now, size = store.stat(path), vector.size + _FRAME_BYTES
        if vector.offset + size > now.size:
            raise corrupt(path, f"a deletion vector of {size} bytes at {vector.offset} is not in its {now.size} bytes")
        (blob,) = store.ranges(path, [(vector.offset, size)], now.identity)
        positions = decode_framed(path, bytes(blob))
    if len(positions) != vector.cardinality:
        raise corrupt(where, f"its deletion vector has {len(positions)} rows, and {vector.cardinality} by the log")
    return positions
