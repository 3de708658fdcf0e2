"""Random tables × deletes of all three kinds × evolution, read through random plans, against a model of 60 lines.

The model knows rows as {field id: value}, files with a sequence number, and what each delete says; nothing of row
groups, manifests or plans.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.types import NestedField

from tests.effort import effort
from tests.tables.iceberg.reading import in_order, pyiceberg_rows, read_rows
from tests.tables.iceberg.tables import TableWriter, field_of
from torch_dataloader_utils import plan_epoch, scan_iceberg

# Filters and deletes that leave nothing are drawn too.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:The epoch has no steps")]

_TYPES = {
    "int": st.integers(0, 4),
    "long": st.integers(0, 4),
    "string": st.sampled_from("abc"),
    "double": st.sampled_from([0.5, 1.5]),
}
_DEFAULTS = {"int": 3, "long": 3, "string": "a", "double": 0.5}


@dataclass
class ModelFile:
    """A data file: rows by field id (missing: not written), and which of them are deleted by position."""

    path: str
    rows: list[dict[int, Any]]
    sequence_number: int
    gone: set[int] = field(default_factory=set)


@dataclass
class Model:
    """A table as its rows."""

    writer: TableWriter
    files: list[ModelFile] = field(default_factory=list)
    defaults: dict[int, Any] = field(default_factory=dict)
    delete_formats: tuple[str, ...] = ("parquet", "orc")
    has_nulls: bool = True

    def values(self, kind: str) -> st.SearchStrategy[Any]:
        return st.none() | _TYPES[kind] if self.has_nulls else _TYPES[kind]

    def value(self, row: dict[int, Any], field_id: int) -> Any:
        return row[field_id] if field_id in row else self.defaults.get(field_id)

    def delete_equal(self, key_ids: list[int], keys: list[tuple[Any, ...]]) -> None:
        for file in self.files:
            for place, row in enumerate(file.rows):
                if tuple(self.value(row, key) for key in key_ids) in keys:
                    file.gone.add(place)

    def live(self) -> list[dict[str, Any]]:
        columns = [(each.field_id, each.name) for each in self.writer.schema.fields]
        return [
            {name: self.value(row, field_id) for field_id, name in columns}
            for file in self.files
            for place, row in enumerate(file.rows)
            if place not in file.gone
        ]


def build(root: Path, data: st.DataObject, kinds: list[str], *, file_formats: list[str], **options: Any) -> Model:
    """A table of up to eight snapshots, and its model."""
    version = 3 if "vector" in kinds else 2
    model = Model(TableWriter(root, format_version=version, **options))
    if "with_manifest_metadata" in options:
        # iceberg-rust reads no ORC, and drops rows whose key is null when another value is deleted.
        model.delete_formats, model.has_nulls = ("parquet",), False
    model.writer.evolve(field_of(1, "c1", "int"), field_of(2, "c2", "string"))
    append(model, data, file_formats)
    for kind in data.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=7), label="snapshots"):
        if kind == "append":
            append(model, data, file_formats)
        elif kind == "evolve":
            evolve(model, data)
        elif kind == "equality":
            delete_equal(model, data)
        else:
            delete_positions(model, data, as_vector=kind == "vector")
    return model


def append(model: Model, data: st.DataObject, file_formats: list[str]) -> None:
    fields = model.writer.schema.fields
    row = st.fixed_dictionaries({each.field_id: model.values(str(each.field_type)) for each in fields})
    rows = data.draw(st.lists(row, min_size=1, max_size=7), label="rows")
    names = {each.field_id: each.name for each in fields}
    path = model.writer.append(
        [{names[key]: value for key, value in each.items()} for each in rows],
        rows_per_group=data.draw(st.integers(1, 4)),
        file_format=data.draw(st.sampled_from(file_formats)),
        with_split_offsets=data.draw(st.sampled_from([True, False, 1])),
    )
    model.files.append(ModelFile(path, rows, len(model.writer.snapshots)))


def evolve(model: Model, data: st.DataObject) -> None:
    """Renames and reorders everything, adds a column, widens ints, and drops one column now and then."""
    number = len(model.writer.schemas)
    old = list(model.writer.schema.fields)
    if len(old) > 2 and data.draw(st.booleans(), label="drop"):
        old.remove(data.draw(st.sampled_from(old)))
    kept = [
        field_of(
            each.field_id,
            f"c{each.field_id}_{number}",
            "long" if str(each.field_type) == "int" else str(each.field_type),
        )
        for each in data.draw(st.permutations(old))
    ]
    kind, new_id = data.draw(st.sampled_from(sorted(_TYPES))), 10 + number
    options = {}
    if model.writer.format_version == 3 and data.draw(st.booleans(), label="default"):
        options["initial_default"] = model.defaults[new_id] = _DEFAULTS[kind]
    kept = [with_default(each, model) for each in kept]
    model.writer.evolve(*kept, field_of(new_id, f"c{new_id}", kind, **options))


def with_default(each: NestedField, model: Model) -> NestedField:
    return each.model_copy(update={"initial_default": model.defaults.get(each.field_id)})


def delete_equal(model: Model, data: st.DataObject) -> None:
    fields = model.writer.schema.fields
    chosen = data.draw(st.lists(st.sampled_from(fields), min_size=1, max_size=2, unique_by=lambda each: each.field_id))
    chosen.sort(key=lambda each: fields.index(each))
    keys = data.draw(st.lists(st.tuples(*(model.values(str(each.field_type)) for each in chosen)), max_size=3))
    ids = [each.field_id for each in chosen]
    rows = [dict(zip([each.name for each in chosen], key, strict=True)) for key in keys]
    model.writer.delete_equal(ids, rows, file_format=data.draw(st.sampled_from(model.delete_formats)))
    model.delete_equal(ids, keys)


def delete_positions(model: Model, data: st.DataObject, *, as_vector: bool) -> None:
    file = data.draw(st.sampled_from(model.files))
    places = data.draw(st.lists(st.integers(0, len(file.rows) - 1), min_size=1, max_size=6))
    if as_vector:
        # A vector replaces what deleted positions before it, so it repeats it all.
        model.writer.delete_vectors({file.path: sorted({*places, *file.gone})})
    else:
        model.writer.delete_positions(
            [(file.path, place) for place in places] + [("/gone/x.parquet", 0)],
            file_format=data.draw(st.sampled_from(model.delete_formats)),
        )
    file.gone.update(places)


def read_somehow(model: Model, data: st.DataObject) -> list[dict[str, Any]]:
    live = len(model.live())
    ranks = data.draw(st.integers(1, 4)) if live >= 4 else 1
    return read_rows(
        model.writer.metadata,
        num_ranks=ranks,
        batch_size=data.draw(st.integers(2, 9)),
        split_rows=data.draw(st.none() | st.integers(1, 6)),
        shuffle=data.draw(st.booleans()),
        shuffle_rows=data.draw(st.none() | st.integers(2, 12)),
        allow_empty=True,
    )


@pytest.mark.parametrize(
    "kinds",
    [["append", "evolve", "position", "equality"], ["append", "evolve", "vector", "equality"]],
    ids=["v2", "v3"],
)
@given(data=st.data())
@settings(max_examples=effort(40))
def test_any_table_through_any_plan_gives_the_models_rows(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str], data: st.DataObject
) -> None:
    model = build(tmp_path_factory.mktemp("t"), data, kinds, file_formats=["parquet", "orc"])
    assert in_order(read_somehow(model, data)) == in_order(model.live())
    inventory = scan_iceberg(model.writer.metadata)
    assert inventory.num_rows == len(model.live()) == sum(plan_epoch(inventory, num_ranks=3).rank_rows or ())


@given(data=st.data())
@settings(max_examples=effort(12))
def test_pyiceberg_reads_the_same_rows_where_it_can(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    model = build(tmp_path_factory.mktemp("t"), data, ["append", "evolve", "position"], file_formats=["parquet"])
    oracle = pyiceberg_rows(model.writer.metadata)
    assert in_order(read_somehow(model, data)) == in_order(oracle)


@given(data=st.data())
@settings(max_examples=effort(12))
def test_iceberg_rust_reads_the_same_rows_where_it_can(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    datafusion = pytest.importorskip("datafusion", reason="the oracle for equality deletes is not installed")
    rust = pytest.importorskip("pyiceberg_core.datafusion", reason="the oracle for equality deletes is not installed")
    root = tmp_path_factory.mktemp("t")
    kinds = ["append", "position", "equality"]
    options = {"path_prefix": f"file://{root}", "with_manifest_metadata": True}
    model = build(root, data, kinds, file_formats=["parquet"], **options)
    context = datafusion.SessionContext()
    table = rust.IcebergDataFusionTable(
        identifier=["ns", "t"], metadata_location=f"file://{model.writer.metadata}", file_io_properties={}
    )
    context.register_table("t", table)
    oracle = context.sql("select * from t").to_arrow_table().to_pylist()
    assert in_order(read_somehow(model, data)) == in_order(oracle)
