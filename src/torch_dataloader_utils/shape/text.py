"""Text before Python looks at it: Parquet promises UTF-8, and no reader holds writers to it."""

import pyarrow as pa
import pyarrow.types as pt

from torch_dataloader_utils.errors import CorruptFileError


def check_text(name: str, array: pa.Array) -> None:
    """Refuses text that no Python string can be made of; 2 to 15 % of what making strings of it takes.

    Raises:
        CorruptFileError: the column holds text, itself or inside of its values, that is not UTF-8.
    """
    if not _holds_text(array.type):
        return
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptFileError(
            f"column {name!r} holds text that is not UTF-8 ({error}). Write the file anew, or leave the column out; "
            'output_format="arrow" gives bytes as they are.'
        ) from error


def _holds_text(arrow: pa.DataType) -> bool:
    if isinstance(arrow, pa.BaseExtensionType):
        return _holds_text(arrow.storage_type)
    if pt.is_dictionary(arrow):
        return _holds_text(arrow.value_type)
    if pt.is_string(arrow) or pt.is_large_string(arrow) or pt.is_string_view(arrow):
        return True
    return any(_holds_text(arrow.field(index).type) for index in range(arrow.num_fields))
