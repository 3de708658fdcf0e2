"""Errors of pyiceberg about metadata, and missing files that metadata name, as errors of this package."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from torch_dataloader_utils._store import redact
from torch_dataloader_utils.errors import LoaderError, NoDataError, UnsupportedFeatureError
from torch_dataloader_utils.formats.errors import corrupt

# Texts of pyiceberg 0.12's errors for manifests whose Avro schema leaves out ids, as BigQuery's do.
_NO_IDS = re.compile(r"missing (?:field-id|element-id|key-id|value-id)\b|(?:field|element|key|value)-id'?$")
_CODEC = re.compile(r"Unsupported codec: [\w-]+")


@contextmanager
def parsing(path: str, what: str) -> Iterator[None]:
    """Turn any error of parsing `what` (table metadata, a manifest) into an error of this package, except MemoryError.

    Parse nothing else inside.

    pyiceberg, pydantic and four compression codecs raise their own errors, many of them plain Exceptions. Their texts
    quote the file, which may hold secrets, so the message names only the class of the error.
    """
    try:
        yield
    except (LoaderError, MemoryError):
        raise
    except Exception as error:
        raise unparsed(path, what, error) from error


def unparsed(where: str, what: str, error: BaseException) -> LoaderError:
    """Return the error for metadata that pyiceberg did not parse, because they are too new or wrong.

    where: Path of the metadata, or name of the table.
    """
    unknown = unknown_feature(error)
    if unknown is None:
        return corrupt(where, f"the {what} does not parse ({type(error).__name__})")
    return UnsupportedFeatureError(
        f"{redact(where)}: the {what} uses what the installed pyiceberg does not know ({unknown}). Install a newer "
        "pyiceberg that does, or read a copy of the table without it."
    )


def unknown_feature(error: BaseException) -> str | None:
    """Return the format version or other feature that pyiceberg does not support; None for any other error."""
    from pydantic import ValidationError

    found = error if isinstance(error, ValidationError) else error.__cause__
    if not isinstance(found, ValidationError):
        if _NO_IDS.search(str(error)):
            return "fields, elements, keys or values without ids"
        codec = _CODEC.search(str(error))
        return codec and codec[0]
    for each in found.errors(include_input=False, include_url=False):
        if each["type"] == "union_tag_invalid":
            return f"format version {each['ctx']['tag']}"
        if re.search("unsupported|not (yet )?supported|type not recognized", each["msg"], re.IGNORECASE):
            return each["msg"].removeprefix("Value error, ")
    return None


@contextmanager
def named_by_metadata(table: str) -> Iterator[None]:
    """Turn NoDataError for a file that the metadata of `table` name into an error that says so and gives advice."""
    try:
        yield
    except NoDataError as error:
        raise NoDataError(
            f"{table} names a file that does not exist: {error} If the snapshot has expired, or the table was changed "
            "just now, make the loader again, for a snapshot that is kept; if the table was moved, pass path_rewrites="
            "{old prefix: new prefix}."
        ) from error
