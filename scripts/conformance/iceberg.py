"""Cases of Iceberg: snapshots, deletes of every kind, evolution, partitions, formats of files."""

import datetime
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.table import StaticTable, Table
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import LongType, StringType
from scripts.conformance.matrix import BY_HAND, CORPORA, TWO, Case, Format, Rows, Written, arrow_rows, loader_rows
from tests.tables.iceberg.tables import TableWriter, field_of

from torch_dataloader_utils import IcebergDataset


def _table(
    folder: Path, *tables: pa.Table, version: int = 2, spec: Callable[[Table], object] = lambda _: None
) -> Table:
    catalog = InMemoryCatalog("conformance", warehouse=str(folder))
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", TWO[0].schema, properties={"format-version": str(version)})
    spec(table)
    for each in tables:
        table.append(each)
    return table


def _written(table: Table, *tables: pa.Table, without: Callable[[dict[str, Any]], bool] = lambda _: False) -> Written:
    rows = [row for each in tables for row in each.to_pylist() if not without(row)]
    return Written(table.metadata_location.removeprefix("file://"), rows)


def _appended(version: int, folder: Path) -> Written:
    return _written(_table(folder, *TWO, version=version), *TWO)


def _overwritten(folder: Path) -> Written:
    table = _table(folder, TWO[0])
    table.overwrite(TWO[1])
    return _written(table, TWO[1])


def _deleted(folder: Path) -> Written:
    table = _table(folder, *TWO)
    table.delete("row < 30")
    return _written(table, *TWO, without=lambda row: row["row"] < 30)


def _upserted(folder: Path) -> Written:
    table = _table(folder, TWO[0])
    table.upsert(pa.concat_tables(TWO).slice(90), join_cols=["row"])
    return _written(table, *TWO)


def _partitioned(parts: list[tuple[str, Any]], folder: Path) -> Written:
    def partition(table: Table) -> None:
        with table.update_spec() as update:
            for name, transform in parts:
                update.add_field(name, transform, f"{name}_part")

    return _written(_table(folder, *TWO, spec=partition), *TWO)


def _spec_grew(folder: Path) -> Written:
    table = _table(folder, TWO[0])
    with table.update_spec() as update:
        update.add_identity("kind")
    table.append(TWO[1])
    return _written(table, *TWO)


def _column_added(folder: Path) -> Written:
    table = _table(folder, TWO[0])
    with table.update_schema() as update:
        update.add_column("added", LongType())
    more = TWO[1].append_column("added", pa.array(range(len(TWO[1]))))
    table.append(more)
    return Written(_written(table).place, [{**row, "added": None} for row in TWO[0].to_pylist()] + more.to_pylist())


def _column_renamed(folder: Path) -> Written:
    table = _table(folder, TWO[0])
    with table.update_schema() as update:
        update.rename_column("value", "renamed")
    more = TWO[1].rename_columns(["row", "kind", "renamed"])
    table.append(more)
    return _written(table, TWO[0].rename_columns(more.column_names), more)


def _column_dropped(folder: Path) -> Written:
    table = _table(folder, TWO[0])
    with table.update_schema() as update:
        update.delete_column("value")
    with table.update_schema() as update:
        update.add_column("value", StringType())  # the same name, another column
    rows = [{**row, "value": None} for row in TWO[0].to_pylist()]
    return Written(_written(table).place, rows)


def _promoted(old: str, new: str, values: list[Any], folder: Path) -> Written:
    writer = TableWriter(folder)
    writer.evolve(field_of(1, "value", old))
    writer.append([{"value": each} for each in values])
    writer.evolve(field_of(1, "value", new))
    writer.append([{"value": each} for each in values])
    return Written(writer.metadata, [{"value": each} for each in values * 2])


def _by_hand(folder: Path, **options: Any) -> tuple[TableWriter, str, list[dict[str, Any]]]:
    """Write a table of 100 rows in row groups of 30; return its writer, its data file and its rows."""
    writer = TableWriter(folder, **options)
    writer.evolve(field_of(1, "row", "long"), field_of(2, "kind", "string"), field_of(3, "value", "double"))
    rows = TWO[0].to_pylist()
    return writer, writer.append(rows, rows_per_group=30), rows


def _position_deletes(files: int, file_format: str, folder: Path) -> Written:
    writer, path, rows = _by_hand(folder)
    for first in range(files):
        writer.delete_positions([(path, at) for at in range(first, 100, 9)], file_format=file_format)
    return Written(writer.metadata, [row for row in rows if row["row"] % 9 >= files])


def _equality_deletes(ids: list[int], file_format: str, folder: Path) -> Written:
    writer, _, rows = _by_hand(folder)
    names = {1: "row", 2: "kind"}
    keys = [{names[each]: row[names[each]] for each in ids} for row in rows[7:9]]
    writer.delete_equal(ids, keys, file_format=file_format)
    gone = [tuple(key.values()) for key in keys]
    live = [row for row in rows if tuple(row[names[each]] for each in ids) not in gone]
    writer.append(TWO[1].to_pylist())  # later rows are not deleted
    return Written(writer.metadata, live + TWO[1].to_pylist())


def _vectors(folder: Path) -> Written:
    writer, path, rows = _by_hand(folder, format_version=3)
    writer.delete_vectors({path: list(range(0, 100, 3))})
    return Written(writer.metadata, [row for row in rows if row["row"] % 3])


def _all_deletes(folder: Path) -> Written:
    writer, path, rows = _by_hand(folder)
    writer.delete_positions([(path, 5), (path, 50)])
    writer.delete_equal([2], [{"kind": "kind 1"}])
    writer.delete_equal([1], [{"row": 99}])
    live = [row for row in rows if row["row"] not in (5, 50, 99) and row["kind"] != "kind 1"]
    return Written(writer.metadata, live)


def _orc(folder: Path) -> Written:
    writer, _, rows = _by_hand(folder)
    writer.append(TWO[1].to_pylist(), file_format="orc")
    return Written(writer.metadata, rows + TWO[1].to_pylist())


def _name_mapping(folder: Path) -> Written:
    mapping = (
        '[{"field-id": 1, "names": ["row"]}, {"field-id": 2, "names": ["kind"]}, {"field-id": 3, "names": ["value"]}]'
    )
    writer, _, rows = _by_hand(folder, properties={"schema.name-mapping.default": mapping})
    writer.append(TWO[1].to_pylist(), without_ids=True)
    return Written(writer.metadata, rows + TWO[1].to_pylist())


def _default(folder: Path) -> Written:
    writer, _, rows = _by_hand(folder, format_version=3)
    writer.evolve(*writer.schema.fields, field_of(4, "added", "long", initial_default=7))
    return Written(writer.metadata, [{**row, "added": 7} for row in rows])


PREFIX = "data/persistent"
# Rows that are known from the repository of the tables: no other reader here applies equality deletes.
KNOWN: dict[str, Rows] = {
    "equality_deletes/warehouse/mydb/mytable": [
        {"id": number, "name": name, "bir": datetime.date(2025, 1, number)} for number, name in ((4, "d"), (5, "e"))
    ],
    "equality_delete_cross_partition/warehouse/ns/t/metadata/vfinal.metadata.json": [
        {"part": 0, "key": 999, "val": "p0-k999"},
        {"part": 1, "key": 100, "val": "p1-k100"},
        {"part": 1, "key": 888, "val": "p1-k888"},
    ],
    "equality_delete_extra_column/warehouse/ns/t/metadata/vfinal.metadata.json": [
        {"id": 1, "val": "a"},
        {"id": 3, "val": "c"},
    ],
}
FOREIGN = [
    *KNOWN,
    "equality_deletes/warehouse/mydb/mytable_partitioned",
    "legacy_bare_deletion_vector/warehouse/default/legacy_bare_deletion_vector",
    "hive_partitioned_table",
    "name_mapping/warehouse_1/mydb/t1/metadata/v3.metadata.json",
    "name_mapping/warehouse_1/mydb/t1/metadata/v7.metadata.json",
    "add_columns_with_defaults/default.db/add_columns_with_defaults",
    "partition_timestamp/default.db/partition_timestamp",
    "partition_integer",
    "partition_decimal_bigint",
    "uuid",
    "iceberg_v1_repro/repro/merch_v1",
]


def _foreign(name: str, folder: Path) -> Written:  # noqa: ARG001
    """Return a table whose metadata has paths relative to its repository."""
    root = CORPORA / "duckdb-iceberg"
    return Written(str(root / PREFIX / name), KNOWN.get(name), {"path_rewrites": {PREFIX: str(root / PREFIX)}}, root)


def _cases() -> Iterator[Case]:
    for version in (1, 2):
        yield Case(f"appends, format version {version}", "pyiceberg", partial(_appended, version))
    yield Case("overwrite", "pyiceberg", _overwritten)
    yield Case("delete, files rewritten", "pyiceberg", _deleted)
    yield Case("upsert", "pyiceberg", _upserted)
    for name, parts in {
        "identity": [("kind", IdentityTransform())],
        "bucket": [("row", BucketTransform(4))],
        "truncate": [("row", TruncateTransform(40))],
        "bucket and identity": [("row", BucketTransform(2)), ("kind", IdentityTransform())],
    }.items():
        yield Case(f"partitions: {name}", "pyiceberg", partial(_partitioned, parts))
    yield Case("partitions: a spec that grew", "pyiceberg", _spec_grew)
    yield Case("evolution: a column is added", "pyiceberg", _column_added)
    yield Case("evolution: a column is renamed", "pyiceberg", _column_renamed)
    yield Case("evolution: a column is dropped, another takes its name", "pyiceberg", _column_dropped)
    for old, new, values in [("int", "long", [1, None]), ("float", "double", [0.5, None])]:
        yield Case(f"evolution: {old} becomes {new}", BY_HAND, partial(_promoted, old, new, values))
    yield Case("evolution: a default for rows of older files", BY_HAND, _default)
    for file_format in ("parquet", "orc"):
        yield Case(f"position deletes in {file_format}", BY_HAND, partial(_position_deletes, 1, file_format))
    yield Case("position deletes in three files", BY_HAND, partial(_position_deletes, 3, "parquet"))
    for ids, keys in (([1], "one key"), ([1, 2], "two keys"), ([2], "a key that is null")):
        yield Case(f"equality deletes by {keys}", BY_HAND, partial(_equality_deletes, ids, "parquet"))
    yield Case("equality deletes in orc", BY_HAND, partial(_equality_deletes, [1], "orc"))
    yield Case("position and equality deletes together", BY_HAND, _all_deletes)
    yield Case("deletion vectors, format version 3", BY_HAND, _vectors)
    yield Case("data files in Parquet and ORC", BY_HAND, _orc)
    yield Case("files without field ids, by name mapping", BY_HAND, _name_mapping)
    for name in FOREIGN:
        if (CORPORA / "duckdb-iceberg" / PREFIX / name).exists():
            short = name.replace("/metadata/", " ").removesuffix(".metadata.json").split("/")
            yield Case(
                f"duckdb-iceberg: {short[0]}{'' if len(short) == 1 else f', {short[-1]}'}",
                "various",
                partial(_foreign, name),
            )


def _pyiceberg(place: str) -> Rows:
    return StaticTable.from_metadata(_newest(place)).scan().to_arrow().to_pylist()


def _newest(place: str) -> str:
    """Return the newest metadata file of a directory of a table; a file itself."""
    if Path(place).is_file():
        return place
    return str(max(Path(place).glob("metadata/*.metadata.json"), key=lambda each: (len(each.name), each.name)))


FORMAT = Format(
    name="Iceberg",
    cases=tuple(_cases()),
    read=partial(loader_rows, IcebergDataset),
    readers={
        "pyiceberg": _pyiceberg,
        "Polars": lambda place: arrow_rows(pl.scan_iceberg(_newest(place)).collect().to_arrow()),
    },
)
