"""Cases of Delta: what a table's log says, and what its data files hold."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from scripts.conformance.matrix import (
    BY_HAND,
    CORPORA,
    TWO,
    Case,
    Format,
    Rows,
    Written,
    arrow_rows,
    loader_rows,
    rows_of,
)
from tests.tables.delta.tables import INTEGER, LONG, STRING, HandTable, add, column

from torch_dataloader_utils import DeltaDataset


def _versions(folder: Path, *tables: pa.Table, **options: Any) -> DeltaTable:
    for table in tables:
        write_deltalake(str(folder), table, mode="append", **options)
    return DeltaTable(str(folder))


def _written(folder: Path, *tables: pa.Table, without: Callable[[dict[str, Any]], bool] = lambda _: False) -> Written:
    return Written(str(folder), [row for table in tables for row in table.to_pylist() if not without(row)])


def _appended(folder: Path) -> Written:
    _versions(folder, *TWO)
    return _written(folder, *TWO)


def _partitioned(folder: Path) -> Written:
    _versions(folder, *TWO, partition_by=["kind"])
    return _written(folder, *TWO)


def _overwritten(folder: Path) -> Written:
    _versions(folder, TWO[0])
    write_deltalake(str(folder), TWO[1], mode="overwrite")
    return _written(folder, TWO[1])


def _deleted(folder: Path) -> Written:
    _versions(folder, *TWO).delete("row % 3 = 0")
    return _written(folder, *TWO, without=lambda row: row["row"] % 3 == 0)


def _updated(folder: Path) -> Written:
    _versions(folder, *TWO).update({"value": "-1.0"}, predicate="row < 10")
    rows = [{**row, "value": -1.0 if row["row"] < 10 else row["value"]} for each in TWO for row in each.to_pylist()]
    return Written(str(folder), rows)


def _merged(folder: Path) -> Written:
    merge = _versions(folder, TWO[0]).merge(
        rows_of(90, 150), "old.row = new.row", source_alias="new", target_alias="old"
    )
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    return _written(folder, *TWO)


def _checkpoint(folder: Path) -> Written:
    table = _versions(folder, *TWO)
    table.create_checkpoint()
    for number in range(2):
        (folder / "_delta_log" / f"{number:020}.json").unlink()
    return _written(folder, *TWO)


def _checkpoint_and_more(folder: Path) -> Written:
    _versions(folder, TWO[0]).create_checkpoint()
    _versions(folder, TWO[1])
    return _written(folder, *TWO)


def _compacted(folder: Path) -> Written:
    _versions(folder, *TWO).optimize.compact()
    return _written(folder, *TWO)


def _vacuumed(folder: Path) -> Written:
    table = _versions(folder, *TWO)
    table.optimize.compact()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    return _written(folder, *TWO)


def _z_ordered(folder: Path) -> Written:
    _versions(folder, *TWO).optimize.z_order(["value"])
    return _written(folder, *TWO)


def _added_column(folder: Path) -> Written:
    more = TWO[1].append_column("added", pa.array(range(len(TWO[1]))))
    _versions(folder, TWO[0])
    _versions(folder, more, schema_mode="merge")
    return Written(str(folder), [{**row, "added": None} for row in TWO[0].to_pylist()] + more.to_pylist())


def _restored(folder: Path) -> Written:
    _versions(folder, *TWO).restore(0)
    return _written(folder, TWO[0])


def _polars(folder: Path) -> Written:
    pl.from_arrow(TWO[0]).write_delta(str(folder))
    return _written(folder, TWO[0])


COLUMNS = [column("row"), column("kind", STRING), column("value", "double")]


def _vectors(storage: str, folder: Path) -> Written:
    table, actions = HandTable(folder), []
    for each in TWO:
        name = table.file(each, row_group_size=30)
        gone = range(0, len(each), 4)
        size = (folder / name).stat().st_size
        actions.append(add(name, size=size, deletionVector=table.vector(gone, storage)))
    table.create(COLUMNS, *actions, features=["deletionVectors"])
    return Written(str(folder), [row for each in TWO for at, row in enumerate(each.to_pylist()) if at % 4])


def _mapped(mode: str, folder: Path) -> Written:
    table = HandTable(folder)
    fields = [
        column("row", LONG, 1, "col-a"),
        column("kind", STRING, 2, "col-b"),
        column("value", "double", 3, "col-c"),
    ]
    schema = pa.schema(
        [
            pa.field(
                each["metadata"]["delta.columnMapping.physicalName"], kind, metadata={"PARQUET:field_id": str(number)}
            )
            for number, (each, kind) in enumerate(zip(fields, TWO[0].schema.types, strict=True), start=1)
        ]
    )
    names = [table.file(pa.table(each.columns, schema=schema)) for each in TWO]
    files = [add(name, size=(folder / name).stat().st_size) for name in names]
    table.create(fields, *files, features=["columnMapping"], mode=mode)
    # Renamed, with the same physical name.
    table.commit(table.metadata([{**fields[0], "name": "renamed"}, *fields[1:]], mode=mode))
    rows = [
        {"renamed" if name == "row" else name: value for name, value in row.items()}
        for each in TWO
        for row in each.to_pylist()
    ]
    return Written(str(folder), rows)


def _widened(old: pa.DataType, old_name: str, new: pa.DataType, new_name: str, folder: Path) -> Written:
    table = HandTable(folder)
    early, late = (pa.table({"row": pa.array([1, None, 3], each)}) for each in (old, new))
    names = [table.file(each) for each in (early, late)]
    files = [add(name, size=(folder / name).stat().st_size) for name in names]
    table.create([column("row", old_name)], files[0], features=["typeWidening"])
    changes = {"delta.typeChanges": [{"toType": new_name, "fromType": old_name, "tableVersion": 1}]}
    table.commit(table.metadata([{**column("row", new_name), "metadata": changes}]), files[1])
    rows = [row for each in (early, late) for row in each.cast(pa.schema([("row", new)])).to_pylist()]
    return Written(str(folder), rows)


def _foreign(path: Path, folder: Path) -> Written:  # noqa: ARG001
    return Written(str(path), None, {"allow_empty": True})


def _cases() -> Iterator[Case]:
    for feature, write in [
        ("appends", _appended),
        ("partitions, null among them", _partitioned),
        ("overwrite", _overwritten),
        ("delete, files rewritten", _deleted),
        ("update", _updated),
        ("merge", _merged),
        ("checkpoint, without the log before it", _checkpoint),
        ("checkpoint and later commits", _checkpoint_and_more),
        ("compaction", _compacted),
        ("compaction and vacuum", _vacuumed),
        ("Z-order", _z_ordered),
        ("evolution: a column is added", _added_column),
        ("restore", _restored),
    ]:
        yield Case(feature, "deltalake", write)
    yield Case("one version", "polars", _polars)
    for storage, name in (("u", "in a file"), ("i", "in the log"), ("p", "at an absolute path")):
        yield Case(f"deletion vectors {name}", BY_HAND, partial(_vectors, storage))
    for mode in ("name", "id"):
        yield Case(f"column mapping by {mode}, a column renamed", BY_HAND, partial(_mapped, mode))
    for old, new in [
        ((pa.int32(), INTEGER), (pa.int64(), LONG)),
        ((pa.int8(), "byte"), (pa.int32(), INTEGER)),
        ((pa.int32(), INTEGER), (pa.float64(), "double")),
        ((pa.float32(), "float"), (pa.float64(), "double")),
        ((pa.decimal128(5, 2), "decimal(5,2)"), (pa.decimal128(12, 4), "decimal(12,4)")),
    ]:
        yield Case(f"type widening: {old[1]} to {new[1]}", BY_HAND, partial(_widened, *old, *new))
    for path in sorted((CORPORA / "delta-rs").glob("**/_delta_log")):
        if path.parent.name != "COVID-19_NYT":  # 1.1 million rows
            yield Case(f"delta-rs: {path.parent.name}", "various", partial(_foreign, path.parent))


def _deltalake(place: str) -> Rows:
    return arrow_rows(DeltaTable(place).scan())


FORMAT = Format(
    name="Delta",
    cases=tuple(_cases()),
    read=partial(loader_rows, DeltaDataset),
    readers={
        "deltalake": _deltalake,
        "Polars": lambda place: arrow_rows(pl.scan_delta(place).collect().to_arrow()),
    },
)
