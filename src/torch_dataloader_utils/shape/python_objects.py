"""Arrow values as Python objects."""

from typing import Any

import pyarrow as pa

from torch_dataloader_utils.errors import SchemaError


def python_objects(array: pa.Array | pa.ChunkedArray, column: str = "") -> list[Any]:
    """One object a row.

    column: its name, for messages.

    Raises:
        SchemaError: Python has no such values: times after the year 9999, or of zones that are not known here; structs
            with two fields of one name.
    """
    try:
        objects: list[Any] = array.to_pylist()
    except (OverflowError, ValueError, KeyError, pa.ArrowException) as error:  # a zone not found: a KeyError or Arrow's
        named = f"column {column!r}" if column else "a column"
        raise SchemaError(
            f"{named} of type {array.type} has values that are no objects of Python ({error}). Leave it out with "
            'columns=, or take it as it is with output_format="arrow".'
        ) from error
    return objects
