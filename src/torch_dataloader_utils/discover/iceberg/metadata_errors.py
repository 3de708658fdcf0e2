"""Turns errors of pyiceberg about metadata, and missing files that metadata name, into errors of ours."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from torch_dataloader_utils._store import redact
from torch_dataloader_utils.discover.decode_errors import corrupt
from torch_dataloader_utils.errors import LoaderError, NoDataError, UnsupportedFeatureError

# Texts of pyiceberg 0.12's errors for manifests whose Avro schema leaves out ids, as BigQuery's do.
_NO_IDS = re.compile(r"missing (?:field-id|element-id|key-id|value-id)\b|(?:field|element|key|value)-id'?$")

# Texts of pyiceberg 0.12's errors for valid metadata of format version 3; damaged metadata give others.
_UNKNOWN_FEATURES = (
    (re.compile(r"Cannot deserialize bytes, type (.+?) not supported: "), "a default value of type {}"),
    (re.compile(r"Could not parse (geo(?:metry|graphy)\([^()]+\)) into "), "type {}"),
    (re.compile(r"Unknown logical/physical type combination: .*'timestamp-nanos'"), "partitions by nanoseconds"),
)

# Fields that version 1 allows to be missing, and pyiceberg does not.
_OPTIONAL_IN_VERSION_1 = {
    "manifest-list": "a snapshot without a manifest list, as in very old tables",
    "field-id": "partition fields without ids, as in very old tables",
}


@contextmanager
def parsing(path: str, what: str) -> Iterator[None]:
    """Turns any error of parsing `what` (table metadata, a manifest) into one of ours; parse nothing else inside.

    pyiceberg, pydantic and four compression codecs raise their own errors, many of them plain Exceptions. Their texts
    quote the file, which may hold secrets, so the message names only the class of the error.
    """
    try:
        yield
    except LoaderError:
        raise
    except Exception as error:
        raise unparsed(path, what, error) from error


def unparsed(where: str, what: str, error: BaseException) -> LoaderError:
    """The error for metadata that pyiceberg did not parse: newer than it, or wrong.

    where: a path, or a table's name.
    """
    unknown = unknown_feature(error)
    if unknown is None:
        return corrupt(where, f"the {what} does not parse ({type(error).__name__})")
    return UnsupportedFeatureError(
        f"{redact(where)}: the {what} uses what the installed pyiceberg does not know ({unknown}). Install a newer "
        "pyiceberg that does, or read a copy of the table without it."
    )


def unknown_feature(error: BaseException) -> str | None:
    """The format version, type, default or transform that pyiceberg does not support; None for any other error."""
    from pydantic import ValidationError

    found = error if isinstance(error, ValidationError) else error.__cause__
    if not isinstance(found, ValidationError):
        return _named_feature(str(error))
    for each in found.errors(include_input=False, include_url=False):
        if each["type"] == "union_tag_invalid":
            return f"format version {each['ctx']['tag']}"
        # (1, "snapshots", 0, "manifest-list"), with "metadata" before it in a catalog's answer
        if each["type"] == "missing" and 1 in each["loc"][:2] and each["loc"][-1] in _OPTIONAL_IN_VERSION_1:
            return _OPTIONAL_IN_VERSION_1[str(each["loc"][-1])]
        if re.search("unsupported|not (yet )?supported|type not recognized", each["msg"], re.IGNORECASE):
            return each["msg"].removeprefix("Value error, ")
    return None


def _named_feature(text: str) -> str | None:
    if _NO_IDS.search(text):
        return "fields, elements, keys or values without ids"
    for pattern, feature in _UNKNOWN_FEATURES:
        if found := pattern.match(text):
            return feature.format(*found.groups())
    return None


@contextmanager
def named_by_metadata(table: str) -> Iterator[None]:
    """Turns NoDataError for a file that the metadata of `table` name into one that says so and what to do."""
    try:
        yield
    except NoDataError as error:
        raise NoDataError(
            f"{table} names a file that is not there: {error} If the snapshot has expired, or the table was changed "
            "just now, make the loader again, for a snapshot that is kept; if the table was moved, pass path_rewrites="
            "{old prefix: new prefix}."
        ) from error
