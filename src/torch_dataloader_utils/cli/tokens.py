"""`tdu tokens`: token corpora from the shell."""

import multiprocessing
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from torch_dataloader_utils._core.paths import redact
from torch_dataloader_utils._runtime.processes import end_with_parent, held
from torch_dataloader_utils.cli.app import DATA_PROBLEM, USAGE, Failure, disk_is_full, of_interrupt, of_os_error
from torch_dataloader_utils.cli.options import json_option
from torch_dataloader_utils.cli.output import emit_json, print_facts
from torch_dataloader_utils.cli.source import TABLE_FORMATS, DataSource, catalog_properties, parse_pairs
from torch_dataloader_utils.errors import ConfigError, NullValueError

if TYPE_CHECKING:
    from torch_dataloader_utils.megatron.corpora import CorpusReport


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# A terminal sends the one to the whole group of processes, and supervisors (systemd, timeout) the other. The parent
# ends its workers; a traceback of each would say nothing, and a pool whose workers die first adds one of its own.
_SENT_TO_ALL = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """An executor of spawned processes.

    An error of the caller waits for the tasks that run, whose work is then not lost; KeyboardInterrupt ends them at
    once. Where this process is killed, they end by themselves. Their temporary files go with them.
    """
    with tempfile.TemporaryDirectory(prefix="tdu-workers-", ignore_cleanup_errors=True) as directory:
        pool = _SpawnedPool(workers, directory)
        # Twice, for whoever presses Ctrl-C while the pool waits for its tasks.
        with _ended_on_interrupt(pool), pool, _ended_on_interrupt(pool):
            yield pool


class _Worker(SpawnProcess):
    def terminate(self) -> None:
        """So the pool ends the others when one has died; by SIGKILL, as SIGTERM is blocked in them."""
        self.kill()


class _WorkerContext(SpawnContext):
    Process = _Worker


class _SpawnedPool(ProcessPoolExecutor):
    """Spawned, because Arrow's threads do not survive a fork."""

    def __init__(self, workers: int, directory: str) -> None:
        super().__init__(workers, mp_context=_WorkerContext(), initializer=_begin, initargs=(directory,))

    def submit(
        self, fn: Callable[Parameters, Result], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Future[Result]:
        """See Executor. Processes are started here: they inherit what is blocked, from their first instruction.

        This process is interrupted only once they know what to do: one that does not fails with a traceback.
        """
        with held(*_SENT_TO_ALL) as deliver:
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SENT_TO_ALL)
            try:
                future = super().submit(fn, *args, **kwargs)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        deliver()
        return future


def _begin(directory: str) -> None:
    """directory: for temporary files."""
    tempfile.tempdir = directory
    end_with_parent(directory)


@contextmanager
def _ended_on_interrupt(pool: ProcessPoolExecutor) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        # First, so that the pool forgets what the caller has cancelled: its thread would fail where workers have died,
        # with a traceback.
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.kill()
            process.join()  # what it writes until then would stay in the directory
        raise


_SOURCE_OPTIONS = ("file_format", "filter_text", "catalog", "catalog_options", "snapshot_id", "storage")

_GOES_ON = "The parts that are done stay; the same command goes on with them."

# Arguments of the library and the options that stand for them in the shell, for messages.
_SHELL_NAMES = {
    "overwrite=True": "--overwrite",
    "dtype=np.": "--dtype ",
    "Pass skip_nulls=True": "Pass --skip-nulls",
    "pass file_format=": "pass --format ",
    "file_format='parquet' or 'orc'": "--format parquet or orc",
}

_EXAMPLES = """\b
Examples:
  tdu tokens build shards/ corpus --column tokens --vocabulary 50257
  tdu tokens build "text/*.parquet" corpus --column text --tokenizer tokenizer.json --eod 0 --workers 8
  tdu tokens build db.documents s3://bucket/corpus --catalog prod --column tokens

Writes corpus.bin and corpus.idx. After a failure the same command goes on with the parts that are done. A source may
be a table, with --format; an Iceberg table is named as in its --catalog, or by the place of its metadata.json.
"""


@click.group("tokens", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Build, describe and merge token corpora in the .bin/.idx format."""


@command.command("build", epilog=_EXAMPLES)
@click.argument("sources", nargs=-1, required=True)
@click.argument("output_prefix")
@click.option("--column", required=True, help="Lists of integers, or text with --tokenizer.")
@click.option("--tokenizer", metavar="FILE", help="A tokenizer.json of the tokenizers package.")
@click.option("--eod", type=int, help="Id put at the end of each document.")
@click.option("--vocabulary", "vocabulary_size", type=int, help="Ids must be below it; also chooses the dtype.")
@click.option("--dtype", help="Of the tokens on disk, such as uint16; overrides --vocabulary's.")
@click.option("--skip-nulls", "skip_nulls", is_flag=True, help="Leave null rows out, and count them.")
@click.option(
    "--outputs", "output_count", type=click.IntRange(min=1), default=1, show_default=True, help="Corpora to write."
)
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["parquet", "orc", *TABLE_FORMATS]),
    help="Where names have no ending.",
)
@click.option("--filter", "filter_text", metavar="TEXT", help="Of tables: only rows for which it is true.")
@click.option("--catalog", metavar="NAME", help="Iceberg catalog of pyiceberg's configuration; the source is a table.")
@click.option("--catalog-option", "catalog_options", multiple=True, metavar="KEY=VALUE", help="Of the catalog.")
@click.option("--snapshot", "snapshot_id", type=int, metavar="ID", help="Snapshot or version of a table.")
@click.option("--option", "storage", multiple=True, metavar="KEY=VALUE", help="For the storage client; repeatable.")
@click.option(
    "--output-option", "output_storage", multiple=True, metavar="KEY=VALUE", help="For the output's, if others."
)
@click.option("--overwrite", "overwrite", is_flag=True, help="Replace corpora that are there.")
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
    """A column of token lists, or of text, to OUTPUT_PREFIX.bin and .idx."""
    from torch_dataloader_utils.megatron.corpora import build_corpus
    from torch_dataloader_utils.samples import TokenizerFile

    file_format = options["file_format"]
    source = _source(sources, {name: options.pop(name) for name in _SOURCE_OPTIONS})
    with _with_advice(), ExitStack() as stack:
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
    """The source that the options of `_SOURCE_OPTIONS` name.

    Raises:
        ConfigError: a filter or a snapshot of files.
    """
    source = DataSource(
        paths=sources,
        format=options["file_format"] or "parquet",
        filter_text=options["filter_text"],
        storage=parse_pairs(options["storage"], "--option"),
        catalog=catalog_properties(options["catalog"], options["catalog_options"]),
        snapshot_id=options["snapshot_id"],
    )
    if not source.is_table and (source.filter_text is not None or source.snapshot_id is not None):
        raise ConfigError("--filter and --snapshot are for tables here; name one, or leave them out.")
    return source


def _print(report: "CorpusReport") -> None:
    print_facts(
        [
            ("wrote", ", ".join(report.prefixes)),
            ("documents", f"{report.document_count:,}"),
            ("tokens", f"{report.token_count:,}"),
            ("left out", f"{report.null_documents:,} null, {report.empty_documents:,} empty documents"),
            ("parts", f"{report.reused_parts:,} were there from an earlier run"),
        ]
    )


@command.command("merge")
@click.argument("prefixes", nargs=-1, required=True)
@click.argument("output_prefix")
@click.option("--multimodal", is_flag=True, help="Keep the mode of each sequence.")
@click.option("--overwrite", "overwrite", is_flag=True, help="Replace a corpus that is there.")
@json_option
def merge(prefixes: tuple[str, ...], output_prefix: str, multimodal: bool, overwrite: bool, as_json: bool) -> None:
    """Corpora one after the other, as OUTPUT_PREFIX.

    A directory stands for all in it, sorted by name, but for OUTPUT_PREFIX itself.
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
    """The corpora that an argument of `merge` stands for.

    The output of an earlier run is left out of its directory: its documents would come twice.
    """
    from torch_dataloader_utils.megatron.corpora import IndexedDataset, find_corpora

    # Beside a corpus there may be a directory of its name, with the indices of data sets over it.
    if not Path(prefix).is_dir() or IndexedDataset.exists(prefix):
        return [prefix]
    output = Path(output_prefix).resolve()
    return [each for each in find_corpora(prefix) if Path(each).resolve() != output]


@command.command("sequences")
@click.argument("prefixes", nargs=-1, required=True)
@click.argument("output")
@click.option("--option", "storage", multiple=True, metavar="KEY=VALUE", help="For the storage client; repeatable.")
@json_option
def sequences(prefixes: tuple[str, ...], output: str, storage: tuple[str, ...], as_json: bool) -> None:
    """The counts of all corpora in one JSON file, so that jobs open none before its first sample."""
    from torch_dataloader_utils.megatron.corpora import write_sequences

    write_sequences(prefixes, output, storage_options=parse_pairs(storage, "--option"))
    count = len(set(prefixes))
    if as_json:
        emit_json({"path": output, "num_corpora": count})
    else:
        print_facts([("wrote", output), ("corpora", f"{count:,}")])


@contextmanager
def _with_advice() -> Iterator[None]:
    """Errors and interrupts of a build name the options of the shell, and say how to continue."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise of_interrupt(interrupt, _GOES_ON) from interrupt
    except BrokenProcessPool as error:
        died = "A worker process died. If the kernel killed it for its memory, lower --workers."
        raise Failure(f"{died} {_GOES_ON}", DATA_PROBLEM) from error
    except (ConfigError, NullValueError) as error:
        text = str(error)
        for name, option in _SHELL_NAMES.items():
            text = text.replace(name, option)
        raise Failure(text, USAGE if isinstance(error, ConfigError) else DATA_PROBLEM) from error
    except OSError as error:
        if not disk_is_full(error):
            raise
        raise of_os_error(error, _GOES_ON) from error


def _progress() -> Callable[[int, int, int], None] | None:
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int, tokens: int) -> None:
        click.echo(f"\r{done:,} of {total:,} parts, {tokens:,} tokens", nl=done == total, err=True)

    return show
