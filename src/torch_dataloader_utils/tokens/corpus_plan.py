"""Which row groups of which files become which part of a corpus: decided from footers, before a token is read."""

import hashlib
import itertools
import json
import posixpath
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import fsspec
import numpy as np
import pyarrow as pa

from torch_dataloader_utils.errors import ConfigError, FileChangedError, NoDataError
from torch_dataloader_utils.tokens.documents import DataFile, FileFormat, Tokenizer
from torch_dataloader_utils.tokens.ranges import FileIdentity, FsspecStore, identify_local, is_remote

_FORMATS: dict[str, FileFormat] = {".parquet": "parquet", ".pq": "parquet", ".orc": "orc"}

# Footers are small and far away: reading them is waiting.
_FOOTER_THREADS = 16

# Part of every part's key: raise it when the same input gives other files.
_PART_VERSION = 1

PART_KEY_LETTERS = 32

AnyPart = TypeVar("AnyPart", bound="CorpusPart")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusOptions:
    """How rows become documents; see `build_corpus`."""

    column: str
    dtype: str
    tokenizer: Tokenizer | None
    eod: int | None
    vocabulary_size: int | None
    skips_nulls: bool

    def describe(self) -> dict[str, Any]:
        """The options as JSON values. A tokenizer is known by its `fingerprint`, else by its name."""
        tokenizer = self.tokenizer
        name = getattr(tokenizer, "__qualname__", type(tokenizer).__qualname__)
        known = getattr(tokenizer, "fingerprint", f"{getattr(tokenizer, '__module__', '')}.{name}")
        return {
            "column": self.column,
            "dtype": self.dtype,
            "tokenizer": None if tokenizer is None else known,
            "eod": self.eod,
            "vocabulary_size": self.vocabulary_size,
            "skips_nulls": self.skips_nulls,
        }


class CorpusPart(Protocol):
    """What one task writes as a small corpus of its own; picklable."""

    @property
    def size_bytes(self) -> int:
        """About how many bytes it unpacks to."""

    def describe(self) -> dict[str, Any]:
        """Everything that its rows depend on, as JSON values."""

    def read(self, column: str, storage_options: dict[str, Any] | None) -> Generator[tuple[str, pa.Array]]:
        """The column group by group, in order, each with words for messages that say where it is from."""


def digest_part(part: CorpusPart, options: CorpusOptions) -> str:
    """A name for everything the part's bytes depend on."""
    content = {"version": _PART_VERSION, "options": options.describe(), **part.describe()}
    encoded = json.dumps(content, sort_keys=True).encode()
    return hashlib.blake2b(encoded, digest_size=PART_KEY_LETTERS // 2).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A data file as it was planned."""

    path: str
    format: FileFormat
    identity: FileIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Neighbouring groups [start, stop) of one file: a `CorpusPart`."""

    file: SourceFile
    start_group: int
    stop_group: int
    size_bytes: int

    def describe(self) -> dict[str, Any]:
        """See `CorpusPart`."""
        return {
            "path": self.file.path,
            "format": self.file.format,
            "identity": [self.file.identity.size_bytes, self.file.identity.tag],
            "groups": [self.start_group, self.stop_group],
        }

    def read(self, column: str, storage_options: dict[str, Any] | None) -> Generator[tuple[str, pa.Array]]:
        """See `CorpusPart`."""
        if identify_source(self.file.path, storage_options) != self.file.identity:
            raise FileChangedError(f"{self.file.path} changed while the corpus was built. Start again.")
        source = DataFile(self.file.path, self.file.format, storage_options)
        try:
            for group in range(self.start_group, self.stop_group):
                yield f"{self.file.path} group {group} column {column!r}", source.read_column(group, column)
        finally:
            source.close()


def identify_source(path: str, storage_options: dict[str, Any] | None) -> FileIdentity:
    """Identity of a data file now."""
    return FsspecStore(storage_options).identify(path) if is_remote(path) else identify_local(path)


def list_sources(
    sources: str | Path | Sequence[str | Path], file_format: FileFormat | None, storage_options: dict[str, Any] | None
) -> list[SourceFile]:
    """The data files behind paths, globs and directories: given order, sorted inside a glob or directory.

    Names that begin with "_" or "." are no data. A file without a known ending needs `file_format`.

    Raises:
        NoDataError: a path, glob or directory gives no file.
        ConfigError: the format of a file is unknown.
    """
    given = [sources] if isinstance(sources, str | Path) else list(sources)
    paths = [path for source in given for path in _expand(str(source), storage_options)]
    if not paths:
        raise NoDataError("There is no source to read.")
    return [
        SourceFile(path=path, format=_select_format(path, file_format), identity=identify_source(path, storage_options))
        for path in paths
    ]


def _expand(source: str, storage_options: dict[str, Any] | None) -> list[str]:
    filesystem, key = fsspec.core.url_to_fs(source, **(storage_options or {}))
    if fsspec.core.has_magic(key):
        found = filesystem.glob(key)
    elif filesystem.isdir(key):
        found = filesystem.find(key)
    else:
        return [source]
    visible = [path for path in sorted(found) if not posixpath.basename(path).startswith(("_", "."))]
    if not visible:
        raise NoDataError(f"{source} holds no data files.")
    return [filesystem.unstrip_protocol(path) if is_remote(source) else path for path in visible]


def _select_format(path: str, file_format: FileFormat | None) -> FileFormat:
    known = file_format or _FORMATS.get(posixpath.splitext(path)[1].lower())
    if known is None:
        raise ConfigError(f"{path} ends in none of {sorted(_FORMATS)}. Give file_format='parquet' or 'orc'.")
    return known


def plan_parts(files: Sequence[SourceFile], part_bytes: int, storage_options: dict[str, Any] | None) -> list[Part]:
    """Parts of about `part_bytes` unpacked bytes, in the order of files and groups; none crosses a file.

    Raises:
        CorruptFileError: a footer cannot be read.
    """
    with ThreadPoolExecutor(min(_FOOTER_THREADS, len(files)), thread_name_prefix="tdu-footers") as pool:
        sizes = list(pool.map(lambda file: _read_group_bytes(file, storage_options), files))
    parts: list[Part] = []
    for file, group_bytes in zip(files, sizes, strict=True):
        start = held_bytes = 0
        for stop, size_bytes in enumerate(group_bytes, start=1):
            held_bytes += size_bytes
            if held_bytes >= part_bytes or stop == len(group_bytes):
                parts.append(Part(file=file, start_group=start, stop_group=stop, size_bytes=held_bytes))
                start, held_bytes = stop, 0
    return parts


def _read_group_bytes(file: SourceFile, storage_options: dict[str, Any] | None) -> list[int]:
    data = DataFile(file.path, file.format, storage_options)
    try:
        return data.group_bytes
    finally:
        data.close()


def divide_parts(parts: Sequence[AnyPart], output_count: int) -> list[list[AnyPart]]:
    """Neighbouring parts for each output, about equal in bytes; each output has one at least."""
    ends = np.cumsum([part.size_bytes for part in parts], dtype=np.float64)
    targets = ends[-1] * np.arange(1, output_count) / output_count
    borders = np.searchsorted(ends, targets, side="left") + 1
    # Keep one part for every output on either side of a border.
    lowest = np.arange(1, output_count)
    borders = np.maximum.accumulate(np.maximum(borders, lowest) - lowest) + lowest
    borders = np.minimum(borders, len(parts) - output_count + lowest)
    edges = [0, *borders.tolist(), len(parts)]
    return [list(parts[low:high]) for low, high in itertools.pairwise(edges)]
