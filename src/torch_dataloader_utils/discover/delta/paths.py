"""Paths that a Delta log names."""

import re
from urllib.parse import unquote

from torch_dataloader_utils._store import redact
from torch_dataloader_utils.discover.table_paths import PathRules
from torch_dataloader_utils.errors import UnsupportedFeatureError

_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")


def absolute_path(root: str, path: str) -> str:
    """The path to open of a path in the log, which is a URI: percent-encoded, relative to the table or absolute.

    root /t, path x=a%20b/p.parquet            /t/x=a b/p.parquet
    root s3://b/t, path s3://c/p.parquet       s3://c/p.parquet, as shallow clones have
    root /t, path ../p.parquet                 UnsupportedFeatureError

    Whether a file may lie there is for `TableFiles.store` to say.

    Raises:
        UnsupportedFeatureError: a relative path that leaves the table, or one that is not UTF-8.
    """
    try:
        decoded = unquote(path, errors="strict")
        decoded.encode()
    except UnicodeError as error:
        raise UnsupportedFeatureError(
            f"{redact(root)}: its log names the path {path!r}, which is not UTF-8."
        ) from error
    if _ABSOLUTE.match(decoded):
        return PathRules().resolve(decoded)
    if ".." in re.split(r"[/\\]", decoded):
        raise UnsupportedFeatureError(
            f"{redact(root)}: its log names {path!r}, which leads out of the table. Such paths are refused; a file "
            "elsewhere has an absolute path."
        )
    return f"{root}/{decoded}"
