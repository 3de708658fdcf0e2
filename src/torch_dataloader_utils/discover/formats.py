"""Formats: by name and by file ending, and the scan of their files: of one, or of many in order."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import assert_never

from torch_dataloader_utils._core.inventory import FileFormat
from torch_dataloader_utils._core.paths import codec_of, redact
from torch_dataloader_utils._runtime.parallel import map_in_order, map_quick, threads_for
from torch_dataloader_utils._runtime.threads import Executor, available_cpus
from torch_dataloader_utils._store import Store
from torch_dataloader_utils.discover.arrow import scan_arrow
from torch_dataloader_utils.discover.bad_files import BadFile, unless_bad
from torch_dataloader_utils.discover.decode_errors import checked, empty
from torch_dataloader_utils.discover.file_scan import FileScan, ScanItem, ScanRequest
from torch_dataloader_utils.discover.orc import scan_orc
from torch_dataloader_utils.discover.parquet import scan_parquet
from torch_dataloader_utils.discover.text import scan_text
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type

_NAMES = {
    "parquet": FileFormat.PARQUET,
    "orc": FileFormat.ORC,
    "csv": FileFormat.CSV,
    "json": FileFormat.JSON,
    "jsonl": FileFormat.JSON,
    "arrow": FileFormat.ARROW,
}

_ENDINGS = {**_NAMES, "pq": FileFormat.PARQUET, "ndjson": FileFormat.JSON, "feather": FileFormat.ARROW}

REMOTE_THREADS = 32
"""Requests at once in a scan of a remote store; each takes ten milliseconds or more, mostly waiting."""

# A local footer takes 0.2 ms, mostly to decode; more threads do not help.
_MOST_LOCAL_THREADS = 8


def file_format_of(name: str) -> FileFormat:
    """The format of that name; "json" and "jsonl" both mean one JSON object a line.

    Raises:
        ConfigTypeError: no text. ConfigError: no such format.
    """
    if not isinstance(name, str):
        # Not quoted, since storage options in the wrong place may hold secrets.
        given = of_type(name) if isinstance(name, Mapping) else repr(name)
        raise ConfigTypeError(f"format={given}: pass one of the texts {', '.join(_NAMES)}.")
    if name not in _NAMES:
        raise ConfigError(
            f"format={redact(name)!r} is unknown; choose one of {', '.join(_NAMES)}. Several paths are one list."
        )
    return _NAMES[name]


def format_hint(path: str, file_format: FileFormat) -> str:
    """Advice about format= if a file's ending names another format than it was read as; else "".

    part-0.orc read as Parquet      pass format="orc"
    """
    named = named_format(path)
    if named in (None, file_format):
        return ""
    ending = _ending(path)
    return f'pass format="{ending if ending in _NAMES else named.name.lower()}"'


def named_format(path: str) -> FileFormat | None:
    """The format that a file's ending names (before the ending of a codec); None if it names none."""
    return _ENDINGS.get(_ending(path))


def _ending(path: str) -> str:
    stem = path.rpartition(".")[0] if codec_of(path) else path
    return stem.lower().rpartition(".")[2]


def is_text(file_format: FileFormat) -> bool:
    """Whether files are text, whose rows only a read of them counts."""
    return file_format in (FileFormat.CSV, FileFormat.JSON)


def scan_file(store: Store, request: ScanRequest, item: ScanItem) -> FileScan | BadFile:
    """The checked scan of one file's metadata; may run in any thread or process."""
    return unless_bad(lambda: checked(item.entry.path, _scan(store, request, item)), request.on_error)


def _scan(store: Store, request: ScanRequest, item: ScanItem) -> FileScan:
    if item.entry.stat.size == 0:
        raise empty(item.entry.path)
    match request.file_format:
        case FileFormat.PARQUET:
            return scan_parquet(store, item, request)
        case FileFormat.ORC:
            return scan_orc(store, item, request)
        case FileFormat.ARROW:
            return scan_arrow(store, item, request)
        case FileFormat.CSV | FileFormat.JSON:
            return scan_text(store, item, request)
        case _:
            assert_never(request.file_format)


@contextmanager
def scanned(
    store: Store, request: ScanRequest, items: Iterable[ScanItem], executor: Executor | None
) -> Iterator[Iterator[FileScan | BadFile]]:
    """The scans of the items in their order, made in the executor or, without one, in threads that end here."""
    threads = min(available_cpus(), _MOST_LOCAL_THREADS) if store.is_local else REMOTE_THREADS
    # `map_quick` is for short work: not for remote stores, counting lines, or an executor that the user passed.
    map_scans = (
        map_in_order if executor is not None or is_text(request.file_format) or not store.is_local else map_quick
    )
    pool: AbstractContextManager[Executor] = (
        threads_for(threads, "tdu-scan") if executor is None else nullcontext(executor)
    )
    with pool as runs:
        yield map_scans(partial(scan_file, store, request), items, runs, 4 * threads)
