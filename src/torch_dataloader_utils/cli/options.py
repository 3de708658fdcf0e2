"""Options shared by commands: data, plan, output."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Literal, TypeVar, cast

import click

from torch_dataloader_utils._core.option_values import Lanes
from torch_dataloader_utils.cli.source import catalog_properties, find_source, parse_holdout, parse_pairs
from torch_dataloader_utils.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])

storage_option = click.option(
    "--option", "storage", multiple=True, metavar="KEY=VALUE", help="Option of the storage client; repeatable."
)
catalog_option = click.option(
    "--catalog", metavar="NAME", help="Iceberg catalog in pyiceberg's configuration, which has the table."
)
catalog_properties_option = click.option(
    "--catalog-option",
    "catalog_options",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the catalog; repeatable.",
)

_DATA = (
    click.argument("paths", nargs=-1),
    click.option(
        "--format",
        "format_name",
        metavar="NAME",
        default="auto",
        show_default=True,
        help="Format of the files (parquet, orc, csv, tsv, csv-semicolon, csv-pipe, json, jsonl, arrow), or iceberg or "
        "delta for a table; auto looks.",
    ),
    click.option("--columns", multiple=True, metavar="A,B", help="Read only these columns."),
    click.option(
        "--filter",
        "filter_text",
        metavar="TEXT",
        help="Read only these rows: \"x > 3 and day >= date('2024-01-05')\".",
    ),
    click.option(
        "--holdout",
        metavar="TEXT",
        help="Read one part of the rows: 0.1,train or 0.1,holdout. Add ,by=COLUMN or ,seed=N.",
    ),
    click.option(
        "--partitioning",
        type=click.Choice(["auto", "hive", "none"]),
        default="auto",
        show_default=True,
        help="Make columns of directory names (year=2024); auto: if there are such directories.",
    ),
    click.option(
        "--allow-bare-files",
        is_flag=True,
        help="Read the directory of a table as plain files, including deleted rows.",
    ),
    click.option(
        "--missing",
        type=click.Choice(["error", "null"]),
        default="error",
        show_default=True,
        help="For columns that some files lack.",
    ),
    storage_option,
    click.option("--inventory", "inventory_path", metavar="FILE", help="A file of `tdu scan --save`."),
    catalog_option,
    catalog_properties_option,
    click.option(
        "--snapshot",
        "snapshot_id",
        type=int,
        metavar="ID",
        help="Snapshot or version of a table; by default the current one.",
    ),
)

# Ranges are checked here, so that errors name the options of the shell.
_COUNT = click.IntRange(min=1)

# Both give one parameter, `shuffle`.
SHUFFLE = (
    click.option(
        "--shuffle",
        "shuffle",
        flag_value=True,
        default=False,
        type=click.UNPROCESSED,
        help="Permute chunks, and rows in windows.",
    ),
    click.option(
        "--shuffle-chunks", "shuffle", flag_value="chunks", type=click.UNPROCESSED, help="Permute chunks only."
    ),
)

_PLAN = (
    click.option("--ranks", "num_ranks", type=_COUNT, default=1, show_default=True, help="Training processes."),
    click.option(
        "--workers",
        "num_workers",
        type=click.IntRange(min=0),
        default=1,
        show_default=True,
        help="Loader workers per rank.",
    ),
    click.option("--batch-size", type=_COUNT, default=1024, show_default=True, help="Rows per batch of one rank."),
    *SHUFFLE,
    click.option("--shuffle-rows", type=click.IntRange(min=0), metavar="N", help="Permute rows in windows of about N."),
    click.option("--interleave", type=_COUNT, metavar="N", help="Chunks from which the rows of a window come."),
    click.option("--seed", default=42, show_default=True, help="Seed of the shuffles."),
    click.option("--epoch", type=click.IntRange(min=0), default=0, show_default=True, help="Number of the epoch."),
    click.option("--drop-last", is_flag=True, help="Deliver only full batches."),
    click.option("--split-bytes", metavar="SIZE", help="Size of a chunk, such as 64MiB."),
    click.option(
        "--split-rows", type=_COUNT, metavar="N", help="Size of a chunk in rows; if given, --split-bytes is ignored."
    ),
    click.option(
        "--rank-sharding",
        type=click.Choice(["rows", "chunks"]),
        default="rows",
        show_default=True,
        help="rows: equal steps on all ranks; chunks: each chunk stays on one rank.",
    ),
    click.option(
        "--lanes", "num_lanes", type=_COUNT, metavar="G", help="Number of lanes: the same global batches on any ranks."
    ),
    click.option("--lane-rows", type=_COUNT, metavar="N", help="Rows of a lane's micro-batch."),
    click.option(
        "--host-shares", type=_COUNT, metavar="N", help="Divide chunks into N shares, which hosts keep in all epochs."
    ),
    click.option("--strategy", metavar="NAME", help="An installed split strategy."),
)

# Options by subject, for --help; all others, such as what a command writes, come last.
_SUBJECTS = {
    "Data": (
        "format_name columns filter_text holdout partitioning missing allow_bare_files storage inventory_path "
        "catalog catalog_options snapshot_id"
    ),
    "Ranks and batches": "num_ranks num_workers batch_size drop_last",
    "Order": "shuffle shuffle_rows interleave seed epoch",
    "Who reads what": "split_bytes split_rows rank_sharding num_lanes lane_rows host_shares strategy",
}


class DataCommand(click.Command):
    """Command whose help has the options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, a section for each subject."""
        subject_of = {name: subject for subject, names in _SUBJECTS.items() for name in names.split()}
        sections: dict[str, list[tuple[str, str]]] = {subject: [] for subject in [*_SUBJECTS, "Options"]}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if isinstance(param, click.Option) and record is not None:
                sections[subject_of.get(param.name or "", "Options")].append(record)
        for subject, records in sections.items():
            if records:
                with formatter.section(subject):
                    formatter.write_dl(records)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")


def data_options(function: Function) -> Function:
    """Add the options that name the data; the command gets one `source`."""
    return _with_source(function, is_required=True)


def optional_data_options(function: Function) -> Function:
    """Add the options of `data_options`; `source` is None if no data is named."""
    return _with_source(function, is_required=False)


def _with_source(function: Function, *, is_required: bool) -> Function:
    @wraps(function)
    def with_source(
        *,
        paths: tuple[str, ...],
        format_name: str,
        columns: tuple[str, ...],
        filter_text: str | None,
        holdout: str | None,
        partitioning: Literal["auto", "hive", "none"],
        storage: tuple[str, ...],
        inventory_path: str | None,
        catalog: str | None,
        catalog_options: tuple[str, ...],
        snapshot_id: int | None,
        allow_bare_files: bool,
        missing: Literal["error", "null"],
        **others: Any,
    ) -> Any:
        if not (is_required or paths or inventory_path):
            return function(source=None, **others)
        source = find_source(
            paths=paths,
            format=format_name,
            columns=_names(columns),
            filter_text=filter_text,
            holdout=None if holdout is None else parse_holdout(holdout),
            partitioning=None if partitioning == "none" else partitioning,
            storage=parse_pairs(storage, "--option"),
            inventory_path=inventory_path,
            catalog=catalog_properties(catalog, catalog_options),
            snapshot_id=snapshot_id,
            allow_bare_files=allow_bare_files,
            missing=missing,
        )
        return function(source=source, **others)

    return cast("Function", _decorated(with_source, _DATA))


def plan_options(function: Function) -> Function:
    """Add the options of plans; the command gets one dict, `planning`."""

    @wraps(function)
    def with_planning(*, num_lanes: int | None, lane_rows: int | None, **given: Any) -> Any:
        planning = {name: given.pop(name) for name in _PLAN_NAMES}
        return function(planning={**planning, "lanes": _lanes(num_lanes, lane_rows)}, **given)

    return cast("Function", _decorated(with_planning, _PLAN))


_PLAN_NAMES = (
    "num_ranks",
    "num_workers",
    "batch_size",
    "shuffle",
    "shuffle_rows",
    "interleave",
    "seed",
    "epoch",
    "drop_last",
    "split_bytes",
    "split_rows",
    "rank_sharding",
    "host_shares",
    "strategy",
)


def _lanes(num_lanes: int | None, lane_rows: int | None) -> Lanes | None:
    if num_lanes is None and lane_rows is not None:
        raise ConfigError(
            f"--lane-rows {lane_rows} are rows of a lane's micro-batch: pass --lanes too, or leave it out."
        )
    return None if num_lanes is None else Lanes(num_lanes, rows=lane_rows)


def plan_arguments(planning: dict[str, Any]) -> dict[str, Any]:
    """Return `planning` as arguments of `plan_epoch`; options that were not passed keep their defaults."""
    chosen = {name: value for name, value in planning.items() if value is not None}
    strategy = chosen.pop("strategy", None)
    return {**chosen, "split_strategy": strategy}


def dataset_arguments(planning: dict[str, Any]) -> dict[str, Any]:
    """Return `planning` as options of a data set, without the epoch: the caller sets it on the data set."""
    renamed = {"seed": "shuffle_seed", "strategy": "split_strategy"}
    return {renamed.get(name, name): value for name, value in planning.items() if name != "epoch"}


def _names(columns: tuple[str, ...]) -> tuple[str, ...] | None:
    names = tuple(name.strip() for column in columns for name in column.split(",") if name.strip())
    return names or None


def _decorated(function: Any, decorators: tuple[Callable[[Any], Any], ...]) -> Any:
    for decorator in reversed(decorators):
        function = decorator(function)
    return function
