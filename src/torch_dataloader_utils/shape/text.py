"""Checks that text is UTF-8: Parquet promises that, and neither writers nor readers check it."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import CorruptFileError


def check_text(name: str, array: pa.Array) -> None:
    """Refuse text that no Python string can hold; takes 2 to 15 % of the time of making strings.

    Raises:
        CorruptFileError: the column holds text, itself or inside of its values, that is not UTF-8.
    """
    try:
        for text in _texts(array):
            text.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptFileError(
            f"column {name!r} holds text that is not UTF-8 ({error}). Write the file anew, or leave the column out; "
            'output_format="arrow" gives bytes as they are.'
        ) from error


def _texts(array: pa.Array) -> Iterator[pa.Array]:
    """The text in a column, one array for each place in its type that holds text."""
    kind = array.type
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
        yield array
    elif isinstance(kind, pa.BaseExtensionType):
        yield from _texts(array.storage)
    elif pt.is_dictionary(kind):
        yield from _texts(array.dictionary)
    elif pt.is_struct(kind) or pt.is_union(kind):
        for index in range(kind.num_fields):
            yield from _texts(array.field(index))
    elif pt.is_map(kind):
        yield from _texts(array.keys)
        yield from _texts(array.items)
    elif kind.num_fields and hasattr(array, "flatten"):  # lists of all kinds
        yield from _texts(array.flatten())
