"""Scans of many files at once, in the order of the files."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from torch_dataloader_utils._core.inventory import FileFormat
from torch_dataloader_utils._runtime.parallel import map_in_order, map_quick, threads_for
from torch_dataloader_utils._runtime.threads import Executor, available_cpus
from torch_dataloader_utils._store import Store
from torch_dataloader_utils.discover.bad_files import BadFile
from torch_dataloader_utils.discover.file_scan import FileScan, ScanItem, ScanRequest
from torch_dataloader_utils.discover.formats import scan_file
from torch_dataloader_utils.discover.paths import REMOTE_THREADS

# A local footer takes 0.2 ms, mostly to decode; more threads do not help.
_MOST_LOCAL_THREADS = 8


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


def is_text(file_format: FileFormat) -> bool:
    """Whether files are text, whose rows only a read of them counts."""
    return file_format in (FileFormat.CSV, FileFormat.JSON)
