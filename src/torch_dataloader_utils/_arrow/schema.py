"""Arrow schemas, from the IPC bytes that frozen values carry them as."""

import pyarrow as pa


def decode_schema(encoded: bytes) -> pa.Schema:
    """The schema of an inventory, a read order or a table's key columns."""
    return pa.ipc.read_schema(pa.py_buffer(encoded))
