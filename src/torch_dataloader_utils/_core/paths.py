"""Paths: as messages may show them, and what their endings say."""

import os
from typing import Any

from torch_dataloader_utils.errors import ConfigError, ConfigTypeError

_CODECS = {"gz": "gzip", "zst": "zstd", "bz2": "bz2", "lz4": "lz4"}


def codec_of(path: str) -> str | None:
    """The compression, by pyarrow's name, that the ending of a text file's path says; None for no compression."""
    return _CODECS.get(path.rpartition(".")[2].lower())


def check_path(name: str, value: Any) -> str:
    """The text of a path or URL that a user gives.

        "data/web"  "data/web"      Path("data/web")  "data/web"      None, b"data"  ConfigTypeError

    Raises:
        ConfigTypeError: neither text nor an os.PathLike of text.
    """
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise ConfigTypeError(f"{name}={value!r}: pass a path, as a str or an os.PathLike.")
    return text


def redact(path: str) -> str:
    """The path without user-info and query, which may hold passwords and signatures.

    https://me:pw@host/a.parquet?sig=x      https://host/a.parquet
    """
    if "://" not in path:
        return path
    return "::".join(_redact_one(part) for part in path.split("::"))


def has_credentials(path: str) -> bool:
    """Whether the URL itself carries a password or a signature, and so must not be stored."""
    return redact(path) != path


def check_no_password(path: str) -> None:
    """Raises ConfigError for a URL that holds a password; it would end up in plans and logs."""
    if any(":" in _user(part) for part in path.split("::")):
        raise ConfigError(f"{redact(path)}: the URL holds a password. Pass credentials as storage_options instead.")


def _redact_one(part: str) -> str:
    scheme, separator, rest = part.partition("://")
    if not separator:
        return part
    if scheme in ("http", "https"):
        # Only here is "?" a query; in a bucket it is a character of the key, or a glob.
        rest = rest.partition("?")[0]
    authority, slash, key = rest.partition("/")
    if ":" in _user(part) or scheme in ("http", "https"):
        authority = authority.rpartition("@")[2]
    return f"{scheme}://{authority}{slash}{key}"


def _user(part: str) -> str:
    """What stands before the host of a URL: a name, and after a colon a password."""
    scheme, _, rest = part.partition("://")
    # fsspec's form of "github://org:repo@branch/file", in which nothing is secret.
    return "" if scheme == "github" else rest.partition("/")[0].rpartition("@")[0]
