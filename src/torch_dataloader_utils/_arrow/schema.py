"""Arrow schemas from IPC bytes, the form in which frozen values hold them."""

import pyarrow as pa


def decode_schema(encoded: bytes) -> pa.Schema:
    """The schema that an inventory, a ReadSpec or TableFields holds as bytes."""
    return pa.ipc.read_schema(pa.py_buffer(encoded))
