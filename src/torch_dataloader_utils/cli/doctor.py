"""`tdu doctor`: what to know of a table before training on it, and the call that reads it. No row is read."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from torch_dataloader_utils._core.arguments import format_bytes
from torch_dataloader_utils._core.paths import redact
from torch_dataloader_utils.cli.findings import Finding, find_layout_problems, spread
from torch_dataloader_utils.cli.options import catalog_option, catalog_properties_option, json_option, storage_option
from torch_dataloader_utils.cli.output import emit_json, format_rows, print_facts, say
from torch_dataloader_utils.cli.source import catalog_properties, parse_pairs
from torch_dataloader_utils.errors import ConfigError, SchemaError, plural

if TYPE_CHECKING:
    import pyarrow as pa

    from torch_dataloader_utils._core.inventory import Inventory
    from torch_dataloader_utils._store import StoreAccess
    from torch_dataloader_utils.shape.specs import ColumnSpec

_EXAMPLES = """\b
Examples:
  tdu doctor data/
  tdu doctor s3://bucket/trips --option anon=true
  tdu doctor prod.db.events
  tdu doctor db.events --catalog prod --json
"""

_TABLES = {"iceberg": "an Iceberg table", "delta": "a Delta table"}
_BATCH_SIZE = 1024
# A partition with more of the rows than this is in most batches.
_SKEWED_SHARE = 0.5
_SHOWN_COLUMNS = 8
# What stands in a first line that is no header: nothing, a number, a date or a truth value.
_VALUE = re.compile(r"|[-+]?[0-9.]+(e[-+]?[0-9]+)?|[0-9]{4}-[0-9]{2}-[0-9]{2}.*|true|false", re.IGNORECASE)


@click.command("doctor", epilog=_EXAMPLES)
@click.argument("path")
@click.option("--format", "format_name", metavar="NAME", default="auto", help="Format; by default found by looking.")
@storage_option
@catalog_option
@catalog_properties_option
@json_option
def command(
    path: str,
    format_name: str,
    storage: tuple[str, ...],
    catalog: str | None,
    catalog_options: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show what to know of a table before training, and the call that reads it.

    Finds the format, Hive directories, Delta and Iceberg tables by looking. Reads metadata only; text has none, so
    its lines are counted.
    """
    options = {
        "storage_options": parse_pairs(storage, "--option") or None,
        "catalog_config": catalog_properties(catalog, catalog_options),
    }
    given = {name: value for name, value in options.items() if value is not None}
    examination = examine({"path": path, "format": format_name, **given})
    if as_json:
        emit_json(asdict(examination))
        return
    print_facts(list(examination.facts.items()))
    for found in examination.findings:
        say()
        say(f"{found.kind}: {found.message}")
    say()
    click.echo(examination.call)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Facts by name, findings, and the program that reads the table."""

    facts: dict[str, str]
    findings: tuple[Finding, ...]
    call: str


def examine(given: Mapping[str, Any]) -> Examination:
    """Look at the metadata of a table.

    given: Options of `open_loader` that say where the table is.

    Raises:
        ConfigError, DataError, StoreError: see `open_loader`.
    """
    from torch_dataloader_utils._arrow.schema import decode_schema
    from torch_dataloader_utils._core.division import Share
    from torch_dataloader_utils.datasets.options import TableOptions
    from torch_dataloader_utils.datasets.row_counts import null_counts
    from torch_dataloader_utils.datasets.table_rows import build_rows
    from torch_dataloader_utils.shape.specs import column_specs

    kind, inventory, access, options = _scanned(given)
    rows = build_rows(inventory, TableOptions(count_rows=False), access, Share())
    columns = column_specs(rows.delivered, None)
    counts = null_counts(inventory)
    nulls = _nulls(columns, counts, is_counted=_has_null_counts(inventory))
    findings = (
        *_missing(options),
        *_header_findings(inventory),
        *_column_findings(decode_schema(inventory.schema), columns),
        *_null_findings(nulls, counts),
        *_partition_findings(inventory),
        *find_layout_problems(inventory),
    )
    return Examination(
        facts={name: text for name, text in _facts(kind, inventory, access).items() if text},
        findings=findings,
        call=_call(given, options if not nulls else {**options, "nulls": nulls}),
    )


def _facts(kind: str, inventory: "Inventory", access: "StoreAccess") -> dict[str, str]:
    from torch_dataloader_utils.plan.explain import describe_mixing
    from torch_dataloader_utils.plan.planner import plan_epoch

    mixing = describe_mixing(plan_epoch(inventory, batch_size=_BATCH_SIZE, shuffle=True, num_workers=1))
    rows = format_rows(inventory.num_rows if inventory.rows_are_known else None)
    median = format_bytes(spread(inventory.groups.projected_bytes)["median"])
    groups = f"{plural(inventory.num_groups, 'row group')} of {median} (median)"
    return {
        "table": f"{inventory.source}, {kind}",
        "files": f"{inventory.num_files:,}, {format_bytes(int(inventory.files.sizes.sum()))}",
        "rows": f"{rows}, in {groups}",
        "partitions": _partitions(inventory),
        "decoder": _compiled(inventory, access),
        "mixing": f"with shuffle=True, {mixing}" if mixing else "",
        "note": " ".join(inventory.notes),
    }


def _scanned(given: Mapping[str, Any]) -> "tuple[str, Inventory, StoreAccess, dict[str, Any]]":
    """Return a name for the kind of table, its inventory, its access, and the options that a loader needs for it."""
    from torch_dataloader_utils._core.division import Share
    from torch_dataloader_utils._observe.work_bar import work_bar
    from torch_dataloader_utils.datasets.options import ScanOptions
    from torch_dataloader_utils.datasets.places import SOURCES, find_place

    kind, place = find_place(given)
    make = SOURCES[kind]
    # Equality deletes would be read to count rows; lines of text have to be.
    scan = ScanOptions(count_rows="auto" if kind == "files" else False)
    options: dict[str, Any] = {}
    with work_bar("files") as on_progress:
        try:
            inventory, access = make(**place).scan(scan, Share(), on_progress)
        except SchemaError as error:
            if kind != "files":
                raise
            options = {"missing": "null"}
            try:
                inventory, access = make(**place, **options).scan(scan, Share(), on_progress)
            except ConfigError:  # text without a schema: the first error says more
                raise error from None
    shown = _TABLES.get(kind) or f"{_format(inventory)} files"
    return shown, inventory, access, options


def _partitions(inventory: "Inventory") -> str:
    each = (f"{column.name} ({plural(len(column.values), 'value')})" for column in inventory.files.partitions)
    return ", ".join(each)


def _compiled(inventory: "Inventory", access: "StoreAccess") -> str:
    """Return which columns the compiled decoder reads, by the footer of the first Parquet file; "" without one."""
    from torch_dataloader_utils import _engine
    from torch_dataloader_utils._core.inventory import FileFormat
    from torch_dataloader_utils._store import open_store
    from torch_dataloader_utils.formats.parquet.footer import parquet_footer
    from torch_dataloader_utils.formats.parquet.footer_numbers import OfChunk
    from torch_dataloader_utils.formats.task_source import TaskSource

    if not inventory.num_groups or inventory.files.formats[int(inventory.groups.file[0])] != FileFormat.PARQUET:
        return ""
    if not _engine.IS_BUILT:
        return "the compiled decoder is not built (tdu --version says why): pyarrow reads all columns"
    task = inventory.task(0)
    store = open_store(task.path, access)
    footer = parquet_footer(TaskSource(task=task, store=store, page_checksums=False, max_row_group_bytes=0))
    read = {
        name
        for name, column in footer.columns.numbers.items()
        if footer.numbers is not None
        and _engine.has_codec(int(footer.numbers.chunks[task.ordinal][column.leaf][OfChunk.CODEC]))
    }
    left = [name for name in footer.columns.leaves if name not in read]
    others = f"; pyarrow reads {_listed(left)}" if left else ""
    return f"compiled code reads {len(read)} of {plural(len(read) + len(left), 'column')}{others}"


def _nulls(columns: "tuple[ColumnSpec, ...]", counts: Mapping[str, int], *, is_counted: bool) -> dict[str, Any]:
    """Return `nulls=` for the columns that have no place for nulls, and have some or nobody counted them.

    Nobody counts null lists. is_counted: Whether metadata count the other nulls.
    """
    from torch_dataloader_utils.shape.arrow_types import ListType
    from torch_dataloader_utils.shape.convert import refuses_nulls

    found: dict[str, Any] = {}
    for spec in filter(refuses_nulls, columns):
        if isinstance(spec.kind, ListType):
            found[spec.name] = ("fill", 0)
        elif counts.get(spec.name, 0 if is_counted else 1):
            found[spec.name] = "mask"
    return found


def _has_null_counts(inventory: "Inventory") -> bool:
    from torch_dataloader_utils._core.inventory import FileFormat

    return inventory.snapshot is not None or bool((inventory.files.formats == FileFormat.PARQUET).all())


def _missing(options: Mapping[str, Any]) -> Iterator[Finding]:
    if "missing" in options:
        yield Finding(
            kind="missing",
            message='Files have different columns or types. With missing="null", a column is null where a file lacks '
            "it, and has the widest of its types.",
        )


def _header_findings(inventory: "Inventory") -> Iterator[Finding]:
    from torch_dataloader_utils._arrow.schema import decode_schema
    from torch_dataloader_utils.formats.text.head import SEPARATED

    if _format(inventory) not in SEPARATED.values():
        return
    odd = [name for name in decode_schema(inventory.schema).names if _VALUE.fullmatch(name)]
    if odd:
        yield Finding(
            kind="header",
            message=f"The first line names the columns, and {_listed(map(repr, odd))} may be values. If the line is a "
            "row, it is not read: write a line with names before it.",
        )


def _format(inventory: "Inventory") -> str:
    from torch_dataloader_utils.formats.registry import format_of

    return str(format_of(int(inventory.files.formats[0])))


def _column_findings(stored: "pa.Schema", columns: "tuple[ColumnSpec, ...]") -> Iterator[Finding]:
    import pyarrow.types as pt

    from torch_dataloader_utils.shape.arrow_types import NumberType, ObjectType, element_of

    def typed(name: str) -> str:
        return f"{name} ({stored.field(name).type if name in stored.names else 'nested'})"

    objects = [spec.name for spec in columns if isinstance(spec.kind, ObjectType)]
    if objects:
        yield Finding(
            kind="objects",
            message=f"Lists of Python objects, which are slow and take memory: {_listed(map(typed, objects))}. encode= "
            "makes numbers of text, and columns= leaves columns out.",
        )
    decimals = [field.name for field in stored if pt.is_decimal(field.type) and field.name not in objects]
    if decimals:
        yield Finding(
            kind="decimals", message=f"Floats in batches: {_listed(map(typed, decimals))}. dtypes= sets another type."
        )
    numbers = [spec for spec in columns if isinstance(spec.kind, NumberType) and not spec.kind.shape]
    elements = [element_of(spec.kind) for spec in numbers]
    types = Counter(str(each) for each in elements if pt.is_integer(each) or pt.is_floating(each))
    if len(types) > 1:
        each = ", ".join(f"{plural(count, 'column')} of {name}" for name, count in types.most_common())
        yield Finding(
            kind="mixed_types", message=f"Numbers have {len(types)} types: {each}. dtypes= gives them one, for stack=."
        )


def _null_findings(nulls: Mapping[str, Any], counts: Mapping[str, int]) -> Iterator[Finding]:
    masked = [name for name, policy in nulls.items() if policy == "mask" and name in counts]
    if masked:
        yield Finding(
            kind="nulls",
            message=f"Tensors cannot hold the nulls of {_listed(masked)}. The call below has zeros there, and a bool "
            'tensor "..._mask" beside each column; ("fill", value) puts a value there instead.',
        )
    uncounted = [name for name, policy in nulls.items() if policy == "mask" and name not in counts]
    if uncounted:
        yield Finding(
            kind="uncounted_nulls",
            message=f"These files do not count the nulls of {_listed(uncounted)}, which tensors cannot hold. The call "
            'below has zeros there, and a bool tensor "..._mask" beside each column. Remove from nulls= the columns '
            "that have no nulls.",
        )
    lists = [name for name, policy in nulls.items() if policy != "mask"]
    if lists:
        yield Finding(
            kind="lists",
            message=f"Metadata does not count the nulls of {_listed(lists)}. The call below has empty lists, and zeros "
            "for numbers that are null.",
        )


def _partition_findings(inventory: "Inventory") -> Iterator[Finding]:
    import numpy as np

    files, groups = inventory.files, inventory.groups
    for column in files.partitions:
        paths = files.paths if all(isinstance(value, int | None) for value in column.values) else ()
        zeros = re.compile(rf"/{re.escape(column.name)}=(0[0-9]+)/")
        text = next((found[1] for path in paths if (found := zeros.search(path))), None)
        if text is not None:
            yield Finding(
                kind="leading_zeros",
                message=f"The directory {column.name}={text} becomes the number {int(text)}. If it is a code, pass "
                f'partitioning=Hive(types={{"{column.name}": "string"}}).',
            )
        rows = np.bincount(column.codes[groups.file], weights=groups.live_rows.clip(min=0), minlength=1)
        if len(rows) > 2 and rows.max() > _SKEWED_SHARE * rows.sum():
            yield Finding(
                kind="skew",
                message=f"{column.name}={column.values[int(rows.argmax())]} has {rows.max() / rows.sum():.0%} of the "
                f"rows, of {len(rows):,} values: most batches are mostly of it. blend() weighs loaders of its parts.",
            )


def _call(given: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return the program that reads the table. Options of storage and catalog may be secrets: it has their names."""
    arguments = [repr(redact(given["path"]))]
    if given["format"] != "auto":
        arguments.append(f"format={given['format']!r}")
    if "catalog_config" in given:
        catalog = given["catalog_config"]
        is_name = set(catalog) == {"name"}
        arguments.append(f"catalog_config={catalog!r}" if is_name else "catalog_config=catalog_config")
    if "storage_options" in given:
        arguments.append("storage_options=storage_options")
    arguments += [f"batch_size={_BATCH_SIZE}", "shuffle=True"]
    arguments += [f"{name}={value!r}" for name, value in options.items()]
    return (
        "from torch_dataloader_utils import open_loader\n\n"
        f"loader = open_loader({', '.join(arguments)})\n"
        "for epoch in range(2):\n"
        "    loader.set_epoch(epoch)\n"
        "    for batch in loader:\n"
        "        ...\n"
    )


def _listed(names: Any) -> str:
    names = list(names)
    more = f" and {len(names) - _SHOWN_COLUMNS} more" if len(names) > _SHOWN_COLUMNS else ""
    return ", ".join(names[:_SHOWN_COLUMNS]) + more
