"""`tdu shuffle`: writes all rows once, in random order."""

from contextlib import ExitStack
from dataclasses import asdict

import click

from torch_dataloader_utils._core.arguments import format_bytes
from torch_dataloader_utils.cli.options import DataCommand, data_options, json_option
from torch_dataloader_utils.cli.output import emit_json, print_facts
from torch_dataloader_utils.cli.process_pool import continued_later, process_pool
from torch_dataloader_utils.cli.source import DataSource

_EXAMPLES = """\b
Examples:
  tdu shuffle trips/ trips-shuffled/ --partitioning hive --seed 7
  tdu shuffle trips/ trips-shuffled/ --workers 8 --memory 2GiB
  tdu shuffle db.events events-shuffled/ --catalog prod --columns id,text --filter "lang == 'en'"

The work lies in TARGET.shuffling until the target appears. After a failure, the same command continues.
"""


@click.command("shuffle", cls=DataCommand, epilog=_EXAMPLES)
@data_options
@click.argument("target")
@click.option("--seed", default=42, show_default=True, help="Number that chooses the order.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("--memory", default="1GiB", show_default=True, metavar="SIZE", help="Rows that each process may hold.")
@click.option(
    "--file-bytes", default="256MiB", show_default=True, metavar="SIZE", help="Size of a file, as decoded rows."
)
@click.option("--row-group-bytes", metavar="SIZE", help="Size of a row group, as decoded rows.")
@json_option
def command(
    source: DataSource,
    target: str,
    seed: int,
    workers: int,
    memory: str,
    file_bytes: str,
    row_group_bytes: str | None,
    as_json: bool,
) -> None:
    """Write the rows in random order, as Parquet files that load fast.

    The order depends on the files and the seed alone. TARGET, a local directory, appears when the rows that were
    written have been read back and compared with the rows that were read.
    """
    from torch_dataloader_utils import shuffle_table
    from torch_dataloader_utils._observe.work_bar import work_bar

    with continued_later("Finished jobs stay; the same command continues with them."), ExitStack() as stack:
        report = shuffle_table(
            source.dataset(output_format="arrow"),
            target,
            seed=seed,
            memory=memory,
            file_bytes=file_bytes,
            row_group_bytes=row_group_bytes,
            executor=stack.enter_context(process_pool(workers)) if workers > 1 else None,
            on_progress=stack.enter_context(work_bar("jobs")),
        )
    if as_json:
        emit_json({**asdict(report), "checksums": dict(report.checksums)})
        return
    print_facts(
        [
            ("wrote", report.path),
            ("rows", f"{report.num_rows:,}, the same in source and target by count and checksum of each column"),
            ("files", f"{report.num_files:,}, {format_bytes(report.num_bytes)}"),
            ("jobs", f"{report.reused_jobs:,} reused from an earlier run"),
        ]
    )
