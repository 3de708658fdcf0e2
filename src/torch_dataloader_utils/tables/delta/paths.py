"""Paths in a Delta log: the file that each path names, in any spelling, and the path to open.

Source: Delta protocol, "Add File and Remove File", "Deletion Vector Descriptor Schema"; RFC 2396.
"""

import os
import re
from base64 import b85decode
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote
from uuid import UUID

from torch_dataloader_utils._store import redact
from torch_dataloader_utils.discover.roots import PathRules, canonical, split
from torch_dataloader_utils.errors import UnsupportedFeatureError
from torch_dataloader_utils.formats.errors import corrupt

VectorKey = tuple[str, int]
FileKey = tuple[str, VectorKey | None]
"""Logical file: identity of a data file, and identity of its deletion vector."""

# The digits of Z85 (ZeroMQ RFC 32) and of Python's base 85.
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85 = bytes.maketrans(_Z85, _B85)

# A UUID in Z85.
_UUID_DIGITS = 20

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
# A relative path that folding does not change.
_PLAIN = re.compile(r"(?:[^/:.][^/:]*/)*[^/:.][^/:]*")
_RULES = PathRules()
_canonical = lru_cache(maxsize=8)(canonical)


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorPlace:
    """Place of a deletion vector.

    storage: "u" (a file named by UUID), "p" (an absolute path) or "i" (inline). place: Path, name or the vector itself.
    offset: First byte in the file. size: Bytes of the vector. cardinality: Number of rows that the vector deletes.
    """

    storage: str
    place: str
    offset: int
    size: int
    cardinality: int


def file_identity(root: str, path: str) -> str:
    """Return the same text for all paths that name one file. `path_to_open` may refuse the file.

    Names are decoded once. Dots and slashes are folded in local paths only: d//x and d/x are two objects of a store.
    The directory of a local table may have several paths, by links.

        root /t            x.p   %78.p   /t/x.p   file:/t/x.p   file:///t/a/../x.p      one file
        root /link to /t   x.p   /t/x.p   /link/x.p                                     one file
        root s3a://b/t     x.p   /t/x.p   s3://b/t/x.p                                  one file
    """
    decoded = _decoded(path)
    if _PLAIN.fullmatch(decoded):  # nearly all of a log's millions of paths
        return f"{_canonical(root)}/{decoded}"
    found = _resolved(root, path)
    return canonical(found if split(found)[0] else _below(root, found))


def vector_identity(root: str, vector: VectorPlace) -> VectorKey:
    """Return the same value for all places that name one deletion vector."""
    try:
        return file_identity(root, _named(vector)), vector.offset
    except ValueError:  # inline, or a name that `vector_path` refuses
        return f"{vector.storage}:{vector.place}", vector.offset


def path_to_open(root: str, path: str) -> str:
    """Return the path to open for a path in the log: a URI, percent-encoded, relative to the table or absolute.

        root /t, path x=a%20b/p.parquet            /t/x=a b/p.parquet
        root s3://b/t, path s3://c/p.parquet       s3://c/p.parquet, as shallow clones have
        root s3://b/t, path /u/p.parquet           s3://b/u/p.parquet
        root /t, path ../p.parquet                 UnsupportedFeatureError

    `TableFiles.store` decides whether a file may lie at the path.

    Raises:
        UnsupportedFeatureError: a relative path leaves the table, or the path is not UTF-8.
    """
    found, decoded = _resolved(root, path), _decoded(path)
    try:
        found.encode()
    except UnicodeError as error:
        raise UnsupportedFeatureError(
            f"{redact(root)}: its log names the path {path!r}, which is not UTF-8. Write the table again, "
            "with other names of files."
        ) from error
    if not _is_absolute(path, decoded) and ".." in re.split(r"[/\\]", decoded):
        raise UnsupportedFeatureError(
            f"{redact(root)}: its log names {path!r}, which leads out of the table. Such paths are refused; a file "
            "elsewhere has an absolute path."
        )
    return found


def vector_path(root: str, where: str, vector: VectorPlace) -> str:
    """Return the path to open for a deletion vector that lies in a file.

    where: Data file, for messages.

    Raises:
        CorruptFileError: a name that is no UUID. UnsupportedFeatureError: a place of another kind; see `path_to_open`.
    """
    if vector.storage not in ("u", "p"):
        raise UnsupportedFeatureError(
            f"{where}: a deletion vector stored as {vector.storage!r} is not supported. Write the table again without."
        )
    try:
        name = _named(vector)
    except ValueError as error:
        raise corrupt(where, f"the name of a deletion vector does not decode ({error})") from error
    return path_to_open(root, name)


def z85(text: str) -> bytes:
    """Return the bytes of Z85 text.

    Raises:
        ValueError: other text.
    """
    digits = text.encode("ascii")
    if len(digits) % 5 or not set(digits) <= set(_Z85):
        raise ValueError(f"{text[:40]!r} is not Z85 text")
    return b85decode(digits.translate(_TO_B85))


def _resolved(root: str, path: str) -> str:
    decoded = _decoded(path)
    if not _is_absolute(path, decoded):
        decoded = f"{root}/{decoded}"
    elif decoded.startswith("/"):
        decoded = root[: len(root) - len(split(root)[2])] + decoded
    return _RULES.resolve(decoded)


def _below(root: str, path: str) -> str:
    """Return a local path with the root's own spelling for its part up to the root, if it leads there."""
    if split(root)[0]:
        return path
    end = path.find("/", 1)
    while end > 0:
        if _real_path(path[:end]) == _real_path(root):
            return root + path[end:]
        end = path.find("/", end + 1)
    return path


def forget_links() -> None:
    """Forget where links lead. Call it before a log is read: a link may have been moved since the last log."""
    _real_path.cache_clear()


@lru_cache(maxsize=1024)
def _real_path(directory: str) -> str:
    try:
        return os.path.realpath(directory)
    except ValueError:  # a null byte, or a surrogate: no directory has such a name
        return directory


def _is_absolute(path: str, decoded: str) -> bool:
    return decoded.startswith("/") or _SCHEME.match(path) is not None


def _decoded(path: str) -> str:
    return unquote(path, errors="surrogateescape")


def _named(vector: VectorPlace) -> str:
    """Return the path, as the log would write it, of a vector that lies in a file.

    Raises:
        ValueError: the vector lies in no file, or its name is no UUID.
    """
    if vector.storage == "p":
        return vector.place
    if vector.storage != "u":
        raise ValueError("it lies in no file")
    prefix, digits = vector.place[:-_UUID_DIGITS], vector.place[-_UUID_DIGITS:]
    name = f"deletion_vector_{UUID(bytes=z85(digits))}.bin"
    return f"{prefix}/{name}" if prefix else name
