"""Tables whose metadata pyiceberg refuses: newer than it, older, or with what it does not know.

Oracles are a model of a few rows and, for what pyiceberg parses, pyiceberg.
"""

import datetime
import gzip
import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from copy import deepcopy
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog
from pyiceberg.table.metadata import TableMetadataUtil

from tests.effort import effort
from tests.tables.iceberg.reading import in_order, read_rows
from tests.tables.iceberg.servers import RestCatalog, rest_catalog, sqlite_catalog
from tests.tables.iceberg.tables import TableWriter, field_of, ids, numbered
from torch_dataloader_utils import IcebergDataset, scan_iceberg
from torch_dataloader_utils.errors import ConfigError, CorruptFileError, LoaderError, UnsupportedFeatureError
from torch_dataloader_utils.tables.iceberg.table_metadata import acceptable

FILES = Path(__file__).parent / "files"
Metadata = dict[str, Any]


@pytest.fixture(scope="module")
def rest() -> Iterator[RestCatalog]:
    with rest_catalog() as catalog:
        yield catalog


def rewritten(table: TableWriter, change: Callable[[Metadata], object]) -> str:
    """The path of the table's metadata after a change."""
    path = Path(table.metadata)
    metadata = json.loads(path.read_text())
    change(metadata)
    path.write_text(json.dumps(metadata))
    return str(path)


def with_field(**more: Any) -> Callable[[Metadata], None]:
    """Adds a field n with id 2."""

    def change(metadata: Metadata) -> None:
        metadata["schemas"][0]["fields"].append({"id": 2, "name": "n", "required": False, **more})
        metadata["last-column-id"] = 9

    return change


def as_list(element: Any) -> Metadata:
    return {"type": "list", "element-id": 4, "element": element, "element-required": False}


def as_map(value: Any) -> Metadata:
    return {"type": "map", "key-id": 4, "key": "string", "value-id": 5, "value": value, "value-required": False}


def as_struct(kind: Any, **more: Any) -> Metadata:
    return {"type": "struct", "fields": [{"id": 4, "name": "x", "required": False, "type": kind, **more}]}


# As pyiceberg 0.12 does not parse them, and the text that names them.
UNKNOWN_TYPES = [
    ("geometry(srid:4326)", r"geometry\(srid:4326\)"),
    ("geography(srid:4326, vincenty)", r"geography\(srid:4326, vincenty\)"),
    ("geometry", "geometry"),  # which it parses
    ("quaternion", "quaternion"),
    ("decimal(5)", r"decimal\(5\)"),
    ({"type": "quaternion", "parts": 4}, "quaternion"),
    (as_list("quaternion"), "quaternion"),
    (as_map("geometry(OGC:CRS84)"), r"geometry\(OGC:CRS84\)"),
    (as_struct("quaternion"), "quaternion"),
    (as_list(as_struct(as_map("quaternion"))), "quaternion"),
]


@pytest.mark.parametrize(("kind", "name"), UNKNOWN_TYPES)
def test_a_column_of_a_type_that_nobody_knows_costs_that_column(
    tmp_path: Path, rest: RestCatalog, kind: Any, name: str
) -> None:
    table = numbered(tmp_path, format_version=3)
    table.delete_vectors({table.append(ids(0, 5)): [2]})
    path = rewritten(table, with_field(type=kind))
    rest.tables["ns.newer"] = path
    packed = tmp_path / "metadata" / "v99.gz.metadata.json"
    packed.write_bytes(gzip.compress(Path(path).read_bytes()))
    for place, config in ((path, None), (str(packed), None), ("ns.newer", {"type": "rest", "uri": rest.uri})):
        rows = read_rows(place, config, columns=["id"], filters=pc.field("id") > 0)
        assert sorted(row["id"] for row in rows) == [1, 3, 4]
        for columns in (None, ["n", "id"]):
            with pytest.raises(
                UnsupportedFeatureError, match=rf"column n holds values of Iceberg type {name}, .*columns=\['id'\]"
            ):
                scan_iceberg(place, config, columns=columns)


@pytest.mark.parametrize("is_packed", [False, True])
def test_catalogs_that_read_metadata_files_give_such_tables_too(tmp_path: Path, is_packed: bool) -> None:
    config = sqlite_catalog(tmp_path)
    table = numbered(tmp_path / "t", format_version=3)
    table.append(ids(1, 3))
    text = Path(table.metadata).read_bytes()
    path = tmp_path / ("v1.gz.metadata.json" if is_packed else "v1.metadata.json")
    path.write_bytes(gzip.compress(text) if is_packed else text)
    with closing(load_catalog("default", **config)) as catalog:
        catalog.create_namespace("db")
        catalog.register_table("db.t", str(path))
    text = Path(rewritten(table, with_field(type="geometry(x)"))).read_bytes()
    path.write_bytes(gzip.compress(text) if is_packed else text)
    for impl in (None, "pyiceberg.io.pyarrow.PyArrowFileIO", "pyiceberg.io.fsspec.FsspecFileIO"):
        chosen = config if impl is None else {**config, "py-io-impl": impl}
        assert read_rows("db.t", chosen, columns=["id"]) == ids(1, 3)
        with pytest.raises(UnsupportedFeatureError, match="column n holds values of Iceberg type geometry"):
            scan_iceberg("db.t", chosen)


def test_all_columns_that_cannot_be_read_are_named_at_once(tmp_path: Path) -> None:
    table = numbered(tmp_path, format_version=3)
    table.evolve(field_of(1, "id", "long"), *(field_of(10 + i, f"c{i}", "long") for i in range(3)))
    table.append(ids(0, 1))

    def change(metadata: Metadata) -> None:
        for index, kind in ((1, "quaternion"), (3, "geometry(x)")):
            metadata["schemas"][-1]["fields"][index]["type"] = kind

    path = rewritten(table, change)
    with pytest.raises(
        UnsupportedFeatureError,
        match=r"column c0 holds values of Iceberg type quaternion, c2 holds values of Iceberg type geometry\(x\), "
        r"which are not supported\. Leave them out: columns=\['id', 'c1'\]",
    ):
        scan_iceberg(path)


@pytest.mark.processes
def test_columns_beside_a_shredded_variant_and_a_geometry_are_read(tmp_path: Path) -> None:
    """The file was written by DuckDB 2.0.1: id (1, 2), a shredded variant, a geometry; with field ids."""
    table = numbered(tmp_path, format_version=3, with_row_ids=True)
    path = table.append(ids(1, 3))
    shutil.copy(FILES / "variant_and_geometry.parquet", path)

    def change(metadata: Metadata) -> None:
        place = {"id": 3, "name": "place", "required": False, "type": "geometry(OGC:CRS84)"}
        metadata["schemas"][0]["fields"].append(place)

    rewritten(table, with_field(type="variant"))
    rewritten(table, change)
    for options in ({}, {"num_workers": 1}, {"filters": pc.field("id") > 0}):
        rows = read_rows(table.metadata, columns=["_row_id", "id"], **options)
        assert rows == [{"_row_id": 0, "id": 1}, {"_row_id": 1, "id": 2}]
    with pytest.raises(UnsupportedFeatureError, match="variant n is shredded"):
        read_rows(table.metadata, columns=["n"])


@pytest.mark.parametrize("has_ids", [False, True])
def test_a_variant_is_its_two_binaries(tmp_path: Path, has_ids: bool) -> None:
    table = numbered(tmp_path, format_version=3)
    table.append(ids(0, 1))
    path = table.append(ids(1, 3))
    value = {"value": b"\x0c\7", "metadata": b"\1\0\0"}
    stored = pa.array([value, None], pa.struct([(name, pa.binary()) for name in value]))
    fields = [pa.field("id", pa.int64()), pa.field("n", stored.type)]
    if has_ids:
        fields = [each.with_metadata({"PARQUET:field_id": str(key)}) for key, each in enumerate(fields, start=1)]
    pq.write_table(pa.table([pa.array([1, 2]), stored], schema=pa.schema(fields)), path)
    rewritten(table, with_field(type="variant"))
    rows = read_rows(table.metadata)
    assert sorted(rows, key=lambda row: row["id"]) == [
        {"id": 0, "n": None},
        {"id": 1, "n": value},
        {"id": 2, "n": None},
    ]


PARTS = [
    {"transform": "zorder"},
    {"transform": "bucket"},
    {"transform": "bucketv2[4]"},
    {"transform": "truncate[x]"},
    {"transform": "multi", "source-ids": [1, 2]},
    {"transform": "zorder", "source-ids": [1]},
]


@pytest.mark.parametrize("part", PARTS, ids=str)
@pytest.mark.parametrize("kind", ["int", "string", "double"])
def test_a_transform_that_nobody_knows_prunes_nothing(tmp_path: Path, part: Metadata, kind: str) -> None:
    table = TableWriter(tmp_path, format_version=3)
    table.evolve(field_of(1, "id", "long"), field_of(2, "k", kind))
    table.partition_by((2, "identity"))
    values = {"int": [1, 2], "string": ["a", "b"], "double": [0.5, 2.222]}[kind]
    for number, value in enumerate(values):
        table.append([{"id": 2 * number, "k": value}, {"id": 2 * number + 1, "k": value}], partition=(value,))
    table.delete_equal([1], [{"id": 1}], partition=(values[0],))

    def change(metadata: Metadata) -> None:
        (field,) = metadata["partition-specs"][0]["fields"]
        if "source-ids" in part:
            del field["source-id"]
        field.update(part)

    path = rewritten(table, change)
    wanted = [{"id": i, "k": values[i // 2]} for i in (0, 2, 3)]
    assert in_order(read_rows(path)) == in_order(wanted)
    for row_filter, kept in ((pc.field("k") == values[1], [2, 3]), (pc.field("id") < 2, [0])):
        assert sorted(row["id"] for row in read_rows(path, filters=row_filter)) == kept


def test_partitions_by_nanoseconds(tmp_path: Path) -> None:
    table = TableWriter(tmp_path, format_version=3)
    table.evolve(field_of(1, "id", "long"), field_of(2, "t", "timestamp_ns"))
    table.partition_by((2, "identity"))
    moment = np.datetime64("2020-01-01T00:00:00.000000005", "ns")
    table.append([{"id": 1}], partition=(int(moment.astype(np.int64)),), without_columns=("t",))
    table.append([{"id": 2}], partition=(None,), without_columns=("t",))
    loader, _ = IcebergDataset.create_dataloader(table.metadata, output_format="arrow", num_workers=0)
    (batch,) = loader
    assert batch["t"].cast(pa.int64()).to_pylist() == [int(moment.astype(np.int64)), None]
    assert read_rows(table.metadata, columns=["id"], filters=pc.field("t") > pa.scalar(0, pa.timestamp("ns"))) == [
        {"id": 1}
    ]


MULTI = {"source-ids": [1, 2], "transform": "zorder", "direction": "asc", "null-order": "nulls-first"}
UNUSED: list[Metadata] = [
    {"sort-orders": [{"order-id": 5, "fields": [MULTI]}], "default-sort-order-id": 5},
    {"statistics": [{"later": 1}], "partition-statistics": [{"later": 1}]},
    {"encryption-keys": [{"key-id": "5", "encrypted-key-metadata": "c"}], "a-new-key": {"x": [1]}},
    {"properties": {"torch-dataloader-utils.beside": '{"types": {"1": "quaternion"}, "manifests": 5}'}},
]


@pytest.mark.parametrize("unused", UNUSED, ids=lambda each: next(iter(each)))
def test_what_is_not_used_may_be_anything(tmp_path: Path, unused: Metadata) -> None:
    table = numbered(tmp_path, format_version=3)
    table.append(ids(0, 3))
    path = rewritten(table, lambda metadata: metadata.update(unused))
    assert read_rows(path) == ids(0, 3)


@pytest.mark.parametrize("is_told", [True, False])
def test_an_operation_that_nobody_knows_is_no_append(tmp_path: Path, is_told: bool) -> None:
    table = numbered(tmp_path)
    table.append(ids(0, 3))
    table.append(ids(3, 5))
    table.append(ids(5, 6))

    def change(metadata: Metadata) -> None:
        if is_told:
            metadata["snapshots"][1]["summary"].update(operation="transmute")
        else:  # as version 1 may have it
            del metadata["snapshots"][1]["summary"]

    path = rewritten(table, change)
    assert sorted(row["id"] for row in read_rows(path)) == list(range(6))
    with pytest.raises(ConfigError, match="rewritten rows would be delivered twice"):
        read_rows(path, from_snapshot_id=1001)
    assert read_rows(path, from_snapshot_id=1001, allow_rewrites=True) == [{"id": 5}]


def version_1(metadata: Metadata) -> None:
    """Metadata as the first writers left them: one schema, partition fields without ids, manifests in snapshots."""
    metadata["format-version"] = 1
    metadata["schema"] = metadata["schemas"][-1]
    metadata["partition-spec"] = metadata["partition-specs"][-1]["fields"]
    for part in (*metadata["partition-spec"], *(p for spec in metadata["partition-specs"] for p in spec["fields"])):
        part.pop("field-id", None)
    for name in ("schemas", "current-schema-id", "last-sequence-number", "refs", "sort-orders"):
        del metadata[name]


@pytest.mark.parametrize("is_partitioned", [False, True])
@pytest.mark.parametrize("by_rest", [False, True])
def test_snapshots_of_version_1_that_name_their_manifests_themselves(
    tmp_path: Path, rest: RestCatalog, is_partitioned: bool, by_rest: bool
) -> None:
    table = numbered(tmp_path, with_manifest_metadata=True)
    if is_partitioned:
        table.partition_by((1, "identity"))
    for number in range(3):
        table.append(ids(number, number + 1), partition=(number,) if is_partitioned else ())
    # Each snapshot of the writer writes its new file and the older ones into a manifest each.
    manifests = {snapshot: _manifests_of(table, index) for index, snapshot in enumerate((1001, 1002, 1003))}

    def change(metadata: Metadata) -> None:
        version_1(metadata)
        for snapshot in metadata["snapshots"]:
            snapshot["manifests"] = manifests[snapshot["snapshot-id"]]
            for name in ("manifest-list", "sequence-number", "summary"):
                del snapshot[name]

    path = rewritten(table, change)
    rest.tables["ns.first"] = path
    place, config = ("ns.first", {"type": "rest", "uri": rest.uri}) if by_rest else (path, None)
    assert sorted(row["id"] for row in read_rows(place, config)) == [0, 1, 2]
    assert sorted(row["id"] for row in read_rows(place, config, snapshot_id=1002)) == [0, 1]
    assert read_rows(place, config, filters=pc.field("id") == 1) == [{"id": 1}]
    places = read_rows(place, config, columns=["id", "_pos"])
    assert sorted((row["id"], row["_pos"]) for row in places) == [(0, 0), (1, 0), (2, 0)]
    Path(manifests[1003][0]).unlink()
    with pytest.raises(LoaderError, match="names a file that does not exist"):
        scan_iceberg(place, config)


def _manifests_of(table: TableWriter, index: int) -> list[str]:
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.manifest import read_manifest_list

    file = PyArrowFileIO().new_input(table.snapshots[index]["manifest-list"])
    return [manifest.manifest_path for manifest in read_manifest_list(file)]


def test_version_2_has_to_have_what_version_1_may_leave_out(tmp_path: Path) -> None:
    def without_list(metadata: Metadata) -> None:
        metadata["snapshots"][0]["manifests"] = [metadata["snapshots"][0].pop("manifest-list")]

    for change in (without_list, lambda metadata: metadata["partition-specs"][0]["fields"][0].pop("field-id")):
        table = numbered(tmp_path)
        table.partition_by((1, "identity"))
        table.append(ids(0, 1), partition=(0,))
        with pytest.raises(CorruptFileError, match="does not parse"):
            scan_iceberg(rewritten(table, change))
        shutil.rmtree(tmp_path)


# -- initial defaults

_TIME = st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1))


def _stamp(moment: datetime.datetime, nanoseconds: int, zone: str) -> tuple[str, int]:
    value = int(np.datetime64(moment, "us").astype("datetime64[ns]").astype(np.int64)) + nanoseconds
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond:06}{nanoseconds:03}{zone}", value


# A type, and (JSON, value) of it; nanoseconds as numbers.
_PRIMITIVES: dict[str, st.SearchStrategy[tuple[Any, Any]]] = {
    "boolean": st.booleans().map(lambda value: (value, value)),
    "int": st.integers(-(2**31), 2**31 - 1).map(lambda value: (value, value)),
    "long": st.integers(-(2**63), 2**63 - 1).map(lambda value: (value, value)),
    "double": st.floats(allow_nan=False, allow_infinity=False).map(lambda value: (value, value)),
    "string": st.text(max_size=5).map(lambda value: (value, value)),
    "date": st.dates().map(lambda value: (value.isoformat(), value)),
    "time": st.times().map(lambda value: (value.isoformat(), value)),
    "timestamp": _TIME.map(lambda value: (value.isoformat(), value)),
    "timestamptz": _TIME.map(lambda value: (value.isoformat() + "+00:00", value.replace(tzinfo=datetime.UTC))),
    "timestamp_ns": st.builds(lambda value, ns: _stamp(value, ns, ""), _TIME, st.integers(0, 999)),
    "timestamptz_ns": st.builds(lambda value, ns: _stamp(value, ns, "+00:00"), _TIME, st.integers(0, 999)),
    "decimal(9, 2)": st.integers(-(10**9) + 1, 10**9 - 1).map(
        lambda value: (str(Decimal(value).scaleb(-2)), Decimal(value).scaleb(-2))
    ),
    "binary": st.binary(max_size=4).map(lambda value: (value.hex(), value)),
    "fixed[3]": st.binary(min_size=3, max_size=3).map(lambda value: (value.hex(), value)),
    "uuid": st.uuids().map(lambda value: (str(value), value)),
}


@st.composite
def defaulted(draw: st.DrawFn, number: int = 10) -> tuple[Any, Any, Any, int]:
    """(type, JSON of its default, the value, a free field id)."""
    form = draw(st.sampled_from(["primitive", "primitive", "list", "map", "struct"])) if number < 14 else "primitive"
    if form == "primitive":
        kind = draw(st.sampled_from(sorted(_PRIMITIVES) if number == 10 else sorted(set(_PRIMITIVES) - {"uuid"})))
        return kind, *draw(_PRIMITIVES[kind]), number
    kind, stored, value, last = draw(defaulted(number + 2))
    if form == "list":
        repeat = draw(st.integers(0, 2))
        whole = {"type": "list", "element-id": number + 1, "element": kind, "element-required": False}
        return whole, [stored] * repeat, [value] * repeat, last
    if form == "map":
        whole = {"type": "map", "key-id": number, "key": "string", "value-id": number + 1, "value": kind}
        return whole | {"value-required": False}, {"keys": ["a"], "values": [stored]}, [("a", value)], last
    field = {"id": number + 1, "name": "x", "required": False, "type": kind}
    where = draw(st.sampled_from(["struct", "field", "nowhere"]))
    if where == "field":
        field["initial-default"] = stored
    whole = {"type": "struct", "fields": [field]}
    given = {str(number + 1): stored} if where == "struct" else {}
    return whole, given, {"x": None if where == "nowhere" else value}, last


@pytest.mark.slow
@given(field=defaulted())
@settings(max_examples=effort(150))
def test_initial_defaults_of_all_types(
    tmp_path_factory: pytest.TempPathFactory, field: tuple[Any, Any, Any, int]
) -> None:
    kind, stored, value, _ = field
    table = numbered(tmp_path_factory.mktemp("t"), format_version=3)
    table.append(ids(0, 2))
    path = rewritten(table, with_field(type=kind, **{"initial-default": stored, "write-default": stored}))
    loader, _ = IcebergDataset.create_dataloader(path, output_format="arrow", num_workers=0)
    (batch,) = loader
    assert _plain(batch["n"].to_pylist()) == [value, value]
    if isinstance(kind, str) and not kind.endswith("_ns"):  # what pyiceberg parses
        metadata = TableMetadataUtil.parse_raw(Path(path).read_text())
        assert metadata.schema().find_field("n").initial_default == value


def _plain(value: Any) -> Any:
    """The value with times of nanoseconds, which are those of pandas, as numbers."""
    if hasattr(value, "nanosecond"):
        return value.value
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return type(value)(map(_plain, value)) if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("timestamp_ns", "soon"),
        ("long", "7"),
        ("int", 2**40),
        ("uuid", "f79c3e09"),
        ("fixed[2]", "0aff00"),
        ("decimal(4, 2)", "123.45"),
        ("binary", "xyz"),
        ("date", 5),
        (as_struct("long"), 5),
        (as_list("long"), {"a": 1}),
        (as_map("long"), [1]),
    ],
)
def test_defaults_that_are_no_value_of_their_type_are_damage_of_that_column(
    tmp_path: Path, kind: Any, default: Any
) -> None:
    table = numbered(tmp_path, format_version=3)
    table.append(ids(0, 2))
    path = rewritten(table, with_field(type=kind, **{"initial-default": default}))
    with pytest.raises(CorruptFileError, match=r"field n \(id 2\) an initial default that is not"):
        scan_iceberg(path)
    assert read_rows(path, columns=["id"]) == ids(0, 2)


# -- hostile metadata

_JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    2**63,
    2**70,
    1.5,
    "",
    "x",
    "unknown",
    [],
    {},
    [[]],
    [None],
    {"type": 5},
    {"x": {}},
]


@pytest.mark.slow
@given(draw=st.data(), version=st.sampled_from([1, 2, 3]), by_rest=st.booleans())
@settings(max_examples=effort(100))
@pytest.mark.filterwarnings("ignore")
def test_whatever_metadata_say_rows_are_right_or_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, rest: RestCatalog, draw: st.DataObject, version: int, by_rest: bool
) -> None:
    table = numbered(tmp_path_factory.mktemp("t"), format_version=max(version, 2), with_row_ids=version == 3)
    table.partition_by((1, "bucket[4]"))
    table.append(ids(0, 3), partition=(1,))

    def change(metadata: Metadata) -> None:
        with_field(type=as_struct("variant"), **{"initial-default": {}})(metadata)
        if version == 1:
            version_1(metadata)
        for _ in range(draw.draw(st.integers(1, 3))):
            _spoil(metadata, draw)

    path = rewritten(table, change)
    rest.tables["ns.odd"] = path
    place, config = ("ns.odd", {"type": "rest", "uri": rest.uri}) if by_rest else (path, None)
    try:
        rows = read_rows(place, config, columns=["id", "_pos"], allow_empty=True)
    except LoaderError:
        return
    assert [(row["id"], row["_pos"]) for row in rows] in (
        [],
        [(0, 0), (1, 1), (2, 2)],
        [(None, 0), (None, 1), (None, 2)],
    )


def _spoil(node: Any, draw: st.DataObject) -> None:
    """Put junk somewhere, or leave something out."""
    places = [(node, key) for key in (node if isinstance(node, dict) else range(len(node)))]
    for holder, key in places:
        inside = holder[key]
        if isinstance(inside, (dict, list)):
            places += [(inside, each) for each in (inside if isinstance(inside, dict) else range(len(inside)))]
    if not places:
        return
    holder, key = places[draw.draw(st.integers(0, len(places) - 1))]
    junk = deepcopy([*_JUNK, "leave out"])[draw.draw(st.integers(0, len(_JUNK)))]
    if junk == "leave out":
        del holder[key]
    else:
        holder[key] = junk


@pytest.mark.parametrize("text", [b"", b"[]", b"5", b"{" * 100_000, b'{"format-version": 2', b"\xff\xfe", b"null"])
def test_what_is_no_metadata_stays_what_it_is(text: bytes) -> None:
    assert acceptable(text) == text


@pytest.mark.slow
def test_plain_metadata_stay_what_they_mean(tmp_path: Path) -> None:
    table = TableWriter(tmp_path, format_version=3)
    table.evolve(field_of(1, "id", "long"), field_of(2, "s", "string"))
    table.partition_by((1, "bucket[8]"), (2, "truncate[3]"), (1, "void"))
    table.append([{"id": 1, "s": "abcd"}], partition=(random.Random(5).randrange(8), "abc", None))
    text = Path(table.metadata).read_bytes()
    assert TableMetadataUtil.parse_raw(acceptable(text).decode()) == TableMetadataUtil.parse_raw(text.decode())
