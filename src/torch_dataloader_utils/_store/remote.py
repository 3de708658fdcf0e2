"""Every other store, through fsspec."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import fsspec

from torch_dataloader_utils._observe.requests import thread_requests
from torch_dataloader_utils._store.coalesce import coalesce
from torch_dataloader_utils._store.faults import redact, store_error, translated, unknown_scheme
from torch_dataloader_utils._store.identity import check_identity, short_read, stat_of
from torch_dataloader_utils._store.interface import Buffer, CoalesceLimits, FileEntry, FileStat, Listing, Span, Tail
from torch_dataloader_utils._store.process_local import ProcessLocal
from torch_dataloader_utils._store.secret import Secret
from torch_dataloader_utils._store.wildcards import before_wildcard, is_pattern
from torch_dataloader_utils.errors import ConfigError, NoDataError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FsspecStore:
    """Ranges by `cat_ranges`, which async clients (s3fs, gcsfs, adlfs, http) run in parallel.

    before, scheme, after: a URL is before + scheme + "://" + key + after; `before` and `after` hold the rest of
    a chained URL ("simplecache::", "::s3://bucket/archive.zip").
    """

    before: str
    scheme: str
    after: str
    options: Secret
    limits: CoalesceLimits
    _filesystem: ProcessLocal[Any] = field(default_factory=ProcessLocal, repr=False, compare=False)

    @classmethod
    def of(cls, url: str, options: Mapping[str, Any], limits: CoalesceLimits) -> "FsspecStore":
        """The store that `url` lies in."""
        parts = url.split("::")
        index = next(i for i, part in enumerate(parts) if "://" in part)
        return cls(
            before="".join(f"{part}::" for part in parts[:index]),
            scheme=parts[index].split("://", 1)[0],
            after="".join(f"::{part}" for part in parts[index + 1 :]),
            options=Secret(dict(options)),
            limits=limits,
        )

    @property
    def is_local(self) -> bool:
        """False."""
        return False

    def local_path(self, path: str) -> str:
        """ConfigError: the files are not on this machine."""
        raise ConfigError(f"{redact(path)} is remote and has no local path")

    def stat(self, path: str) -> FileStat:
        """One metadata request, past the listing cache."""
        return stat_of(self._info(path, "look up", None))

    def tail(self, path: str, length: int, stat: FileStat | None = None) -> Tail:
        """The last bytes: one request with `stat`, else two."""
        now = stat or self.stat(path)
        start = max(0, now.size - length)
        (data,) = self.ranges(path, [(start, now.size - start)])
        return Tail(data=data, size=now.size, identity=now.identity)

    def ranges(self, path: str, spans: Sequence[Span], identity: str | None = None) -> list[Buffer]:
        """The bytes of each span; an identity costs one metadata request after the reads."""
        plan = coalesce(spans, self.limits)
        wanted = [span for span in plan.reads if span[1]]
        data = iter(self._request(path, "read", identity, lambda fs, key: _fetch(fs, key, wanted)) if wanted else ())
        buffers = [next(data) if length else b"" for _, length in plan.reads]
        # fsspec has no conditional read, so that the file is looked up again once its bytes are here.
        if identity is not None:
            check_identity(path, identity, stat_of(self._info(path, "look up", identity)))
        for span, buffer in zip(plan.reads, buffers, strict=True):
            if len(buffer) != span[1]:
                raise short_read(path, span, len(buffer))
        return plan.slices(buffers)

    def list_files(self, path: str) -> Listing:
        """The files at, below or matching `path`; sizes and identities come with the listing."""
        key, found = self._request(path, "list", None, _find)
        if not found:
            raise NoDataError(f"{redact(path)} does not exist, or matches no file. Check the path and the pattern.")
        entries = {self._url(name): stat_of(info) for name, info in found.items()}
        listed = tuple(FileEntry(path=url, stat=entries[url]) for url in sorted(entries))
        if key in found:
            return Listing(entries=listed)
        directory = self._url(before_wildcard(key) if is_pattern(key) else key)
        return Listing(entries=listed, directory=directory, is_pattern=is_pattern(key))

    def _info(self, path: str, action: str, identity: str | None) -> Mapping[str, Any]:
        return self._request(path, action, identity, _look_up)

    def _request(self, path: str, action: str, identity: str | None, call: Callable[[Any, str], T]) -> T:
        # The one place that talks to a remote store: retries and renewed credentials belong here.
        with translated(path, action, identity):
            filesystem = self._filesystem.get(lambda: self._open(path))
            return call(filesystem, self._key(filesystem, path))

    def _open(self, path: str) -> Any:
        try:
            return fsspec.core.url_to_fs(path, **self.options.reveal())[0]
        except ImportError as error:
            raise store_error(error, path, "open") from error
        except ValueError as error:
            if "Protocol not known" in str(error):
                raise unknown_scheme(path, self.scheme) from error
            raise

    def _key(self, filesystem: Any, path: str) -> str:
        stop = len(path) - len(self.after)
        key: str = filesystem._strip_protocol(path[len(self.before) : stop])
        return key

    def _url(self, key: str) -> str:
        # http keys are whole URLs already.
        own = key if "://" in key else f"{self.scheme}://{key.lstrip('/')}"
        return f"{self.before}{own}{self.after}"


def _look_up(filesystem: Any, key: str) -> Mapping[str, Any]:
    filesystem.invalidate_cache(key)
    thread_requests().requests += 1
    info: Mapping[str, Any] = filesystem.info(key)
    return info


def _fetch(filesystem: Any, key: str, spans: Sequence[Span]) -> list[bytes]:
    starts = [start for start, _ in spans]
    stops = [start + length for start, length in spans]
    replies = filesystem.cat_ranges([key] * len(spans), starts, stops, on_error="return")
    seen = thread_requests()
    seen.requests += len(spans)
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
        seen.fetched_bytes += len(reply)
    return list(replies)


def _find(filesystem: Any, key: str) -> tuple[str, dict[str, Mapping[str, Any]]]:
    filesystem.invalidate_cache()
    if not is_pattern(key):
        return key, _below(filesystem, key, filesystem.info(key))
    found: dict[str, Mapping[str, Any]] = {}
    for name, info in filesystem.glob(key, detail=True).items():
        found |= _below(filesystem, name, info)
    return key, found


def _below(filesystem: Any, key: str, info: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    if info["type"] == "file":
        return {key: info}
    return {name: each for name, each in filesystem.find(key, detail=True).items() if each["type"] == "file"}
