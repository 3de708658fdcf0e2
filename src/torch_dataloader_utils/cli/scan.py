"""`tdu scan`: files, row groups and schema of a data set, and warnings about its layout."""

from typing import TYPE_CHECKING, Any

import click

from torch_dataloader_utils._core.arguments import format_bytes
from torch_dataloader_utils.cli.options import DataCommand, data_options, json_option
from torch_dataloader_utils.cli.output import emit_json, format_rows, print_facts, print_table, say
from torch_dataloader_utils.cli.source import DataSource

if TYPE_CHECKING:
    from torch_dataloader_utils._core.inventory import Inventory

_EXAMPLES = """\b
Examples:
  tdu scan data/
  tdu scan "s3://bucket/trips/*.parquet" --option anon=true
  tdu scan data/ --partitioning hive --filter "year == 2024" --save inventory.parquet
  tdu scan db.events --catalog prod
"""


@click.command("scan", cls=DataCommand, epilog=_EXAMPLES)
@data_options
@click.option("--save", "save_path", metavar="FILE", help="Save the inventory, for --inventory and load_inventory.")
@click.option("--files", "lists_files", is_flag=True, help="List the files.")
@json_option
def command(source: DataSource, save_path: str | None, lists_files: bool, as_json: bool) -> None:
    """Show the data: files, row groups, schema, sizes, warnings.

    Reads metadata only. Text files have none, so their lines are counted.
    """
    inventory = source.inventory()
    saved = None
    if save_path is not None:
        from torch_dataloader_utils._store import redact
        from torch_dataloader_utils.discover import save_inventory

        save_inventory(inventory, save_path, source.storage or None)
        saved = redact(save_path)
    report = describe(inventory, lists_files=lists_files)
    if as_json:
        emit_json({**report, **({"saved": saved} if saved else {})})
        return
    _print(report, inventory.notes, source.filter_text)
    if saved is not None:
        say()
        say(f"Saved to {saved}. Use it with --inventory {saved}")


def describe(inventory: "Inventory", *, lists_files: bool = False) -> dict[str, Any]:
    """Return the inventory as a JSON-able dict."""
    import numpy as np

    from torch_dataloader_utils._arrow.schema import decode_schema
    from torch_dataloader_utils._store import redact
    from torch_dataloader_utils.cli.findings import find_layout_problems, spread

    files, groups = inventory.files, inventory.groups
    schema = decode_schema(inventory.schema)
    partitions = {column.name: len(column.values) for column in files.partitions}
    report = {
        "source": inventory.source,
        "fingerprint": inventory.fingerprint(),
        "num_files": inventory.num_files,
        "num_row_groups": inventory.num_groups,
        "num_rows": inventory.num_rows if inventory.rows_are_known else None,
        "stored_bytes": int(files.sizes.sum()),
        "projected_bytes": int(groups.projected_bytes.sum()),
        "row_group_rows": spread(groups.live_rows if inventory.rows_are_known else groups.physical_rows),
        "row_group_bytes": spread(groups.projected_bytes),
        "file_bytes": spread(files.sizes),
        "row_filter": inventory.row_filter or None,
        "schema": [
            {
                "name": field.name,
                "type": str(field.type),
                "nullable": field.nullable,
                "partition": field.name in partitions,
            }
            for field in schema
        ],
        "partitions": partitions,
        "warnings": [{"kind": found.kind, "message": found.message} for found in find_layout_problems(inventory)],
    }
    if lists_files:
        counts = np.bincount(groups.file, minlength=inventory.num_files).tolist()
        report["files"] = [
            {"path": redact(path), "bytes": int(size), "row_groups": count}
            for path, size, count in zip(files.paths, files.sizes, counts, strict=True)
        ]
    return report


def _print(report: dict[str, Any], notes: tuple[str, ...], filter_text: str | None) -> None:
    print_facts(
        [
            ("source", report["source"]),
            ("files", f"{report['num_files']:,}, {format_bytes(report['stored_bytes'])} stored"),
            ("row groups", f"{report['num_row_groups']:,}, {format_bytes(report['projected_bytes'])} uncompressed"),
            ("rows", format_rows(report["num_rows"])),
            # The text of the option: pyarrow prints lists with one line per value.
            *([("filter", filter_text)] if filter_text else []),
            *(("note", note) for note in notes),
            ("fingerprint", report["fingerprint"]),
        ]
    )
    click.echo()
    rows = [
        ("rows of a row group", *(format_rows(value) for value in report["row_group_rows"].values())),
        ("bytes of a row group", *(format_bytes(value) for value in report["row_group_bytes"].values())),
        ("bytes of a file", *(format_bytes(value) for value in report["file_bytes"].values())),
    ]
    print_table(["", "least", "median", "most"], rows, left=[""])
    click.echo()
    columns = [(each["name"], each["type"], _remark(each, report["partitions"])) for each in report["schema"]]
    print_table(["column", "type", ""], columns, left=["column", "type", ""])
    if "files" in report:
        click.echo()
        listed = [(each["path"], format_bytes(each["bytes"]), str(each["row_groups"])) for each in report["files"]]
        print_table(["file", "size", "row groups"], listed, left=["file"])
    for found in report["warnings"]:
        say()
        say(f"warning: {found['message']}")


def _remark(column: dict[str, Any], partitions: dict[str, int]) -> str:
    if column["partition"]:
        return f"partition, {partitions[column['name']]} values"
    return "" if column["nullable"] else "not null"
