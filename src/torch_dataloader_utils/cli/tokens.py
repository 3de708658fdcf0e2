"""`tdu tokens`: builds, merges and counts token corpora."""

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torch_dataloader_utils._core.paths import redact
from torch_dataloader_utils.cli.options import (
    catalog_option,
    catalog_properties_option,
    data_options,
    json_option,
    storage_option,
)
from torch_dataloader_utils.cli.output import emit_json, print_facts
from torch_dataloader_utils.cli.process_pool import continued_later, process_pool
from torch_dataloader_utils.cli.source import TABLE_FORMATS, DataSource, catalog_properties, find_source, parse_pairs
from torch_dataloader_utils.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from torch_dataloader_utils.megatron.corpora import CorpusReport

_SOURCE_OPTIONS = ("file_format", "filter_text", "catalog", "catalog_options", "snapshot_id", "storage")

_GOES_ON = "Finished parts stay; the same command continues with them."

_EXAMPLES = """\b
Examples:
  tdu tokens build shards/ corpus --column tokens --vocabulary 50257
  tdu tokens build "text/*.parquet" corpus --column text --tokenizer tokenizer.json --eod 0 --workers 8
  tdu tokens build db.documents s3://bucket/corpus --catalog prod --column tokens

Writes corpus.bin and corpus.idx. After a failure, the same command continues with the finished parts. A source may be
a table; name an Iceberg table as in its --catalog, or by its directory.
"""


@click.group("tokens", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Build, merge and count token corpora in the .bin/.idx format."""


@command.command("build", epilog=_EXAMPLES)
@click.argument("sources", nargs=-1, required=True)
@click.argument("output_prefix")
@click.option("--column", required=True, help="Lists of integers, or text with --tokenizer.")
@click.option("--tokenizer", metavar="FILE", help="A tokenizer.json of the tokenizers package.")
@click.option("--eod", type=int, help="Id put at the end of each document.")
@click.option("--vocabulary", "vocabulary_size", type=int, help="Ids must be below it; also chooses the dtype.")
@click.option("--dtype", help="Type of tokens on disk, such as uint16; overrides --vocabulary.")
@click.option("--skip-nulls", "skip_nulls", is_flag=True, help="Leave out null rows, and count them.")
@click.option(
    "--outputs", "output_count", type=click.IntRange(min=1), default=1, show_default=True, help="Corpora to write."
)
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["parquet", "orc", *TABLE_FORMATS]),
    help="Format, if names have no ending.",
)
@click.option("--filter", "filter_text", metavar="TEXT", help="For tables: read only these rows.")
@catalog_option
@catalog_properties_option
@click.option("--snapshot", "snapshot_id", type=int, metavar="ID", help="Snapshot or version of a table.")
@storage_option
@click.option(
    "--output-option",
    "output_storage",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the output's storage client, if different.",
)
@click.option("--overwrite", "overwrite", is_flag=True, help="Replace existing corpora.")
@json_option
def build(
    sources: tuple[str, ...],
    output_prefix: str,
    tokenizer: str | None,
    workers: int,
    output_storage: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Write a column of token lists, or of text, to OUTPUT_PREFIX.bin and .idx."""
    from torch_dataloader_utils.megatron.corpora import build_corpus
    from torch_dataloader_utils.samples import TokenizerFile

    file_format = options["file_format"]
    source = _source(sources, {name: options.pop(name) for name in _SOURCE_OPTIONS})
    with continued_later(_GOES_ON), ExitStack() as stack:
        report = build_corpus(
            source.dataset() if source.is_table else list(sources),
            output_prefix,
            tokenizer=None if tokenizer is None else TokenizerFile(tokenizer),
            executor=stack.enter_context(process_pool(workers)) if workers > 1 else None,
            file_format=None if source.is_table else file_format,
            storage_options=dict(source.storage) or None,
            output_options=parse_pairs(output_storage, "--output-option") or None,
            on_progress=_progress(),
            **options,
        )
    report = replace(report, prefixes=tuple(map(redact, report.prefixes)))
    if as_json:
        emit_json(asdict(report))
    else:
        _print(report)


def _source(sources: tuple[str, ...], options: Mapping[str, Any]) -> DataSource:
    """Return the source named by the options of `_SOURCE_OPTIONS`.

    Raises:
        ConfigError: a filter or a snapshot is passed for files.
    """
    source = find_source(
        paths=sources,
        format=options["file_format"] or "auto",
        filter_text=options["filter_text"],
        storage=parse_pairs(options["storage"], "--option"),
        catalog=catalog_properties(options["catalog"], options["catalog_options"]),
        snapshot_id=options["snapshot_id"],
    )
    if not source.is_table and (source.filter_text is not None or source.snapshot_id is not None):
        raise ConfigError("--filter and --snapshot are for tables here. Name a table, or leave both options out.")
    return source


def _print(report: "CorpusReport") -> None:
    print_facts(
        [
            ("wrote", ", ".join(report.prefixes)),
            ("documents", f"{report.document_count:,}"),
            ("tokens", f"{report.token_count:,}"),
            ("left out", f"{report.null_documents:,} null, {report.empty_documents:,} empty documents"),
            ("parts", f"{report.reused_parts:,} reused from an earlier run"),
        ]
    )


_WARM_EXAMPLES = """\b
Examples:
  tdu tokens warm text/ --columns text --tokenizer tokenizer.json
  tdu tokens warm chats/ --format jsonl --columns messages --tokenizer my-model/ --cache /nvme --max-bytes 500GiB
"""


@command.command("warm", epilog=_WARM_EXAMPLES)
@data_options
@click.option("--tokenizer", required=True, metavar="PATH", help="A tokenizer.json, or a directory of transformers.")
@click.option("--cache", "directory", metavar="DIR", help="Directory of the HostCache of the jobs, if they have one.")
@click.option("--max-bytes", metavar="SIZE", help="Limit of that HostCache, such as 500GiB.")
@json_option
def warm(source: DataSource, tokenizer: str, directory: str | None, max_bytes: str | None, as_json: bool) -> None:
    """Tokenize a column of text (--columns) now, and keep the tokens on this host.

    Jobs that pack the column with the same tokenizer read these tokens, for any length of samples and in all epochs.
    """
    from torch_dataloader_utils import HostCache, RemoteOptions, pack_tokens
    from torch_dataloader_utils.cache.kept_values import VARIABLE, token_cache
    from torch_dataloader_utils.stream.loader import TableDataLoader

    if source.columns is None or len(source.columns) != 1:
        raise ConfigError("Name the column of text: --columns NAME.")
    if directory is None and token_cache() is None:
        raise ConfigError(f"{VARIABLE} is off, so that nothing is kept: name a directory, or pass --cache.")
    options = {}
    if directory is not None:
        if max_bytes is None:
            raise ConfigError("--cache needs the limit of the HostCache of the jobs: pass --max-bytes.")
        options["remote"] = RemoteOptions(cache=HostCache(directory, max_bytes=max_bytes))
    # One pass over samples of any length reads all text.
    pack = pack_tokens(source.columns[0], 1024, tokenizer=_tokenizer(tokenizer), fields=("cu_seqlens",))
    loader = TableDataLoader(source.dataset(source.inventory(), columns=None, pack=pack, **options), num_workers=0)
    for _ in loader:
        pass
    events = loader.metrics().cache_events
    facts = {"samples": loader.plan.inventory.num_rows, "kept": events["hits"], "not_kept": events["misses"]}
    if as_json:
        emit_json(facts)
        return
    print_facts([("row groups kept", f"{facts['kept']:,}"), ("not kept, for lack of room", f"{facts['not_kept']:,}")])


def _tokenizer(path: str) -> Any:
    if not Path(path).is_dir():
        return path
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingDependencyError(
            "A directory of a tokenizer needs transformers: pip install transformers"
        ) from error
    return AutoTokenizer.from_pretrained(path, local_files_only=True)


@command.command("merge")
@click.argument("prefixes", nargs=-1, required=True)
@click.argument("output_prefix")
@click.option("--multimodal", is_flag=True, help="Keep the mode of each sequence.")
@click.option("--overwrite", "overwrite", is_flag=True, help="Replace an existing corpus.")
@json_option
def merge(prefixes: tuple[str, ...], output_prefix: str, multimodal: bool, overwrite: bool, as_json: bool) -> None:
    """Concatenate corpora to OUTPUT_PREFIX.

    A directory stands for all its corpora, sorted by name, except OUTPUT_PREFIX itself.
    """
    from torch_dataloader_utils.megatron.corpora import IndexedDataset, merge_corpora

    if not overwrite and IndexedDataset.exists(output_prefix):
        raise ConfigError(f"The corpus {output_prefix} exists. Pass --overwrite to replace it.")
    named = [each for prefix in prefixes for each in _corpora(prefix, output_prefix)]
    merge_corpora(named, output_prefix, multimodal=multimodal)
    if as_json:
        emit_json({"prefix": output_prefix, "merged": named})
    else:
        print_facts([("wrote", output_prefix), ("from", f"{len(named):,} corpora")])


def _corpora(prefix: str, output_prefix: str) -> list[str]:
    """Return the corpora of an argument of `merge`.

    The output of an earlier run is left out of a directory: its documents would be repeated.
    """
    from torch_dataloader_utils.megatron.corpora import IndexedDataset, find_corpora

    # A directory with the name of a corpus may hold indices of data sets over the corpus.
    if not Path(prefix).is_dir() or IndexedDataset.exists(prefix):
        return [prefix]
    output = Path(output_prefix).resolve()
    return [each for each in find_corpora(prefix) if Path(each).resolve() != output]


@command.command("sequences")
@click.argument("prefixes", nargs=-1, required=True)
@click.argument("output")
@storage_option
@json_option
def sequences(prefixes: tuple[str, ...], output: str, storage: tuple[str, ...], as_json: bool) -> None:
    """Write the counts of all corpora to one JSON file, so that jobs open no corpus before its first sample."""
    from torch_dataloader_utils.megatron.corpora import write_sequences

    write_sequences(prefixes, output, storage_options=parse_pairs(storage, "--option"))
    count = len(set(prefixes))
    if as_json:
        emit_json({"path": output, "num_corpora": count})
    else:
        print_facts([("wrote", output), ("corpora", f"{count:,}")])


def _progress() -> Callable[[int, int, int], None] | None:
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int, tokens: int) -> None:
        click.echo(f"\r{done:,} of {total:,} parts, {tokens:,} tokens", nl=done == total, err=True)

    return show
