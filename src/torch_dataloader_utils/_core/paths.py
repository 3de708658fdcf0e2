"""Paths and URLs: check them, remove passwords for display, and name the compression of their endings."""

import os
import re

from torch_dataloader_utils.errors import ConfigError, ConfigTypeError

_WEB_SCHEMES = ("http", "https")

# Clients of these schemes reach their storage by themselves, so nothing is chained behind their URLs.
_ENDS_OF_CHAINS = tuple(
    f"{scheme}://" for scheme in (*_WEB_SCHEMES, "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "hf", "memory")
)

# A password may hold slashes, as S3 keys do. No password: "host:9000/a@b", "arn:aws:s3:eu-1:1:accesspoint/p/a@b".
_USER_INFO = re.compile(r"(?!arn:)[^/@:?\[\]]*:(?!\d*(?:/|$))(?:[^/?]*@|[^@?]*@)")

# The signature or token in web URLs of object stores. With another scheme, clients take it as a part of the name.
_SIGNATURE = re.compile(r"[?&;#](?:sig|(?:x-amz-|x-goog-)?signature|x-amz-security-token|access_token)=", re.IGNORECASE)

# In web URLs, whose servers take secrets by any name, also in parameters of the path.
_WEB_SECRET = re.compile(
    r"[?&;#](?:sig|key|code|[\w.-]*(?:token|secret|passw|api_?key|accesskey|signature|credential|jwt|auth)[\w.-]*)=",
    re.IGNORECASE,
)

# Control characters move a terminal's cursor or change its state; direction marks make a name read as another name.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

_CODECS = {"gz": "gzip", "zst": "zstd", "bz2": "bz2", "lz4": "lz4"}


def codec_of(path: str) -> str | None:
    """Return the compression, by pyarrow's name, that the ending of a path says; None for no compression."""
    return _CODECS.get(path.rpartition(".")[2].lower())


def check_path(name: str, value: object) -> str:
    """Return the text of a path or URL from a user.

        "data/web"  "data/web"      Path("data/web")  "data/web"      None, b"data"  ConfigTypeError

    Raises:
        ConfigTypeError: neither text nor an os.PathLike of text. ConfigError: a null byte, which no path has.
    """
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise ConfigTypeError(f"{name}={value!r}: pass a path, as a str or an os.PathLike.")
    if "\0" in text:
        raise ConfigError(f"{name}={redact(text)} holds a null byte, which no path does: pass the path without it.")
    return text


def printable(text: str) -> str:
    r"""Return the text on one line, with control characters escaped as Python escapes them.

    a\x1b[2Jb      a, backslash, x1b[2Jb
    """
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def redact(path: str) -> str:
    """Return the path for messages: `printable`, without user-info and query (passwords, signatures).

    https://me:pw@host/a.parquet?sig=x      https://host/a.parquet
    az://c/a.parquet?sv=1&sig=x             az://c/a.parquet
    """
    return printable(_without_credentials(path))


def split_chain(path: str) -> list[str]:
    """Return the links of a chained URL. A key of a bucket or a path of a web server is no chain, whatever it holds.

    simplecache::s3://bucket/a::b.csv       simplecache      s3://bucket/a::b.csv
    zip://d/a.csv::s3://bucket/z.zip        zip://d/a.csv    s3://bucket/z.zip
    """
    links = path.split("::")
    last = next((i for i, link in enumerate(links) if link.startswith(_ENDS_OF_CHAINS)), len(links))
    return [*links[:last], "::".join(links[last:])] if last < len(links) else links


def has_credentials(path: str) -> bool:
    """Return whether the URL itself carries a password or a signature, and so must not be stored."""
    return _without_credentials(path) != path


def check_no_password(path: str) -> None:
    """Raise ConfigError for a URL with a password, or with a signature that its client does not use.

    Plans and logs would show the password or signature.
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
    # In other schemes "?" is a character of the key or a glob, and "#" is a character of the key.
    found = (_WEB_SECRET if is_web or scheme == "hf" else _SIGNATURE).search(rest)
    if found:
        rest = rest[: found.start()].partition("?")[0]
    if is_web:
        rest = rest.partition("?")[0].partition("#")[0]
    rest = rest.removeprefix(_password(scheme, rest))
    authority, slash, key = rest.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2] if is_web else authority}{slash}{key}"


def _password(scheme: str, rest: str) -> str:
    """Return the name and password before the host of a URL, with the "@"; "" for a URL without a password."""
    # fsspec's form of "github://org:repo@branch/file", in which nothing is secret.
    found = None if scheme == "github" else _USER_INFO.match(rest)
    return found[0] if found else ""
