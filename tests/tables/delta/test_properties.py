"""Random tables against plain Python models of them, and against another engine."""

import datetime
import tempfile
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.tables.delta.reading import deltalake_rows, in_order, read_rows
from tests.tables.delta.tables import INTEGER, STRING, HandTable, add, column, remove
from torch_dataloader_utils import scan_delta
from torch_dataloader_utils.errors import ConfigError

KEYS = st.integers(0, 9)
TEXTS = st.sampled_from(["", "a", "b/c", "ä=%", "1"])
pytestmark = pytest.mark.filterwarnings("ignore:The epoch has no steps")

ROWS = st.lists(
    st.fixed_dictionaries(
        {"k": KEYS, "x": st.none() | st.integers(-50, 50), "f": st.none() | st.floats(width=64), "p": st.none() | TEXTS}
    ),
    min_size=1,
    max_size=12,
)
SCHEMA = pa.schema([("k", pa.int32()), ("x", pa.int64()), ("f", pa.float64()), ("p", pa.string())])

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), ROWS),
        st.tuples(st.just("append"), ROWS),
        st.tuples(st.just("overwrite"), ROWS),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("update"), KEYS),
        st.tuples(st.just("evolve"), ROWS),
        st.tuples(st.sampled_from(["checkpoint", "compact", "compact_logs", "vacuum"]), st.none()),
    ),
    max_size=6,
)


def filters() -> st.SearchStrategy[tuple[pc.Expression, Any]]:
    """A filter, and the same as a function of a row."""
    x, k, p, f = pc.field("x"), pc.field("k"), pc.field("p"), pc.field("f")
    number = st.integers(-50, 50)
    texts = TEXTS
    return st.one_of(
        number.map(lambda n: (x > n, lambda row: row["x"] is not None and row["x"] > n)),
        KEYS.map(lambda n: (k == n, lambda row: row["k"] == n)),
        KEYS.map(lambda n: (k != n, lambda row: row["k"] is not None and row["k"] != n)),
        texts.map(lambda t: (p == t, lambda row: row["p"] is not None and row["p"] == t)),
        st.just((x.is_null(), lambda row: row["x"] is None)),
        st.just((p.is_null(), lambda row: row["p"] is None)),
        number.map(lambda n: (f <= float(n), lambda row: row["f"] is not None and row["f"] <= n)),
        number.map(lambda n: (f != float(n), lambda row: row["f"] is not None and row["f"] != n)),
        st.tuples(number, texts).map(
            lambda pair: (
                (x <= pair[0]) | (p == pair[1]),
                lambda row: (row["x"] is not None and row["x"] <= pair[0]) or row["p"] == pair[1],
            )
        ),
        st.tuples(number, texts).map(
            lambda pair: (
                (x >= pair[0]) & (p == pair[1]),
                lambda row: row["x"] is not None and row["x"] >= pair[0] and row["p"] == pair[1],
            )
        ),
    )


class Model:
    """A table that deltalake writes, and its rows at every version as plain lists."""

    def __init__(self, root: str, partition_by: list[str]) -> None:
        self.root, self.partition_by = root, partition_by
        self.rows: list[dict[str, Any]] = []
        self.columns = list(SCHEMA.names)
        self.versions: dict[int, list[dict[str, Any]]] = {}
        self.write([dict.fromkeys(SCHEMA.names)], "append")

    def write(self, rows: list[dict[str, Any]], mode: str, extra: Mapping[str, pa.DataType] | None = None) -> None:
        # An empty text is null in a partition column.
        rows = [{**row, **({"p": row["p"] or None} if "p" in self.partition_by else {})} for row in rows]
        fields = [*SCHEMA, *(pa.field(name, kind) for name, kind in (extra or {}).items())]
        write_deltalake(
            self.root,
            pa.Table.from_pylist(rows, schema=pa.schema(fields)),
            mode=mode,
            partition_by=self.partition_by or None,
            **({"schema_mode": "merge"} if len(self.columns) > len(SCHEMA) or extra else {}),
        )
        self.columns += [name for name in extra or {} if name not in self.columns]
        self.rows = (self.rows if mode == "append" else []) + rows
        self.keep()

    def keep(self) -> None:
        self.rows = [{name: row.get(name) for name in self.columns} for row in self.rows]
        self.versions[DeltaTable(self.root).version()] = self.rows

    def step(self, kind: str, what: Any) -> None:
        table = DeltaTable(self.root)
        match kind:
            case "append" | "overwrite":
                self.write(what, kind)
            case "evolve":
                name = f"new{len(self.columns)}"
                self.write([{**row, name: row["k"]} for row in what], "append", {name: pa.int16()})
            case "delete":
                table.delete(f"k = {what}")
                self.rows = [row for row in self.rows if row["k"] != what]
            case "update":
                table.update(updates={"x": "7"}, predicate=f"k = {what}")
                self.rows = [{**row, "x": 7} if row["k"] == what else row for row in self.rows]
            case "checkpoint":
                table.create_checkpoint()
            case "compact":
                table.optimize.compact()
            case "compact_logs":
                if table.version() > 1:
                    table.compact_logs(0, table.version())
            case "vacuum":
                table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
                # Files of older versions are gone.
                self.versions.clear()
        self.keep()


@pytest.mark.slow
@settings(max_examples=effort(60), deadline=None)
@given(steps=STEPS, partition_by=st.sampled_from([[], ["p"], ["p", "k"]]), data=st.data())
def test_tables_of_deltalake_at_every_version_with_filters(
    steps: list[tuple[str, Any]], partition_by: list[str], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as root:
        model = Model(root, partition_by)
        for step in steps:
            model.step(*step)
        assert in_order(read_rows(root, allow_empty=True)) == in_order(model.rows)
        version = data.draw(st.sampled_from(sorted(model.versions)))
        old = model.versions[version]
        assert in_order(read_rows(root, version=version, allow_empty=True)) == in_order(old)
        expression, keeps = data.draw(filters())
        wanted = [row for row in model.rows if keeps(row)]
        assert in_order(read_rows(root, filters=expression, allow_empty=True)) == in_order(wanted)
        assert scan_delta(root, filters=expression, allow_empty=True).num_rows == len(wanted)


# What a column may be, and the types that it may be widened from.
WIDENED = {
    "long": (pa.int64(), ["byte", "short", INTEGER]),
    "double": (pa.float64(), ["float", "short", INTEGER]),
    "timestamp_ntz": (pa.timestamp("us"), ["date"]),
    "decimal(12,2)": (pa.decimal128(12, 2), ["decimal(7,2)", "byte", INTEGER]),
    STRING: (pa.string(), []),
}
STORED = {
    "byte": pa.int8(),
    "short": pa.int16(),
    INTEGER: pa.int32(),
    "float": pa.float32(),
    "date": pa.date32(),
    "decimal(7,2)": pa.decimal128(7, 2),
    **{name: kind for name, (kind, _) in WIDENED.items()},
}


def value_of(kind: str, number: int) -> Any:
    """A value that every type which `kind` was widened from has."""
    match kind:
        case "long":
            return number
        case "double":
            return float(number)
        case "timestamp_ntz":
            return datetime.datetime(2020, 1, 1) + datetime.timedelta(days=number)
        case "decimal(12,2)":
            return Decimal(number).quantize(Decimal("0.01"))
        case _:
            return f"t{number}"


def narrowed(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind == "date":
        return value.date()
    return int(value) if pa.types.is_integer(STORED[kind]) else value


@st.composite
def hand_tables(draw: st.DrawFn, root: Path, *, widened: bool = True) -> tuple[HandTable, list[dict[str, Any]]]:
    """A table with column mapping, deletion vectors, widened types, missing columns and partitions, and its rows."""
    mode = draw(st.sampled_from([None, "name", "id"]))
    kinds = draw(st.lists(st.sampled_from(sorted(WIDENED)), min_size=1, max_size=4))
    names = [f"c{number}" for number in range(len(kinds))]
    physical = {name: name if mode is None else f"col-{number}" for number, name in enumerate(names)}
    partition = draw(st.sampled_from([None, *names]))
    columns = [
        column(name, kind, None if mode is None else 10 + number, physical[name])
        for number, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    table, rows = HandTable(root), []
    table.create(
        columns,
        features=["deletionVectors", "timestampNtz", "columnMapping", *(["typeWidening"] if widened else [])],
        partitions=[partition] if partition else [],
        mode=mode,
    )
    for _ in range(draw(st.integers(0, 3))):
        count = draw(st.integers(1, 20))
        file_rows = [
            {
                name: None if draw(st.integers(0, 5)) == 0 else value_of(kind, draw(st.integers(-99, 99)))
                for name, kind in zip(names, kinds, strict=True)
            }
            for _ in range(count)
        ]
        values = {}
        if partition is not None:
            value = file_rows[0][partition]
            file_rows = [{**row, partition: value} for row in file_rows]
            values = {physical[partition]: None if value is None else str(value)}
        arrays, fields = [], []
        for number, (name, kind) in enumerate(zip(names, kinds, strict=True)):
            if name == partition:
                continue
            if draw(st.integers(0, 4)) == 0 and len(names) > 1:  # a column that was added later
                file_rows = [{**row, name: None} for row in file_rows]
                continue
            stored = draw(st.sampled_from([kind, *(WIDENED[kind][1] if widened else [])]))
            # Names in files mean nothing where ids do (though deltalake reads by them), and ids nothing where names do.
            written = f"any{number}" if mode == "id" and widened else physical[name]
            own = 10 + number if mode == "id" else draw(st.sampled_from([None, 99 - number]))
            metadata = None if own is None else {"PARQUET:field_id": str(own)}
            arrays.append(pa.array([narrowed(row[name], stored) for row in file_rows], STORED[stored]))
            fields.append(pa.field(written, STORED[stored], metadata=metadata))
        if not arrays:
            arrays.append(pa.nulls(count, pa.int8()))
            fields.append(pa.field("dropped", pa.int8(), metadata={"PARQUET:field_id": "5"} if mode == "id" else None))
        path = table.file(pa.table(arrays, schema=pa.schema(fields)), row_group_size=draw(st.integers(1, 25)))
        facts: dict[str, Any] = {"partitionValues": values, "size": (root / path).stat().st_size}
        table.commit(add(path, **facts))
        deleted: set[int] = set()
        vector = None
        for _ in range(draw(st.integers(0, 2))):
            deleted |= draw(st.sets(st.integers(0, count - 1), min_size=1))
            old = {} if vector is None else {"deletionVector": vector}
            prefix = draw(st.sampled_from(["", "ab"]))
            vector = table.vector(sorted(deleted), draw(st.sampled_from("uip")), prefix)
            table.commit(add(path, **facts, deletionVector=vector), remove(path, partitionValues=values, **old))
        rows += [row for number, row in enumerate(file_rows) if number not in deleted]
    return table, rows


@pytest.mark.slow
@settings(max_examples=effort(100), deadline=None)
@given(data=st.data())
def test_deletion_vectors_column_mapping_and_widened_types(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        _, rows = data.draw(hand_tables(Path(root)))
        assert in_order(read_rows(root, allow_empty=True)) == in_order(rows)
        assert scan_delta(root, allow_empty=True).num_rows == len(rows)
        wanted = [row for row in rows if row["c0"] is not None]
        assert in_order(read_rows(root, allow_empty=True, filters=pc.field("c0").is_valid())) == in_order(wanted)
        only = read_rows(root, allow_empty=True, columns=["c0"])
        assert in_order(only) == in_order({"c0": row["c0"]} for row in rows)


@pytest.mark.slow
@settings(max_examples=effort(20), deadline=None)
@given(data=st.data())
def test_rows_that_an_engine_of_its_own_agrees_on(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        # It refuses tables whose types may have been widened, and finds no columns by id.
        table, rows = data.draw(hand_tables(Path(root), widened=False))
        theirs = deltalake_rows(root)
        assert in_order(theirs) == in_order(rows) == in_order(read_rows(root, allow_empty=True)), table.version


@pytest.mark.slow
@settings(max_examples=effort(25), deadline=None)
@given(batches=st.lists(st.integers(1, 5), min_size=1, max_size=5), data=st.data())
def test_increments_add_up(batches: list[int], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        rows: list[list[int]] = []
        for number, count in enumerate(batches):
            rows.append([100 * number + row for row in range(count)])
            write_deltalake(root, pa.table({"x": rows[-1]}), mode="append")
        if data.draw(st.booleans()):
            DeltaTable(root).optimize.compact()  # moves rows, adds none
        first = data.draw(st.integers(0, len(batches) - 1))
        last = data.draw(st.integers(first, len(batches) - 1))
        found = read_rows(root, from_version=first, version=last, allow_empty=True)
        assert sorted(row["x"] for row in found) == [x for part in rows[first + 1 : last + 1] for x in part]


@pytest.mark.parametrize("change", ["delete", "update", "overwrite"])
def test_an_increment_over_a_change_that_removes_rows_is_an_error(change: str, tmp_path: Path) -> None:
    for number in range(2):
        write_deltalake(tmp_path, pa.table({"x": [number, 10]}), mode="append")
    match change:
        case "delete":
            DeltaTable(tmp_path).delete("x = 1")
        case "update":
            DeltaTable(tmp_path).update(updates={"x": "5"}, predicate="x = 1")
        case _:
            write_deltalake(tmp_path, pa.table({"x": [3]}), mode="overwrite")
    write_deltalake(tmp_path, pa.table({"x": [7, 8]}), mode="append")
    with pytest.raises(ConfigError, match="version 2 removed rows that earlier versions had"):
        read_rows(tmp_path, from_version=0)
    assert [row["x"] for row in read_rows(tmp_path, from_version=2)] == [7, 8]
