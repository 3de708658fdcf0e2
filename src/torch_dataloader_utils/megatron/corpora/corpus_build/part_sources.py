"""Plan the parts of a corpus from the sources of a user: paths of files, or a data set with deletes and filter."""

import logging
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from torch.utils.data import DataLoader

from torch_dataloader_utils._arrow.schema import decode_schema
from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._runtime.parallel import map_in_order, threads_for
from torch_dataloader_utils._store import LocalStore, StoreAccess, redact
from torch_dataloader_utils.discover.paths import DataFiles, PathLike, find_files
from torch_dataloader_utils.discover.scan import scan_listed
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, NoDataError, of_type
from torch_dataloader_utils.formats.file_scan import ScanRequest
from torch_dataloader_utils.formats.registry import format_named, named_format
from torch_dataloader_utils.megatron.corpora.corpus_build.parts import CorpusPart, cut_parts
from torch_dataloader_utils.stream.dataset import TableDataset
from torch_dataloader_utils.tables.projection import ReadSpec
from torch_dataloader_utils.tables.reader import Reader, make_reader

_log = logging.getLogger(__name__)

SourceFormat = Literal["parquet", "orc"]
Sources = PathLike | Sequence[PathLike] | TableDataset

_FORMATS: tuple[SourceFormat, ...] = ("parquet", "orc")

# Sources scanned at once; each scan uses further threads for the footers of its files.
_SCAN_THREADS = 16


def plan_parts(
    sources: Sources,
    column: str,
    part_bytes: int,
    file_format: SourceFormat | None,
    access: StoreAccess,
    *,
    output_prefix: str,
) -> list[CorpusPart]:
    """Return parts of about `part_bytes` unpacked bytes, in the order of documents. No part crosses a file.

    A data set gives its rows of all ranks, in stored order. Paths keep the given order, sorted inside a directory or
    pattern; a file that is named twice is read once.

    Raises:
        NoDataError: a path that names no file.
        ConfigTypeError: another type of sources, for example a loader or a `RowDataset`.
        ConfigError: a data set that does not give stored rows, an unknown column, a file of unknown format, or a
            corpus that would lie among the files of a source directory.
        DataError, StoreError: a file is wrong or cannot be read, see `scan_files`.
    """
    if isinstance(sources, TableDataset):
        return _plan_data_set(sources, column, part_bytes)
    named = _list_sources(sources)
    for source in named:
        _check_outside(source, output_prefix)
    return _plan_paths(named, column, part_bytes, file_format, access)


def _list_sources(sources: Any) -> list[PathLike]:
    if isinstance(sources, str | os.PathLike):
        return [sources]
    if isinstance(sources, Collection | Iterator) and not isinstance(sources, bytes):
        return list(sources)
    # No other iterable becomes a list: making the list could read a whole data set.
    has_rows = isinstance(sources, DataLoader) and isinstance(sources.dataset, TableDataset)
    data_set = "the loader's data set, loader.dataset" if has_rows else "a StructuredDataset or IcebergDataset"
    raise ConfigTypeError(f"sources is {of_type(sources)}: pass a path, a list of paths, or {data_set}.")


def _check_outside(source: PathLike, output_prefix: str) -> None:
    """Raise ConfigError if the corpus would lie among its own sources: a second call would read it as data.

    source data      data/corpus: refused      data/_built/corpus, data2/corpus: no data file of the source
    """
    if not isinstance(source, str | os.PathLike):
        return  # the scan refuses it
    directory, output = _absolute(os.fspath(source)), _absolute(output_prefix)
    if directory not in output.parents:
        return
    if not any(name.startswith((".", "_")) for name in output.relative_to(directory).parts):
        raise ConfigError(
            f"The corpus {redact(output_prefix)} would lie inside its source {redact(os.fspath(source))}: another call "
            "would read it as data. Give an output_prefix outside, or name the sources by a pattern, such as "
            "'*.parquet'."
        )


def _absolute(path: str) -> PurePath:
    local = LocalStore().local_path(path)
    return PurePosixPath(local) if "://" in local else Path(local).expanduser().resolve()


def _plan_data_set(dataset: TableDataset, column: str, part_bytes: int) -> list[CorpusPart]:
    pipeline = dataset.pipeline
    if not isinstance(pipeline.reader, Reader) or pipeline.functions:
        raise ConfigError(
            "A corpus is built from stored rows: give a data set without pack, transform and collate_fn, and change "
            "documents in the tokenizer."
        )
    if dataset.planner.options.stop_row is not None:
        raise ConfigError(
            "A corpus is built from whole row groups, and this data set is a contiguous shard, which may begin or end "
            "inside one. Give the whole data set: output_count= divides it into corpora."
        )
    spec = replace(pipeline.reader.spec, columns=(column,))
    inventory: Inventory = dataset.plan.inventory
    groups = np.flatnonzero(inventory.groups.live_rows != 0).tolist()
    # Two versions of a table share files, and two filters share row groups: the fingerprint tells both apart.
    return cut_parts(inventory, groups, make_reader(spec), inventory.fingerprint(), part_bytes)


def _plan_paths(
    named: Sequence[PathLike],
    column: str,
    part_bytes: int,
    file_format: SourceFormat | None,
    access: StoreAccess,
) -> list[CorpusPart]:
    if not named:
        raise NoDataError("There is no source to read: the list of paths is empty.")
    scan = partial(_scan, column=column, file_format=file_format, access=access)
    parts: list[CorpusPart] = []
    seen: set[str] = set()
    with threads_for(min(_SCAN_THREADS, len(named)), "tdu-sources") as pool:
        for inventory in map_in_order(scan, named, pool, 4 * _SCAN_THREADS):
            groups = _unseen_groups(inventory, seen)
            parts += cut_parts(inventory, groups, _column_reader(inventory, column, access), "", part_bytes)
    return parts


def _scan(source: PathLike, column: str, file_format: SourceFormat | None, access: StoreAccess) -> Inventory:
    """Scan one source. One inventory per source keeps the order of sources and allows a format and schema for each."""
    store, files = find_files(source, access)
    name = _find_format(source, files) if file_format is None else file_format
    try:
        return scan_listed(store, files, ScanRequest(format=format_named(name), columns=(column,)))
    except NoDataError:
        raise
    except ConfigError as error:
        # The message names the source, one of perhaps thousands, and the option by its name here.
        message = str(error).replace("pass format=", "pass file_format=")
        raise type(error)(f"{redact(os.fspath(source))}: {message}") from error


def _find_format(source: PathLike, files: DataFiles) -> SourceFormat:
    """Return the format from the ending of a source, or from the endings of its files."""
    named = _named_format(os.fspath(source))
    if named is not None:
        return named
    examples: dict[SourceFormat | None, str] = {}
    for entry in files.entries:
        examples.setdefault(_named_format(entry.path), redact(entry.path))
    if None in examples:
        raise ConfigError(
            f"{examples[None]} has no ending of Parquet or ORC files. Give file_format='parquet' or 'orc'."
        )
    first, *others = (each for each in examples if each is not None)
    if others:
        raise ConfigError(
            f"{redact(os.fspath(source))} holds files of two formats ({', '.join(examples.values())}). Name the files "
            "of each format by a pattern, such as '*.parquet'."
        )
    return first


def _named_format(path: str) -> SourceFormat | None:
    named = str(named_format(redact(path).rstrip("/")))
    return next((each for each in _FORMATS if each == named), None)


def _unseen_groups(inventory: Inventory, seen: set[str]) -> list[int]:
    """Return the row groups of files that are not in `seen`, and add the files to `seen`."""
    paths = [inventory.files.paths[file] for file in range(inventory.num_files)]
    is_new = np.array([path not in seen for path in paths], dtype=bool)
    for file in np.flatnonzero(~is_new).tolist():
        _log.warning("%s is named more than once; it is read once", redact(paths[file]))
    seen.update(paths)
    return np.flatnonzero(is_new[inventory.groups.file]).tolist()


def _column_reader(inventory: Inventory, column: str, access: StoreAccess) -> Reader:
    """Return a reader with a schema of one column: each part is sent to a worker, and schemas may be wide."""
    field = decode_schema(inventory.schema).field(column)
    schema = pa.schema([field]).serialize().to_pybytes()
    return make_reader(ReadSpec(schema=schema, columns=(column,), access=access))
