"""Paths and URLs: checked, shown without passwords, and the compression that their endings name."""

import os
import re
from typing import Any

from torch_dataloader_utils.errors import ConfigError, ConfigTypeError

_WEB_SCHEMES = ("http", "https")

# Clients of these reach their storage by themselves, so that nothing is chained behind their URLs.
_ENDS_OF_CHAINS = tuple(
    f"{scheme}://" for scheme in (*_WEB_SCHEMES, "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "hf", "memory")
)

# A password may hold slashes, as S3 keys do. No password: "host:9000/a@b", "arn:aws:s3:eu-1:1:accesspoint/p/a@b".
_USER_INFO = re.compile(r"(?!arn:)[^/@:?\[\]]*:(?!\d*(?:/|$))(?:[^/?]*@|[^@?]*@)")

# The signature or token in web URLs of object stores. With another scheme, clients take it for a part of the name.
_SIGNATURE = re.compile(r"[?&;#](?:sig|(?:x-amz-|x-goog-)?signature|x-amz-security-token|access_token)=", re.IGNORECASE)

# Control characters move a terminal's cursor or change its state; those of direction make a name read as another.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

_CODECS = {"gz": "gzip", "zst": "zstd", "bz2": "bz2", "lz4": "lz4"}


def codec_of(path: str) -> str | None:
    """The compression, by pyarrow's name, that the ending of a text file's path says; None for no compression."""
    return _CODECS.get(path.rpartition(".")[2].lower())


def check_path(name: str, value: Any) -> str:
    """The text of a path or URL that a user gives.

        "data/web"  "data/web"      Path("data/web")  "data/web"      None, b"data"  ConfigTypeError

    Raises:
        ConfigTypeError: neither text nor an os.PathLike of text. ConfigError: a null byte, which no path holds.
    """
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise ConfigTypeError(f"{name}={value!r}: pass a path, as a str or an os.PathLike.")
    if "\0" in text:
        raise ConfigError(f"{name}={redact(text)} holds a null byte, which no path does: pass the path without it.")
    return text


def printable(text: str) -> str:
    r"""The text on one line, without control characters: these as Python escapes them.

    a\x1b[2Jb      a, backslash, x1b[2Jb
    """
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def redact(path: str) -> str:
    """The path for messages: without user-info and query, which may hold passwords and signatures, and `printable`.

    https://me:pw@host/a.parquet?sig=x      https://host/a.parquet
    az://c/a.parquet?sv=1&sig=x             az://c/a.parquet
    """
    return printable(_without_credentials(path))


def split_chain(path: str) -> list[str]:
    """The links of a chained URL. A key of a bucket or a path of a web server is no chain, whatever it holds.

    simplecache::s3://bucket/a::b.csv       simplecache      s3://bucket/a::b.csv
    zip://d/a.csv::s3://bucket/z.zip        zip://d/a.csv    s3://bucket/z.zip
    """
    links = path.split("::")
    last = next((i for i, link in enumerate(links) if link.startswith(_ENDS_OF_CHAINS)), len(links))
    return [*links[:last], "::".join(links[last:])] if last < len(links) else links


def has_credentials(path: str) -> bool:
    """Whether the URL itself carries a password or a signature, and so must not be stored."""
    return _without_credentials(path) != path


def check_no_password(path: str) -> None:
    """Raises ConfigError for a URL with a password, or with a signature that its client does not use.

    Plans and logs would show them.
    """
    for scheme, _, rest in (part.partition("://") for part in path.split("::")):
        if _password(scheme, rest):
            held = "a password"
        elif scheme.lower() not in _WEB_SCHEMES and _SIGNATURE.search(rest):
            held = "a signature"
        else:
            continue
        raise ConfigError(f"{redact(path)}: the URL holds {held}. Pass credentials as storage_options instead.")


def _without_credentials(path: str) -> str:
    if "://" not in path:
        return path
    return "::".join(_redact_one(part) for part in path.split("::"))


def _redact_one(part: str) -> str:
    scheme, separator, rest = part.partition("://")
    if not separator:
        return part
    is_web = scheme.lower() in _WEB_SCHEMES
    # Elsewhere "?" is a character of the key, or a glob, and "#" is one.
    found = _SIGNATURE.search(rest)
    if found:
        rest = rest[: found.start()].partition("?")[0]
    if is_web:
        rest = rest.partition("?")[0].partition("#")[0]
    rest = rest.removeprefix(_password(scheme, rest))
    authority, slash, key = rest.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2] if is_web else authority}{slash}{key}"


def _password(scheme: str, rest: str) -> str:
    """The name and password before the host of a URL, with the "@" after them; "" for a URL without a password."""
    # fsspec's form of "github://org:repo@branch/file", in which nothing is secret.
    found = None if scheme == "github" else _USER_INFO.match(rest)
    return found[0] if found else ""
