"""Build corpora from a column: plan parts, build the parts on any executor, join the parts in order."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._arrow.documents import Documents, is_integer_list, list_documents, plain_type, to_plain
from torch_dataloader_utils._core.arguments import (
    check_executor,
    check_flag,
    check_function,
    check_integer,
    parse_bytes,
)
from torch_dataloader_utils._core.paths import check_path
from torch_dataloader_utils._runtime.threads import Executor
from torch_dataloader_utils._store import Credentials, RemoteOptions, Secret, StoreAccess, redact
from torch_dataloader_utils.errors import (
    ConfigError,
    ConfigTypeError,
    DataError,
    FileChangedError,
    NoDataError,
    NullValueError,
    SchemaError,
)
from torch_dataloader_utils.megatron.corpora.builder import IndexedDatasetBuilder
from torch_dataloader_utils.megatron.corpora.corpus_build.part_sources import SourceFormat, Sources, plan_parts
from torch_dataloader_utils.megatron.corpora.corpus_build.part_store import PartReceipt, PartStore, open_parts
from torch_dataloader_utils.megatron.corpora.corpus_build.parts import (
    CorpusOptions,
    CorpusPart,
    digest_part,
    divide_parts,
)
from torch_dataloader_utils.megatron.corpora.corpus_files import bin_path, index_path
from torch_dataloader_utils.megatron.corpora.index_format import DTYPES, dtype_code, select_dtype
from torch_dataloader_utils.samples.tokenizers import Tokenizer, tokenize, tokenizer_version

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusReport:
    """Report of the built corpora.

    Attributes:
        prefixes: prefix of each corpus, in order.
        document_count: number of documents in all corpora.
        token_count: number of tokens in all corpora.
        null_documents: number of null rows, left out.
        empty_documents: number of rows without tokens, left out.
        reused_parts: number of parts that an earlier call had finished.
    """

    prefixes: tuple[str, ...]
    document_count: int
    token_count: int
    null_documents: int
    empty_documents: int
    reused_parts: int


# Called with the number of parts done, of all parts, and of tokens so far.
OnProgress = Callable[[int, int, int], None]


def build_corpus(
    sources: Sources,
    output_prefix: str | Path,
    *,
    column: str,
    tokenizer: Tokenizer | None = None,
    eod: int | None = None,
    vocabulary_size: int | None = None,
    dtype: object = None,
    skip_nulls: bool = False,
    output_count: int = 1,
    part_bytes: int | str = "256MiB",
    executor: Executor | None = None,
    on_progress: OnProgress | None = None,
    file_format: SourceFormat | None = None,
    storage_options: Mapping[str, Any] | Secret | StoreAccess | None = None,
    credentials: Credentials | None = None,
    remote: RemoteOptions | None = None,
    output_options: Mapping[str, Any] | Secret | StoreAccess | None = None,
    overwrite: bool = False,
) -> CorpusReport:
    """Turn a column of token lists, or of text, into one corpus or several.

    Every row is a document of one sequence. Documents keep the order of files and rows, whatever the executor does.
    Rows without tokens are left out and counted. Parts are kept in `<output_prefix>.parts` until all parts are joined:
    after a failure the same call goes on with the finished parts. A corpus appears under its name when it is complete.

    Args:
        sources: Parquet and ORC files, patterns or directories, local or remote, each of one format and one schema; or
            a data set, for example IcebergDataset(table, catalog). A data set gives its rows of all ranks, after its
            deletes and its `filters`.
        output_prefix: path or URL of the corpus, without an ending; not in a directory of sources. A remote corpus is
            uploaded part by part, and exists once its .idx exists.
        column: name of a column of integer lists, or of text with a tokenizer.
        tokenizer: function from a list of texts to their token lists; picklable if the executor needs it. Its
            `fingerprint`, or the name of a function of a module and the file of the module, decides whether old parts
            can be reused. With any other tokenizer (a lambda, a partial, an object) nothing is reused after a failure.
        eod: id appended to each document.
        vocabulary_size: number that all ids must be below; also selects the dtype, see `select_dtype`.
        dtype: type of the tokens on disk; overrides the dtype of the vocabulary.
        skip_nulls: whether null rows are left out and counted. Otherwise a null row raises.
        output_count: number of corpora. 1 writes `<output_prefix>`; n > 1 writes `<output_prefix>-00000-of-0000n` and
            so on.
        part_bytes: number of unpacked bytes of one task, an int or text such as "64MiB".
        executor: executor of the tasks; None runs the tasks here, one by one.
        on_progress: function called with (parts done, parts in all, tokens so far).
        file_format: "parquet" or "orc", for files without the ending of a format.
        storage_options: options of the storage client, for the sources (a data set has its own options) and for a
            remote output.
        credentials: function that returns storage options with credentials, called again when the credentials expire.
            The function travels to the executor's workers; its results do not.
        remote: how remote files are read and written: RemoteOptions(backend, retry, coalesce, connections).
        output_options: options of the storage client for a remote output, in place of `storage_options` and
            `credentials`.
        overwrite: whether existing corpora are replaced.

    Raises:
        NoDataError: no file, or no row in any file.
        ConfigError: corpora that exist or would lie among their sources, more outputs than parts, an unknown column, a
            data set that does not give stored rows or is a contiguous shard, an eod outside the vocabulary, or an
            argument of another type or out of range.
        SchemaError, NullValueError, DataError, CorruptFileError: the data does not fit; the message names file and row
            group.
        FileChangedError: a source changed after it was planned, or another process builds the same corpus and took
            parts away.
        StoreError: a store failed, after retries. OSError: a local disk is full or failed.
    """
    output_prefix = check_path("output_prefix", output_prefix)
    _check_prefix(output_prefix)
    _check_column(column)
    check_executor(executor)
    check_function("on_progress", on_progress)
    check_function("tokenizer", tokenizer, "TokenizerFile(path), or a function of a list of texts")
    part_bytes = parse_bytes("part_bytes", part_bytes, least=1)
    access = StoreAccess.of(storage_options, credentials, remote)
    store = open_parts(
        output_prefix, access if output_options is None else StoreAccess.of(output_options, remote=remote)
    )
    options = CorpusOptions(
        column=column,
        dtype=DTYPES[dtype_code(select_dtype(vocabulary_size) if dtype is None else dtype)].name,
        tokenizer=tokenizer,
        eod=eod,
        vocabulary_size=vocabulary_size,
        skip_nulls=skip_nulls,
    )
    outputs = _name_outputs(output_prefix, output_count)
    existing = () if check_flag("overwrite", overwrite) else _find_existing(outputs, store)
    parts = plan_parts(sources, column, part_bytes, file_format, access, output_prefix=output_prefix)
    _check_parts(parts, outputs)
    if len(parts) > 1 and tokenizer is not None and tokenizer_version(tokenizer) is None:
        _log.warning(
            "The tokenizer %r cannot be identified in another run, which would build all %d parts again. To continue "
            "after a failure, define it as a function of a module, or set its attribute fingerprint to a text.",
            tokenizer,
            len(parts),
        )
    job = _Job.of(parts, options, store)
    _check_resumes(existing, job)
    try:
        return _build(job, outputs, executor, on_progress)
    except (FileChangedError, NoDataError):
        if not overwrite:
            _remove_if_published(outputs, store)
        raise


def _check_prefix(output_prefix: str) -> None:
    # pathlib turns an empty string into ".".
    if output_prefix in ("", ".") or output_prefix.endswith("/"):
        raise ConfigError(f"output_prefix={output_prefix!r} has no file name: give one, such as 'directory/corpus'.")


def _check_column(column: object) -> None:
    if not isinstance(column, str):
        raise ConfigTypeError(f"column={column!r}: pass the name of a column of token lists or text.")


def _check_parts(parts: Sequence[CorpusPart], outputs: Sequence[str]) -> None:
    if not parts:
        raise NoDataError(f"The sources of {redact(outputs[0])} have no rows.")
    if len(parts) < len(outputs):
        raise ConfigError(f"{len(parts)} parts do not make {len(outputs)} corpora. Ask for fewer, or lower part_bytes.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Job:
    """Parts of all outputs in order, the key of each part, and the store of the parts."""

    parts: tuple[CorpusPart, ...]
    keys: tuple[str, ...]
    options: CorpusOptions
    store: PartStore

    @classmethod
    def of(cls, parts: Sequence[CorpusPart], options: CorpusOptions, store: PartStore) -> "_Job":
        """Return the job that builds these parts."""
        keys = tuple(digest_part(part, options) for part in parts)
        return cls(parts=tuple(parts), keys=keys, options=options, store=store)


def _check_resumes(existing: Sequence[str], job: _Job) -> None:
    """Raise ConfigError if another build made the existing corpora.

    If this build made the existing corpora and failed to join the next corpus, all its parts still exist.
    """
    if existing and len(job.store.find(job.keys)) < len(job.keys):
        raise _exists(existing[0])


def _remove_if_published(outputs: Sequence[str], store: PartStore) -> None:
    """Remove the parts if another build has published these corpora meanwhile: no later call would reuse the parts."""
    with suppress(OSError):
        if all(store.exists(output) for output in outputs):
            store.remove()


def _build(
    job: _Job, outputs: Sequence[str], executor: Executor | None, on_progress: OnProgress | None
) -> CorpusReport:
    job.store.prepare()
    try:
        receipts, reused_parts = _build_parts(job, executor, on_progress)
    except BaseException:
        job.store.remove_if_empty()
        raise
    keys = iter(job.keys)
    for output, own_parts in zip(outputs, divide_parts(job.parts, len(outputs)), strict=True):
        job.store.join(list(islice(keys, len(own_parts))), output)
    job.store.remove()
    return CorpusReport(
        prefixes=tuple(outputs),
        document_count=sum(receipt.document_count for receipt in receipts),
        token_count=sum(receipt.token_count for receipt in receipts),
        null_documents=sum(receipt.null_documents for receipt in receipts),
        empty_documents=sum(receipt.empty_documents for receipt in receipts),
        reused_parts=reused_parts,
    )


def _name_outputs(prefix: str, output_count: int) -> list[str]:
    check_integer("output_count", output_count, least=1)
    names = [f"{prefix}-{number:05d}-of-{output_count:05d}" for number in range(output_count)]
    return names if output_count > 1 else [prefix]


def _find_existing(outputs: Sequence[str], store: PartStore) -> tuple[str, ...]:
    """Return the outputs that exist.

    Raises:
        ConfigError: all outputs exist. Their parts, no longer needed, are removed first.
    """
    existing = tuple(output for output in outputs if store.exists(output))
    if len(existing) == len(outputs):
        with suppress(OSError):  # StoreError too: the caller has to learn that the corpora exist
            store.remove_joined(existing)
        raise _exists(existing[0])
    return existing


def _exists(output: str) -> ConfigError:
    return ConfigError(f"The corpus {redact(output)} exists. Pass overwrite=True to replace it.")


def _build_parts(job: _Job, executor: Executor | None, on_progress: OnProgress | None) -> tuple[list[PartReceipt], int]:
    """Build the missing parts. Return the receipts of all parts, and the number of parts that existed before."""
    options, store = job.options, job.store
    receipts = store.find(job.keys)
    reused_parts = len(receipts)
    tokens = sum(receipt.token_count for receipt in receipts.values())
    missing = [(key, part) for key, part in zip(job.keys, job.parts, strict=True) if key not in receipts]
    futures = [] if executor is None else [executor.submit(build_part, part, options, store) for _, part in missing]
    try:
        for place, (key, part) in enumerate(missing):
            receipts[key] = futures[place].result() if futures else build_part(part, options, store)
            tokens += receipts[key].token_count
            if on_progress is not None:
                on_progress(len(receipts), len(job.parts), tokens)
    finally:
        for future in futures:
            future.cancel()
    return [receipts[key] for key in job.keys], reused_parts


def build_part(part: CorpusPart, options: CorpusOptions, store: PartStore) -> PartReceipt:
    """Write one part as a corpus, then the receipt of the part. Executors run this function."""
    return store.write(digest_part(part, options), lambda prefix: _write_part(prefix, part, options))


def split_documents(
    column: pa.Array, tokenizer: Tokenizer | None, *, skip_nulls: bool, where: str
) -> tuple[Documents, int]:
    """Return the documents of a column of integer lists, or of text through `tokenizer`, and the number of null rows.

    Null rows are not among the documents.

    Raises:
        SchemaError: neither lists of integers, nor text with a tokenizer; or the tokenizer did not return one flat
            list of integers per text.
        NullValueError: a null token, or a null document without `skip_nulls`.
    """
    column = to_plain(column)
    null_count = column.null_count
    if null_count and not skip_nulls:
        raise NullValueError(f"{where} has {null_count} null documents. Pass skip_nulls=True to leave them out.")
    present = column.drop_null()
    if tokenizer is not None:
        return tokenize(present, tokenizer, where), null_count
    kind = plain_type(present.type)
    if not is_integer_list(kind):
        raise SchemaError(f"{where} has the type {kind}; lists of integers are needed, or text and a tokenizer.")
    return list_documents(present, where), null_count


def _write_part(prefix: str, part: CorpusPart, options: CorpusOptions) -> PartReceipt:
    null_documents = empty_documents = 0
    with IndexedDatasetBuilder(bin_path(prefix), dtype=options.dtype) as builder:
        for where, column in part.read():
            documents, nulls = split_documents(column, options.tokenizer, skip_nulls=options.skip_nulls, where=where)
            null_documents += nulls
            empty_documents += _add_documents(builder, documents, options, where)
        document_count, token_count = builder.document_count, builder.token_count
        builder.finalize(index_path(prefix))
    return PartReceipt(
        document_count=document_count,
        token_count=token_count,
        null_documents=null_documents,
        empty_documents=empty_documents,
    )


def _add_documents(builder: IndexedDatasetBuilder, documents: Documents, options: CorpusOptions, where: str) -> int:
    """Append the documents that have tokens. Return the number of empty documents."""
    tokens, limit = documents.values, options.vocabulary_size
    if limit is not None and tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) < limit:
        raise DataError(
            f"{where} has tokens from {tokens.min()} to {tokens.max()}; the vocabulary has {limit}. Pass the "
            "vocabulary_size of the tokenizer that made the tokens; its ids are 0 and up, below this size."
        )
    has_tokens = documents.lengths > 0
    offsets = np.concatenate([documents.offsets[:1], documents.offsets[1:][has_tokens]])
    try:
        builder.add_documents(tokens, offsets, options.eod)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    return int(has_tokens.size - has_tokens.sum())
