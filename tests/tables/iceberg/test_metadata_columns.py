"""Metadata columns: where each row lies, and its lineage, against a model that knows files as lists of rows."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema

from tests.effort import effort
from tests.tables.iceberg.reading import in_order, read_rows
from tests.tables.iceberg.tables import TableWriter, field_of, ids, numbered
from torch_dataloader_utils import IcebergDataset, RowDataset, StructuredDataset, scan_files, scan_iceberg
from torch_dataloader_utils._core.metadata_columns import LINEAGE_IDS, METADATA_COLUMNS
from torch_dataloader_utils.errors import ConfigError, CorruptFileError

# Filters and deletes that leave nothing are drawn too.
pytestmark = pytest.mark.filterwarnings("ignore:The epoch has no steps")

WITH_LINEAGE = Schema(field_of(1, "id", "long"), *(field_of(key, name, "long") for name, key in LINEAGE_IDS.items()))


@dataclass
class ModelFile:
    """A data file: (id, stored row id, stored sequence number) of its rows, and what they inherit."""

    path: str
    rows: list[tuple[int, int | None, int | None]]
    first_row_id: int | None
    sequence_number: int
    gone: set[int]

    def live(self) -> list[dict[str, Any]]:
        return [
            {
                "id": number,
                "_file": self.path,
                "_pos": place,
                "_row_id": self.first_row_id + place if row_id is None and self.first_row_id is not None else row_id,
                "_last_updated_sequence_number": self.sequence_number if updated is None else updated,
            }
            for place, (number, row_id, updated) in enumerate(self.rows)
            if place not in self.gone
        ]


@st.composite
def stored_rows(draw: st.DrawFn) -> list[tuple[int, int | None, int | None]]:
    number = st.integers(0, 9)
    if draw(st.booleans()):  # new rows, whose file has no columns of lineage
        return [(each, None, None) for each in draw(st.lists(number, min_size=1, max_size=9))]
    lineage = st.none() | st.integers(10**6, 10**12)
    return draw(st.lists(st.tuples(number, lineage, lineage), min_size=1, max_size=9))


def _add(table: TableWriter, draw: st.DataObject, files: list[ModelFile]) -> None:
    parts = draw.draw(st.lists(stored_rows(), min_size=1, max_size=3))
    entries = []
    for rows in parts:
        is_new = all(row[1:] == (None, None) for row in rows)
        entries.append(
            table.new_file(
                [{"id": a, "_row_id": b, "_last_updated_sequence_number": c} for a, b, c in rows],
                schema=table.schema if is_new else WITH_LINEAGE,
                rows_per_group=draw.draw(st.integers(1, 4)),
                file_format=draw.draw(st.sampled_from(["parquet", "parquet", "orc"])),
                with_split_offsets=draw.draw(st.sampled_from([True, False, 1])),
            )
        )
    first = table.next_row_id
    table.commit("append", entries)
    for entry, rows in zip(entries, parts, strict=True):
        own = first if table.with_row_ids else None
        files.append(ModelFile(entry.path, rows, own, len(table.snapshots), set()))
        first += len(rows)


def _delete(table: TableWriter, draw: st.DataObject, files: list[ModelFile]) -> None:
    file = draw.draw(st.sampled_from(files))
    if draw.draw(st.booleans()):
        value = draw.draw(st.integers(0, 9))
        table.delete_equal([1], [{"id": value}])
        for each in files:
            each.gone |= {place for place, row in enumerate(each.rows) if row[0] == value}
    else:
        file.gone |= draw.draw(st.sets(st.integers(0, len(file.rows) - 1)))
        if file.gone:
            table.delete_vectors({file.path: sorted(file.gone)})


@pytest.mark.slow
@given(draw=st.data(), with_row_ids=st.booleans())
@settings(max_examples=effort(60))
def test_rows_know_where_they_lie_and_what_they_inherit(
    tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject, with_row_ids: bool
) -> None:
    table = numbered(tmp_path_factory.mktemp("t"), format_version=3, with_row_ids=with_row_ids)
    files: list[ModelFile] = []
    for _ in range(draw.draw(st.integers(1, 4))):
        _add(table, draw, files)
        if draw.draw(st.booleans()):
            _delete(table, draw, files)
    columns = draw.draw(st.lists(st.sampled_from(["id", *METADATA_COLUMNS]), min_size=1, unique=True))
    least = draw.draw(st.none() | st.integers(0, 9))
    wanted = [row for file in files for row in file.live() if least is None or row["id"] >= least]
    rows = read_rows(
        table.metadata,
        num_ranks=draw.draw(st.integers(1, max(1, min(3, len(wanted))))),
        batch_size=draw.draw(st.integers(2, 5)),
        shuffle=draw.draw(st.booleans()),
        columns=columns,
        filters=None if least is None else pc.field("id") >= least,
        allow_empty=True,
    )
    assert in_order(rows) == in_order({name: row[name] for name in columns} for row in wanted)
    assert all(list(row) == columns for row in rows)


def test_the_example_of_the_specification(tmp_path: Path) -> None:
    table = numbered(tmp_path, format_version=3, with_row_ids=True, next_row_id=800)
    table.append(ids(0, 25))
    table.next_row_id = 1000
    table.commit("append", [table.new_file(ids(25, 75), rows_per_group=7), table.new_file(ids(75, 125))])
    rows = read_rows(table.metadata, columns=["id", "_row_id", "_last_updated_sequence_number"])
    row_ids = [*range(800, 825), *range(1000, 1100)]
    assert sorted(tuple(row.values()) for row in rows) == [
        (number, row_id, 1 if number < 25 else 2) for number, row_id in enumerate(row_ids)
    ]


def test_snapshots_from_before_row_ids_have_none_even_if_a_manifest_names_one(tmp_path: Path) -> None:
    table = numbered(tmp_path, format_version=3)
    table.append(ids(0, 2))
    table.live[0].arguments["first_row_id"] = 7
    table.append(ids(2, 3))
    assert read_rows(table.metadata, columns=["_row_id", "_last_updated_sequence_number", "id"]) == [
        {"_row_id": None, "_last_updated_sequence_number": 1, "id": 0},
        {"_row_id": None, "_last_updated_sequence_number": 1, "id": 1},
        {"_row_id": None, "_last_updated_sequence_number": 2, "id": 2},
    ]


def test_lineage_of_tables_that_have_none_is_refused_and_places_are_not(tmp_path: Path) -> None:
    table = numbered(tmp_path)
    path = table.append(ids(0, 2))
    for name in LINEAGE_IDS:
        with pytest.raises(ConfigError, match=f"'{name}', a column of Iceberg tables of format version 3"):
            read_rows(table.metadata, columns=["id", name])
    with pytest.raises(ConfigError, match="'_row_id', a column of Iceberg"):
        StructuredDataset.create_dataloader(path, columns=["_row_id"])
    assert read_rows(table.metadata, columns=["_pos", "_file"]) == [{"_pos": place, "_file": path} for place in (0, 1)]


@pytest.mark.parametrize("first_row_id", [2**63 - 2, -(2**63), 2**63 - 1])
def test_row_ids_that_cannot_be_are_damage(tmp_path: Path, first_row_id: int) -> None:
    table = numbered(tmp_path, format_version=3, with_row_ids=True, next_row_id=first_row_id)
    if first_row_id < 0:
        table.append(ids(0, 3))
        assert [row["_row_id"] for row in read_rows(table.metadata, columns=["_row_id"])] == [
            first_row_id + place for place in range(3)
        ]
        return
    table.commit("append", [table.new_file(ids(0, 3)), table.new_file(ids(3, 5))])
    with pytest.raises(CorruptFileError, match=r"row group 0"):
        read_rows(table.metadata, columns=["_row_id"])
    assert len(read_rows(table.metadata, columns=["id"])) == 5


@pytest.mark.slow
@given(
    draw=st.data(),
    before=st.tuples(st.integers(1, 3), st.integers(2, 6)),
    after=st.tuples(st.integers(1, 3), st.integers(2, 6)),
    is_lanes=st.booleans(),
)
@settings(max_examples=effort(15))
@pytest.mark.filterwarnings("ignore:.*will come a second time")
def test_a_resume_on_other_ranks_gives_every_place_once(
    tmp_path_factory: pytest.TempPathFactory,
    draw: st.DataObject,
    before: tuple[int, int],
    after: tuple[int, int],
    is_lanes: bool,
) -> None:
    table = numbered(tmp_path_factory.mktemp("t"), format_version=3, with_row_ids=True)
    paths = [table.append(ids(100 * i, 100 * i + 40), rows_per_group=draw.draw(st.integers(5, 40))) for i in range(2)]
    gone = {path: draw.draw(st.sets(st.integers(0, 39), max_size=10)) for path in paths}
    table.delete_vectors({path: sorted(rows) for path, rows in gone.items() if rows})
    columns = ["_row_id", "id", "_pos", "_file"]
    options = {"lanes": 6} if is_lanes else {"shuffle_rows": draw.draw(st.sampled_from([None, 16]))}

    def loader(topology: tuple[int, int], rank: int, names: list[str]) -> Any:
        return IcebergDataset.create_dataloader(
            table.metadata,
            batch_size=6 if is_lanes else topology[1],
            num_ranks=topology[0],
            rank=rank,
            columns=names,
            output_format="arrow",
            num_workers=0,
            shuffle=True,
            **options,
        )[0]

    rows, states = [], []
    taken = draw.draw(st.integers(0, 3))
    has_names = draw.draw(st.booleans())  # a state does not depend on metadata columns
    for rank in range(before[0]):
        first = loader(before, rank, columns)
        batches = iter(first)
        rows += [row for _, batch in zip(range(taken), batches, strict=False) for row in batch.to_pylist()]
        states.append(first.state_dict())
    for rank in range(after[0]):
        second = loader(after, rank, columns if has_names else ["id"])
        second.load_state_dict(states[0])
        rows += [row for batch in second for row in batch.to_pylist()]
    wanted = [
        {"_row_id": 40 * i + place, "id": 100 * i + place, "_pos": place, "_file": path}
        for i, path in enumerate(paths)
        for place in range(40)
        if place not in gone[path]
    ]
    if has_names and is_lanes:  # where fewer rows than ranks are left, a rank repeats one
        assert set(in_order(rows)) == set(in_order(wanted))
    elif has_names:
        assert in_order(rows) == in_order(wanted)
    elif not is_lanes:
        assert sorted(row["id"] for row in rows) == [row["id"] for row in wanted]


FORMATS = ("parquet", "orc", "arrow", "csv", "json")


@pytest.mark.full
@pytest.mark.processes
@given(draw=st.data(), file_format=st.sampled_from(FORMATS), num_workers=st.sampled_from([0, 0, 0, 1]))
@settings(max_examples=effort(60))
def test_plain_files_of_every_format_say_where_rows_lie(
    tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject, file_format: str, num_workers: int
) -> None:
    root = tmp_path_factory.mktemp("plain")
    wanted = []
    for number in range(draw.draw(st.integers(1, 3))):
        values = draw.draw(st.lists(st.integers(0, 9), min_size=1, max_size=12))
        path = root / f"year={number}" / f"part-{number}.{file_format}"
        path.parent.mkdir()
        _write(pa.table({"x": values}), path, draw.draw(st.integers(1, 5)))
        wanted += [{"x": x, "_pos": place, "_file": str(path), "year": number} for place, x in enumerate(values)]
    least = draw.draw(st.none() | st.integers(0, max(row["x"] for row in wanted)))
    wanted = [row for row in wanted if least is None or row["x"] >= least]
    columns = draw.draw(st.permutations(["x", "_pos", "_file", "year"]))
    rows = []
    num_ranks = draw.draw(st.integers(1, max(1, min(3, len(wanted)))))
    batch_size = draw.draw(st.integers(2, 5))
    for rank in range(num_ranks):
        loader, _ = StructuredDataset.create_dataloader(
            str(root),
            file_format,
            batch_size=batch_size,
            columns=columns,
            filters=None if least is None else pc.field("x") >= least,
            partitioning="hive",
            output_format="arrow",
            num_workers=num_workers,
            num_ranks=num_ranks,
            rank=rank,
        )
        rows += [row for batch in loader for row in batch.to_pylist()]
    assert in_order(rows) == in_order({name: row[name] for name in columns} for row in wanted)


def _write(table: pa.Table, path: Path, rows_per_group: int) -> None:
    match path.suffix:
        case ".parquet":
            pq.write_table(table, path, row_group_size=rows_per_group)
        case ".orc":
            pa_orc.write_table(table, path)
        case ".arrow":
            with pa.ipc.new_file(str(path), table.schema) as writer:
                writer.write_table(table, max_chunksize=rows_per_group)
        case ".csv":
            pa_csv.write_csv(table, path)
        case ".json":
            path.write_text("".join(json.dumps(row) + "\n\n" for row in table.to_pylist()))


def test_a_column_of_that_name_in_the_data_is_that_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"_pos": [7, 8], "_row_id": ["a", "b"]}), tmp_path / "x.parquet")
    rows = RowDataset(str(tmp_path), columns=["_pos", "_row_id", "_file"])
    assert [rows[0][name] for name in ("_pos", "_row_id")] == [7, "a"]
    assert rows[1]["_file"] == str(tmp_path / "x.parquet")


def test_an_inventory_that_was_scanned_without_them_serves_too(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "x.parquet", row_group_size=3)
    inventory = scan_files(str(tmp_path))
    rows = RowDataset(str(tmp_path), inventory=inventory, columns=["_pos"])
    assert [rows[index]["_pos"] for index in range(10)] == list(range(10))
    loader, _ = StructuredDataset.create_dataloader((), inventory=inventory, columns=["_pos", "x"], num_workers=0)
    (batch,) = loader
    assert batch["_pos"].tolist() == batch["x"].tolist()


def test_positions_in_text_that_was_not_counted_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("x\n" + "1\n" * 100)
    options = {"count_rows": False, "num_workers": 0, "output_format": "arrow"}
    loader, _ = StructuredDataset.create_dataloader(str(tmp_path), "csv", columns=["_pos"], **options)
    assert [row for batch in loader for row in batch["_pos"].to_pylist()] == list(range(100))


def test_scans_take_their_names_and_say_which_others_are_not_read(tmp_path: Path) -> None:
    table = numbered(tmp_path)
    table.append(ids(0, 3))
    plain, named = (scan_iceberg(table.metadata, columns=columns) for columns in (["id"], ["id", "_pos"]))
    assert plain.fingerprint() == named.fingerprint()
    with pytest.raises(
        ConfigError, match=r"'_spec_id', which is not a column.*Of metadata columns, _file, _pos, _row_id"
    ):
        scan_iceberg(table.metadata, columns=["_spec_id"])
    with pytest.raises(ConfigError, match="_pos"):
        scan_iceberg(table.metadata, filters=pc.field("_pos") > 3)
