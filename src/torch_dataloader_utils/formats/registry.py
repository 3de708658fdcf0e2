"""Registry of all file formats, by name, file ending and number, and the scan of many files in order.

Another package adds a format by an entry point of group `torch_dataloader_utils.formats` that names its `Format`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from importlib.metadata import entry_points
from itertools import chain, repeat
from typing import TYPE_CHECKING

from torch_dataloader_utils._core.paths import codec_of, redact
from torch_dataloader_utils._runtime.parallel import in_batches, map_in_order, map_quick, threads_for
from torch_dataloader_utils._runtime.threads import Executor, available_cpus
from torch_dataloader_utils._store import Store
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.formats.arrow.format import ARROW
from torch_dataloader_utils.formats.bad_files import BadFile, unless_bad
from torch_dataloader_utils.formats.checks import checked
from torch_dataloader_utils.formats.errors import empty
from torch_dataloader_utils.formats.file_format import Format
from torch_dataloader_utils.formats.file_scan import FileScan, ScanItem, ScanRequest
from torch_dataloader_utils.formats.orc import ORC
from torch_dataloader_utils.formats.parquet.format import PARQUET
from torch_dataloader_utils.formats.text.format import CSV, CSV_PIPE, CSV_SEMICOLON, JSON, TSV

if TYPE_CHECKING:
    from torch_dataloader_utils.formats.file_format import ScanTogether

FORMATS = (PARQUET, ORC, CSV, JSON, ARROW, TSV, CSV_SEMICOLON, CSV_PIPE)
"""Formats of this package. A new format is one module and its name here."""

AUTO = "auto"
"""Name for `format=` where the files decide."""

OTHER_NUMBERS = frozenset(range(64, 256))
"""Numbers for formats of other packages. An inventory holds a number in a byte."""

ENTRY_POINTS = "torch_dataloader_utils.formats"

REMOTE_THREADS = 32
"""Number of concurrent requests in a scan of a remote store; each takes ten milliseconds or more, mostly waiting."""

# Number of footers that one thread requests at once. A single request takes a dozen switches of threads.
_SCANS_TOGETHER = 16

# A local footer takes 0.2 ms, mostly to decode; more threads do not help.
_MOST_LOCAL_THREADS = 8


@cache
def all_formats() -> tuple[Format, ...]:
    """Return the formats of this package, then formats of installed packages by name of their entry points.

    Raises:
        ConfigError: An entry point is not a `Format`, or takes a number or a name that another format has.
    """
    found = list(FORMATS)
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        added = entry.load()
        where = f"The entry point {entry.name} = {entry.value} of {ENTRY_POINTS}"
        if not isinstance(added, Format):
            raise ConfigError(f"{where} is {of_type(added)}: name a torch_dataloader_utils.formats.Format.")
        if added.number not in OTHER_NUMBERS:
            raise ConfigError(
                f"{where} has number {added.number}: choose one of {min(OTHER_NUMBERS)} to {max(OTHER_NUMBERS)}."
            )
        for other in found:
            if other == added or set(other.names) & set(added.names):
                raise ConfigError(
                    f"{where} ({', '.join(added.names)}, number {added.number}) has the number or a name of {other} "
                    f"({', '.join(other.names)}, number {other.number}). Uninstall one of them."
                )
        found.append(added)
    return tuple(found)


@cache
def formats_by_ending() -> Mapping[str, Format]:
    """Return the formats by the endings of their files. Of several formats with an ending, the first has it."""
    return {ending: each for each in reversed(all_formats()) for ending in each.names + each.endings}


def format_named(name: str) -> Format:
    """Return the format of this name.

    Raises:
        ConfigTypeError: The name is not a text. ConfigError: No format has this name.
    """
    by_name = {each: file_format for file_format in all_formats() for each in file_format.names}
    if not isinstance(name, str):
        # Not quoted, since storage options in the wrong place may hold secrets.
        given = of_type(name) if isinstance(name, Mapping) else repr(name)
        raise ConfigTypeError(f"format={given}: pass one of the texts {', '.join(by_name)}.")
    if name not in by_name:
        raise ConfigError(
            f"format={redact(name)!r} is unknown; choose one of {', '.join([*by_name, AUTO])}. Several paths are one "
            "list."
        )
    return by_name[name]


def format_wanted(name: str) -> Format:
    """Return the format of this name, and Parquet for "auto", until `find_format` (discover/paths.py) knows better."""
    return PARQUET if name == AUTO else format_named(name)


@cache
def format_of(number: int) -> Format:
    """Return the format of this number in an inventory.

    Raises:
        ConfigError: No format has this number.
    """
    for file_format in all_formats() if number in OTHER_NUMBERS else FORMATS:
        if file_format.number == number:
            return file_format
    raise ConfigError(
        f"No file format has number {number}. Install the package that adds it (entry points of {ENTRY_POINTS})."
    )


def format_hint(path: str, file_format: Format) -> str:
    """Return advice about `format=` if the file's ending names another format than `file_format`; else "".

    part-0.orc read as Parquet      pass format="orc"
    """
    named = named_format(path)
    if named in (None, file_format):
        return ""
    ending = _ending(path)
    return f'pass format="{ending if ending in named.names else named}"'


def format_begun(data: bytes) -> Format | None:
    """Return the format of a file that begins with these bytes; None if they are of no format."""
    return next((each for each in all_formats() if each.first_bytes and data.startswith(each.first_bytes)), None)


def named_format(path: str) -> Format | None:
    """Return the format that a file's ending names; None if it names no format. The ending of a codec is skipped."""
    return formats_by_ending().get(_ending(path))


def _ending(path: str) -> str:
    stem = path.rpartition(".")[0] if codec_of(path) else path
    return stem.lower().rpartition(".")[2]


def scan_file(store: Store, request: ScanRequest, item: ScanItem) -> FileScan | BadFile:
    """Return the checked scan of one file's metadata. May run in any thread or process."""
    return _checked_scan(request, item, partial(request.format.scan, store, item, request))


def _begun_scans(
    store: Store, request: ScanRequest, begin: "ScanTogether", items: Sequence[ScanItem]
) -> list[tuple[ScanItem, Callable[[], FileScan]]]:
    return list(zip(items, begin(store, items, request), strict=True))


def _ended_scans(
    request: ScanRequest, begun: Sequence[tuple[ScanItem, Callable[[], FileScan]]]
) -> list[FileScan | BadFile]:
    return [_checked_scan(request, item, scan) for item, scan in begun]


def _checked_scan(request: ScanRequest, item: ScanItem, scan: Callable[[], FileScan]) -> FileScan | BadFile:
    path = item.entry.path

    def check() -> FileScan:
        if item.entry.stat.size == 0:
            raise empty(path)
        return checked(path, scan())

    return unless_bad(check, request.on_error)


@contextmanager
def scanned(
    store: Store, request: ScanRequest, items: Iterable[ScanItem], executor: Executor | None
) -> Iterator[Iterator[FileScan | BadFile]]:
    """Scan the items in order, in the executor. Without an executor, threads are started and end here."""
    begin = None if store.is_local or executor is not None else request.format.scan_together
    if begin is not None:
        with _scanned_together(store, request, items, begin) as scans:
            yield scans
        return
    threads = min(available_cpus(), _MOST_LOCAL_THREADS) if store.is_local else REMOTE_THREADS
    # `map_quick` is for short work: not for remote stores, counting lines, or an executor that the user passed.
    map_scans = map_in_order if executor is not None or request.format.is_text or not store.is_local else map_quick
    pool: AbstractContextManager[Executor] = (
        threads_for(threads, "tdu-scan") if executor is None else nullcontext(executor)
    )
    with pool as runs:
        yield map_scans(partial(scan_file, store, request), items, runs, 4 * threads)


@contextmanager
def _scanned_together(
    store: Store, request: ScanRequest, items: Iterable[ScanItem], begin: "ScanTogether"
) -> Iterator[Iterator[FileScan | BadFile]]:
    """Scan the items in order, many at a time: some threads request footers, and others decode them."""
    requesting, decoding = REMOTE_THREADS // _SCANS_TOGETHER, min(available_cpus(), _MOST_LOCAL_THREADS)
    batches = in_batches(items, repeat(_SCANS_TOGETHER))
    with threads_for(requesting, "tdu-footers") as requests, threads_for(decoding, "tdu-scan") as runs:
        begun = map_in_order(partial(_begun_scans, store, request, begin), batches, requests, 2 * requesting)
        yield chain.from_iterable(map_in_order(partial(_ended_scans, request), begun, runs, 2 * decoding))
