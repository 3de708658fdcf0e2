"""URLs of remote files: from a URL to its client's name for the file, and back."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fsspec

from torch_dataloader_utils._core.paths import redact, split_chain
from torch_dataloader_utils._store.client import is_s3
from torch_dataloader_utils._store.default_client import S3_SCHEMES, VERSION
from torch_dataloader_utils._store.wildcards import is_web
from torch_dataloader_utils.errors import UnsupportedFeatureError

# Schemes of local files behind one of fsspec's caches: "simplecache::file:///data".
_LOCAL_SCHEMES = ("file", "local")

_AZURE_SCHEMES = ("abfs", "abfss", "az", "adl")

# Parts of names that a URL cannot hold for every client: a chain, a version of an object, a slash at the end.
_AMBIGUOUS = re.compile(rf"::|://|{re.escape(VERSION)}|/$")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteUrl:
    """URL in its parts: before + own + after, where `before` and `after` hold the rest of a chained URL.

    scheme: Scheme of `own`. server: Part of `own` before its first slash, if the client connects to it and the client's
    names lack it; None if names include it, such as a bucket. root: Prefix of names on a server. account: For Azure,
    part after the container, which names lack.

        zip://d/a.csv::s3://bucket/z.zip      own="zip://d/a.csv"   after="::s3://bucket/z.zip"   server=None
        s3://bucket/a::b.csv                  own="s3://bucket/a::b.csv"
        simplecache::s3://bucket/a.csv        own="s3://bucket/a.csv"   before="simplecache::"    server=None
        ftp://me@host:2121/d/a.csv            server="me@host:2121"   root="/"
        abfs://container@account/d/a.csv      account="account"
    """

    before: str
    own: str
    after: str
    scheme: str
    server: str | None
    root: str
    account: str

    @classmethod
    def of(cls, url: str, *, backend: str = "fsspec") -> "RemoteUrl":
        """Return the parts of a URL.

        backend: obstore's clients know files by their buckets, and need no fsspec client to be installed.
        """
        parts = split_chain(url)
        index = next(i for i, part in enumerate(parts) if "://" in part)
        scheme, _, rest = parts[index].partition("://")
        authority = rest.partition("/")[0]
        is_fsspec = backend != "obstore"
        has_server = is_fsspec and scheme not in S3_SCHEMES  # without a look at the client, whose import takes 0.3 s
        root = _root_on_server(scheme, authority) if has_server else None
        return cls(
            before="".join(f"{part}::" for part in parts[:index]),
            own=parts[index],
            after="".join(f"::{part}" for part in parts[index + 1 :]),
            scheme=scheme,
            server=None if root is None else authority,
            root=root or "",
            account=authority.partition("@")[2] if is_fsspec and scheme in _AZURE_SCHEMES else "",
        )

    @property
    def client(self) -> tuple[str, ...]:
        """Key of the client: equal for the URLs that one client serves."""
        return (self.before, self.scheme, self.server or self.account, self.after)

    @property
    def address(self) -> str:
        """URL to open the client with."""
        # Some clients take a query for an option, and "?" is a wildcard or a letter here; fsspec takes a "::" for a
        # chain.
        server = self.own.partition("://")[2].partition("/")[0] if "::" in self.own else self.server
        own = self.own if server is None else f"{self.scheme}://{server}/"
        return f"{self.before}{own}{self.after}"

    def key(self, filesystem: Any) -> str:
        """Return the client's name for the file, as in its listings: without a scheme, except on web servers."""
        if self.server is not None:
            return self.root + self.own.partition("://")[2].partition("/")[2].strip("/")
        key: str = filesystem._strip_protocol(self.own)
        # obstore leaves the scheme, lists names without one, and takes "?" and "#" for the end of a URL with one.
        return key if is_web(key) else key.removeprefix(f"{self.scheme}://")

    def check_key(self, filesystem: Any, key: str, parse: Callable[[str], "RemoteUrl"]) -> None:
        """Check that the URL of a listed name means this name, so that what is read is what was listed.

        parse: Function that returns the parts of a URL, as they are read when the file is.

        Raises:
            UnsupportedFeatureError: the client takes a part of the name for a chain, a version or a directory.
        """
        if not _AMBIGUOUS.search(key):
            return
        url = self.of_key(key)
        parsed = parse(url)
        names_version = VERSION in key and is_s3(filesystem)
        if names_version or parsed.client != self.client or parsed.key(filesystem) != key:
            raise UnsupportedFeatureError(
                f"{redact(url)}: the storage client takes a part of this name ('::', '?versionId=' or a slash at its "
                "end) for something else, and would read another file. Rename the file, or choose the files by a "
                "pattern that leaves it out."
            )

    def of_key(self, key: str) -> str:
        """Return the URL of the client's name `key`."""
        if is_web(key):
            return f"{self.before}{key}{self.after}"
        # Clients disagree on a slash before the first name, which only local paths need.
        name = key if self.scheme in _LOCAL_SCHEMES else key.lstrip("/")
        if self.server is not None:
            name = f"{self.server}/{name}" if name else self.server
        if self.account:
            container, slash, rest = name.partition("/")
            name = f"{container}@{self.account}{slash}{rest}"
        return f"{self.before}{self.scheme}://{name}{self.after}"


def _root_on_server(scheme: str, authority: str) -> str | None:
    """Return the beginning of names on the server `authority`, "/" or ""; None where names include the server.

    ftp, hdfs       "/"         s3, abfs, http      None
    """
    try:
        client = fsspec.get_filesystem_class(scheme)
        # A made-up host, since "hdfs:///d" names no host and means the configured host.
        key: str = client._strip_protocol(f"{scheme}://{authority or 'host'}/key")
    except (AttributeError, ImportError, ValueError):  # no client: opening one raises the error
        return None
    return key.removesuffix("key") if key in ("key", "/key") else None
