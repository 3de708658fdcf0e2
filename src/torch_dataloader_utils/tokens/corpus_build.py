"""Corpora from columns: a plan of parts, parts built by any executor, parts joined in order."""

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from torch_dataloader_utils.errors import ConfigError, DataError, FileChangedError, NoDataError
from torch_dataloader_utils.tokens.builder import IndexedDatasetBuilder, merge_corpora
from torch_dataloader_utils.tokens.corpus_plan import (
    PART_KEY_LETTERS,
    CorpusOptions,
    Part,
    divide_parts,
    identify_source,
    list_sources,
    plan_parts,
)
from torch_dataloader_utils.tokens.documents import DataFile, DocumentBatch, FileFormat, Tokenizer, split_documents
from torch_dataloader_utils.tokens.dtypes import DTYPES, dtype_code, select_dtype
from torch_dataloader_utils.tokens.indexed_dataset import IndexedDataset, bin_path, index_path
from torch_dataloader_utils.tokens.publish import write_atomically
from torch_dataloader_utils.tokens.ranges import is_remote

_DEFAULT_PART_BYTES = 256 << 20


class Future(Protocol):
    """What `submit` gives."""

    def result(self) -> Any:
        """Wait, and give the value or raise the error."""

    def cancel(self) -> Any:
        """Do not start it, if it has not started."""


class Executor(Protocol):
    """Anything that runs a function elsewhere: `concurrent.futures`, mpi4py.futures, a dask client."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future:
        """Run function(*arguments), by and by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusReport:
    """What was built: `prefixes` in order, and what they hold and left out."""

    prefixes: tuple[str, ...]
    document_count: int
    token_count: int
    null_documents: int
    empty_documents: int
    reused_parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReceipt:
    """Written beside a part when it is complete, so that another run can take it as it is."""

    document_count: int
    token_count: int
    null_documents: int
    empty_documents: int


# Parts done, parts in all, tokens so far.
Progress = Callable[[int, int, int], None]


def build_corpus(
    sources: str | Path | Sequence[str | Path],
    output_prefix: str | Path,
    *,
    column: str,
    tokenizer: Tokenizer | None = None,
    eod: int | None = None,
    vocabulary_size: int | None = None,
    dtype: object = None,
    skips_nulls: bool = False,
    output_count: int = 1,
    part_bytes: int = _DEFAULT_PART_BYTES,
    executor: Executor | None = None,
    on_progress: Progress | None = None,
    file_format: FileFormat | None = None,
    storage_options: dict[str, Any] | None = None,
    overwrites: bool = False,
) -> CorpusReport:
    """Turn a column of token lists, or of text, into one corpus or several.

    Every row is a document of one sequence. Documents keep the order of files and rows, whatever the executor does.
    Rows without tokens are left out and counted. Parts are kept in `<output_prefix>.parts` until all is joined: after
    a failure the same call goes on with what is there. Corpora appear under their names when they are complete.

    Args:
        sources: Parquet and ORC files, globs or directories, local or remote.
        output_prefix: local path of the corpus, without an ending.
        column: lists of integers, or text when a tokenizer is given.
        tokenizer: gives the token lists of a list of texts; picklable when the executor needs it. Its name (or its
            `fingerprint`) tells whether old parts can be used: remove the parts after changing its body.
        eod: id put at the end of each document.
        vocabulary_size: ids must be below it; also selects the dtype, see `select_dtype`.
        dtype: type of the tokens on disk; overrides the vocabulary's.
        skips_nulls: leave null rows out and count them, instead of raising.
        output_count: 1 writes `<output_prefix>`; n > 1 writes `<output_prefix>-00000-of-0000n` and so on.
        part_bytes: unpacked bytes of one task.
        executor: runs the tasks; None runs them here, one by one.
        on_progress: called with (parts done, parts in all, tokens so far).
        file_format: "parquet" or "orc" for files whose ending says nothing.
        storage_options: for fsspec.
        overwrites: replace corpora that are there.

    Raises:
        NoDataError: no file, or no row in any.
        ConfigError: a remote output, corpora that exist, or more outputs than parts.
        SchemaError, NullValueError, DataError, CorruptFileError: the data does not fit; names file and group.
        FileChangedError: a source changed after it was planned.
    """
    prefix = str(output_prefix)
    chosen = DTYPES[dtype_code(select_dtype(vocabulary_size) if dtype is None else dtype)]
    options = CorpusOptions(
        column=column,
        dtype=chosen.name,
        tokenizer=tokenizer,
        eod=eod,
        vocabulary_size=vocabulary_size,
        skips_nulls=skips_nulls,
    )
    outputs = _name_outputs(prefix, output_count, overwrites=overwrites)
    parts = plan_parts(list_sources(sources, file_format, storage_options), part_bytes, storage_options)
    if not parts:
        raise NoDataError(f"The sources of {prefix} have no rows.")
    if len(parts) < output_count:
        raise ConfigError(f"{len(parts)} parts do not make {output_count} corpora. Ask for fewer, or lower part_bytes.")
    directory = Path(f"{prefix}.parts")
    directory.mkdir(parents=True, exist_ok=True)
    receipts, reused_parts = _build_parts(parts, options, directory, executor, on_progress, storage_options)
    for output, own_parts in zip(outputs, divide_parts(parts, output_count), strict=True):
        merge_corpora([str(directory / part.key(options)) for part in own_parts], output)
    _remove_parts(directory)
    return CorpusReport(
        prefixes=tuple(outputs),
        document_count=sum(receipt.document_count for receipt in receipts),
        token_count=sum(receipt.token_count for receipt in receipts),
        null_documents=sum(receipt.null_documents for receipt in receipts),
        empty_documents=sum(receipt.empty_documents for receipt in receipts),
        reused_parts=reused_parts,
    )


def _name_outputs(prefix: str, output_count: int, *, overwrites: bool) -> list[str]:
    if is_remote(prefix):
        raise ConfigError(f"A corpus is written to a local path, and copied from there; {prefix} is remote.")
    if output_count < 1:
        raise ConfigError(f"output_count must be at least 1; {output_count} was given.")
    names = [f"{prefix}-{number:05d}-of-{output_count:05d}" for number in range(output_count)]
    outputs = names if output_count > 1 else [prefix]
    for output in outputs:
        if not overwrites and IndexedDataset.exists(output):
            raise ConfigError(f"The corpus {output} exists. Pass overwrites=True to replace it.")
    return outputs


def _build_parts(
    parts: Sequence[Part],
    options: CorpusOptions,
    directory: Path,
    executor: Executor | None,
    on_progress: Progress | None,
    storage_options: dict[str, Any] | None,
) -> tuple[list[PartReceipt], int]:
    """The receipts of all parts, and how many were there before."""
    known = {number: receipt for number, part in enumerate(parts) if (receipt := _find(part, options, directory))}
    missing = [number for number in range(len(parts)) if number not in known]
    tokens = sum(receipt.token_count for receipt in known.values())
    reused_parts = len(known)
    arguments = [(parts[number], options, directory, storage_options) for number in missing]
    futures = [] if executor is None else [executor.submit(build_part, *each) for each in arguments]
    try:
        for place, number in enumerate(missing):
            known[number] = futures[place].result() if futures else build_part(*arguments[place])
            tokens += known[number].token_count
            if on_progress is not None:
                on_progress(len(known), len(parts), tokens)
    finally:
        for future in futures:
            future.cancel()
    return [known[number] for number in range(len(parts))], reused_parts


def _remove_parts(directory: Path) -> None:
    """Remove what builds of this corpus have written, and the directory unless it holds something else."""
    for path in directory.iterdir():
        if len(path.stem) == PART_KEY_LETTERS and path.suffix in (".bin", ".idx", ".json"):
            path.unlink()
    with contextlib.suppress(OSError):
        directory.rmdir()


def _receipt_path(part: Part, options: CorpusOptions, directory: Path) -> Path:
    return directory / f"{part.key(options)}.json"


def _find(part: Part, options: CorpusOptions, directory: Path) -> PartReceipt | None:
    path = _receipt_path(part, options, directory)
    return PartReceipt(**json.loads(path.read_bytes())) if path.exists() else None


def build_part(
    part: Part, options: CorpusOptions, directory: Path, storage_options: dict[str, Any] | None
) -> PartReceipt:
    """Write one part as a corpus, then its receipt; the function that executors run."""
    if identify_source(part.file.path, storage_options) != part.file.identity:
        raise FileChangedError(f"{part.file.path} changed while the corpus was built. Start again.")
    prefix = str(directory / part.key(options))
    null_documents = empty_documents = 0
    source = DataFile(part.file.path, part.file.format, storage_options)
    try:
        with IndexedDatasetBuilder(bin_path(prefix), dtype=options.dtype) as builder:
            for group in range(part.start_group, part.stop_group):
                where = f"{part.file.path} group {group} column {options.column!r}"
                column = source.read_column(group, options.column)
                batch = split_documents(column, options.tokenizer, skips_nulls=options.skips_nulls, where=where)
                null_documents += batch.null_count
                empty_documents += _add_batch(builder, batch, options, where)
            counts = (builder.document_count, builder.token_count)
            builder.finalize(index_path(prefix))
    finally:
        source.close()
    receipt = PartReceipt(
        document_count=counts[0], token_count=counts[1], null_documents=null_documents, empty_documents=empty_documents
    )
    with write_atomically(_receipt_path(part, options, directory)) as file:
        file.write(json.dumps(asdict(receipt)).encode())
    return receipt


def _add_batch(builder: IndexedDatasetBuilder, batch: DocumentBatch, options: CorpusOptions, where: str) -> int:
    """Append the documents that have tokens; gives the number of those that have none."""
    tokens, limit = batch.tokens, options.vocabulary_size
    if limit is not None and tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) < limit:
        raise DataError(f"{where} has tokens from {tokens.min()} to {tokens.max()}; the vocabulary has {limit}.")
    has_tokens = np.diff(batch.offsets) > 0
    offsets = np.concatenate([batch.offsets[:1], batch.offsets[1:][has_tokens]])
    try:
        builder.add_documents(tokens, offsets, options.eod)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    return int(has_tokens.size - has_tokens.sum())
