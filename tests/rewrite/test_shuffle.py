"""`shuffle_table`: every row once, in the order of the permutation, whatever memory and workers."""

import itertools
import json
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.rewrite.tables import contents, in_random_order, numbers_of, rows, stored, write_files, written
from tests.store.moto_server import moto_s3
from torch_dataloader_utils import StructuredDataset, open_loader, shuffle_table
from torch_dataloader_utils._core.permute import Purpose, permutation
from torch_dataloader_utils.errors import (
    ConfigError,
    CorruptFileError,
    FileChangedError,
    NoDataError,
    UnsupportedFeatureError,
)
from torch_dataloader_utils.rewrite.order import RowOrder

# Files of a few rows, several rounds of each spill file and several steps of each output file.
SMALL: dict[str, Any] = {"memory": 9_000, "file_bytes": 6_000, "row_group_bytes": 1_500}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a folder of three files, of which one has no rows: 170 rows."""
    write_files(tmp_path / "source", [[60, 1, 0, 40], [0], [30, 39]])
    return tmp_path / "source"


@settings(max_examples=effort(40))
@given(
    files=st.lists(st.lists(st.integers(0, 50), max_size=3), min_size=1, max_size=3).filter(
        lambda found: sum(map(sum, found)) > 0
    ),
    seed=st.integers(-3, 1 << 70),
    memory=st.integers(3_000, 40_000),
    file_bytes=st.integers(500, 20_000),
    group_bytes=st.integers(1, 1_000),
)
def test_rows_are_the_permutation_of_all_rows(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[int]],
    seed: int,
    memory: int,
    file_bytes: int,
    group_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("shuffle")
    total = write_files(folder / "source", files)
    report = shuffle_table(
        folder / "source", folder / "out", seed=seed, memory=memory, file_bytes=file_bytes, row_group_bytes=group_bytes
    )
    assert written(folder / "out") == in_random_order(stored(folder / "source"), seed)
    assert (report.num_rows, report.num_bytes) == (
        total,
        sum(path.stat().st_size for path in (folder / "out").glob("*.parquet")),
    )
    assert {path.name for path in folder.iterdir()} == {"source", "out"}


@settings(max_examples=effort(60))
@given(
    count=st.integers(0, 300),
    outputs=st.integers(1, 40),
    seed=st.integers(-(1 << 65), 1 << 65),
    cuts=st.sets(st.integers(0, 300), max_size=5),
)
def test_words_are_known_by_their_number_and_each_file_has_a_range_of_them(
    count: int, outputs: int, seed: int, cuts: set[int]
) -> None:
    order = RowOrder(seed=seed, outputs=outputs)
    edges = [0, *sorted(cut for cut in cuts if cut < count), count]
    parts = [order.words(start, stop - start) for start, stop in itertools.pairwise(edges)]
    words = np.concatenate(parts)
    expected = permutation(count, seed=seed, epoch=0, purpose=Purpose.ROWS)
    assert np.argsort(words, kind="stable").tolist() == expected.tolist()
    starts = order.cut(np.sort(words))
    for output, (start, stop) in enumerate(itertools.pairwise(starts)):
        inside = [int(word) for word in np.sort(words)[start:stop]]
        assert all(order.edge(output) <= word < order.edge(output + 1) for word in inside)
    assert (starts[0], starts[-1], order.edge(0), order.edge(outputs)) == (0, count, 0, 1 << 64)


def test_the_order_of_a_seed_never_changes(source: Path, tmp_path: Path) -> None:
    shuffle_table(source, tmp_path / "out", seed=7, **SMALL)
    assert numbers_of(tmp_path / "out")[:8].tolist() == GOLDEN


GOLDEN = [26, 131, 114, 62, 113, 24, 7, 107]


@pytest.mark.processes
@pytest.mark.slow
def test_files_are_the_same_bytes_for_any_memory_and_any_workers(source: Path, tmp_path: Path) -> None:
    sizes = {"file_bytes": SMALL["file_bytes"], "row_group_bytes": SMALL["row_group_bytes"]}
    shuffle_table(source, tmp_path / "plain", memory="1GiB", **sizes)
    shuffle_table(source, tmp_path / "little", memory=5_000, **sizes)
    with ThreadPoolExecutor(3) as threads:
        shuffle_table(source, tmp_path / "threads", memory=9_000, executor=threads, **sizes)
    with ProcessPoolExecutor(2, mp_context=get_context("forkserver")) as processes:
        report = shuffle_table(source, tmp_path / "processes", memory=20_000, executor=processes, **sizes)
    expected = contents(tmp_path / "plain")
    assert report.num_files >= 3
    assert len(set(expected)) == report.num_files + 1
    for name in ("little", "threads", "processes"):
        assert contents(tmp_path / name) == expected


def test_another_seed_and_other_data_give_another_order(source: Path, tmp_path: Path) -> None:
    shuffle_table(source, tmp_path / "a", seed=1)
    shuffle_table(source, tmp_path / "b", seed=2)
    assert sorted(numbers_of(tmp_path / "a")) == sorted(numbers_of(tmp_path / "b")) == list(range(170))
    assert numbers_of(tmp_path / "a").tolist() != numbers_of(tmp_path / "b").tolist()


def test_a_target_is_written_in_a_layout_that_loads_fast(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    count = 70_000
    table = pa.table(
        {
            "id": random.permutation(count),
            "noise": random.random(count),
            "kind": random.integers(0, 3, count),
            "city": random.choice(["Oslo", "Rome", "Lima"], count),
            "text": [f"the same words again and again {n % 700}" for n in range(count)],
            "score": pa.array(np.where(np.arange(count) % 50 == 0, np.nan, 1.5), from_pandas=True),
        }
    )
    pq.write_table(table, tmp_path / "source.parquet")
    report = shuffle_table(tmp_path / "source.parquet", tmp_path / "out", row_group_bytes="1MiB")
    file = pq.ParquetFile(tmp_path / "out" / "part-00000.parquet")
    assert [field.nullable for field in file.schema_arrow] == [False] * 5 + [True]
    groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
    rows_of_groups = [group.num_rows for group in groups]
    assert len(groups) > 3
    assert max(rows_of_groups) - min(rows_of_groups) <= len(groups)
    columns = {groups[0].column(i).path_in_schema: groups[0].column(i) for i in range(6)}
    assert all(column.has_offset_index and column.has_column_index for column in columns.values())
    assert (columns["noise"].compression, columns["noise"].encodings) == ("UNCOMPRESSED", ("RLE", "PLAIN"))
    assert "RLE_DICTIONARY" not in columns["id"].encodings
    assert "RLE_DICTIONARY" in columns["city"].encodings
    assert report.num_bytes < 0.8 * table.nbytes
    # Loaders read it, and two shuffles of loaders give two epochs.
    loader = open_loader(tmp_path / "out", batch_size=1024, shuffle=True, nulls={"score": ("fill", 0.0)})
    assert sum(batch.num_rows for batch in loader) == count


def test_columns_filters_and_partitions_are_those_of_the_data_set(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for year in (2023, 2024):
        write_files(tmp_path / "source" / f"year={year}", [[30, 20]])
    options: dict[str, Any] = {"partitioning": "hive", "columns": ["row", "year"], "filters": pc.field("row") > 33}
    dataset = StructuredDataset(tmp_path / "source", output_format="arrow", **options)
    shuffle_table(dataset, tmp_path / "out", seed=5)
    expected = stored(tmp_path / "source", **options)
    assert written(tmp_path / "out") == in_random_order(expected, 5)
    assert {row["year"] for row in expected} == {2023, 2024}
    everything = shuffle_table(tmp_path / "source", tmp_path / "all")
    assert "year" in dict(everything.checksums)


@pytest.mark.parametrize("kind", ["orc", "csv", "arrow"])
def test_other_formats_are_sources_too(tmp_path: Path, kind: str) -> None:
    table = rows(0, 50).select(["row", "name", "price"])
    path = tmp_path / f"table.{kind}"
    if kind == "orc":
        pyarrow.orc.write_table(table, path)
    elif kind == "csv":
        pyarrow.csv.write_csv(table, path)
    else:
        with pa.ipc.new_file(path, rows(0, 1).schema) as writer:
            writer.write_table(rows(0, 50), max_chunksize=20)
    shuffle_table(path, tmp_path / "out", seed=1)
    assert written(tmp_path / "out") == in_random_order(stored(path, kind), 1)


@pytest.mark.full
def test_files_in_a_store_are_a_source_with_a_filter(source: Path, tmp_path: Path) -> None:
    with moto_s3() as s3:
        for path in source.iterdir():
            url = s3.put(f"data/{path.name}", path.read_bytes()).rpartition("/")[0]
        dataset = StructuredDataset(
            url, filters=pc.field("row") > 40, storage_options=s3.options, output_format="arrow"
        )
        shuffle_table(dataset, tmp_path / "out", seed=3, **SMALL)
        with pytest.raises(ConfigError, match=r"not a local directory.*copy the result.*The source may lie in a store"):
            shuffle_table(dataset, f"{url}-shuffled")
    assert written(tmp_path / "out") == in_random_order(stored(source, filters=pc.field("row") > 40), 3)


def test_files_with_other_columns_are_read_as_the_data_set_reads_them(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    pq.write_table(pa.table({"row": pa.array(range(20), pa.int32())}), tmp_path / "source" / "a.parquet")
    pq.write_table(pa.table({"row": range(20, 40), "new": ["x"] * 20}), tmp_path / "source" / "b.parquet")
    dataset = StructuredDataset(tmp_path / "source", missing="null", output_format="arrow")
    shuffle_table(dataset, tmp_path / "out", seed=2)
    assert written(tmp_path / "out") == in_random_order(stored(tmp_path / "source", missing="null"), 2)


@pytest.mark.parametrize("values", [[0.5, 1.5], ["x", "y"]])
def test_a_column_named_as_a_field_of_a_struct_is_written_beside_it(tmp_path: Path, values: list[Any]) -> None:
    table = pa.table({"a.b": values, "a": [{"b": 2.5}, {"b": 3.5}]})
    (tmp_path / "source").mkdir()
    pq.write_table(table, tmp_path / "source/0.parquet")
    shuffle_table(tmp_path / "source", tmp_path / "out", seed=3)
    assert written(tmp_path / "out") == in_random_order(table.to_pylist(), 3)


def test_the_same_call_again_reports_what_is_there_and_another_is_refused(source: Path, tmp_path: Path) -> None:
    first = shuffle_table(source, tmp_path / "out", **SMALL)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    again = shuffle_table(source, tmp_path / "out", **{**SMALL, "memory": "1GiB"})
    assert (first.reused_jobs, again.reused_jobs > 5) == (0, True)
    assert (again.checksums, again.num_bytes) == (first.checksums, first.num_bytes)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    with pytest.raises(ConfigError, match="not the result of this shuffle"):
        shuffle_table(source, tmp_path / "out", seed=1, **SMALL)
    (tmp_path / "out" / "part-00001.parquet").write_bytes(b"short")
    with pytest.raises(ConfigError, match=r"part-00001.parquet is not the file"):
        shuffle_table(source, tmp_path / "out", **SMALL)


def test_targets_that_cannot_be_are_refused_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for target, says in [
        (tmp_path / "full", "not the result"),
        (tmp_path / "file", "not the result"),
        (source / "shuffled", "inside its source"),
        ("s3://bucket/shuffled", "not a local directory"),
    ]:
        with pytest.raises(ConfigError, match=says):
            shuffle_table(source, target)
    with pytest.raises(ConfigError, match="inside its source"):
        shuffle_table(f"{source}/**/*.parquet", source / "shuffled")
    with pytest.raises(ConfigError, match="holds less than 3 row groups"):
        shuffle_table(source, tmp_path / "out", memory=100)
    with pytest.raises(ConfigError, match="known row counts"):
        shuffle_table(
            StructuredDataset(source, filters=pc.field("row") > 3, count_rows=False, output_format="arrow"),
            tmp_path / "out",
        )
    with pytest.raises(ConfigError, match="without pack, transform"):
        shuffle_table(StructuredDataset(source, columns=["row"], transform=dict), tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"source", "full", "file"}
    (tmp_path / "empty").mkdir()
    assert shuffle_table(source, tmp_path / "empty").num_rows == 170


def test_a_column_that_parquet_cannot_hold_is_refused_by_name(tmp_path: Path) -> None:
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])])
    with pa.ipc.new_file(tmp_path / "a.arrow", pa.schema([("odd", union.type)])) as writer:
        writer.write_batch(pa.record_batch({"odd": union}))
    with pytest.raises(UnsupportedFeatureError, match="'odd'"):
        shuffle_table(tmp_path / "a.arrow", tmp_path / "out")


def test_a_table_without_rows_is_refused(source: Path, tmp_path: Path) -> None:
    nothing = StructuredDataset(source, filters=pc.field("row") < 0, output_format="arrow")
    with pytest.raises(NoDataError, match="no rows to shuffle"):
        shuffle_table(nothing, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_work_of_another_shuffle_and_a_second_process_are_refused(source: Path, tmp_path: Path) -> None:
    stopped = _stopped_after(3)
    with pytest.raises(KeyboardInterrupt):
        shuffle_table(source, tmp_path / "out", on_progress=stopped, **SMALL)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="work of another shuffle"):
        shuffle_table(source, tmp_path / "out", seed=8, **SMALL)

    def run_another(done: int, total: int) -> None:
        with pytest.raises(ConfigError, match="Another process is writing"):
            shuffle_table(source, tmp_path / "out", **SMALL)

    report = shuffle_table(source, tmp_path / "out", on_progress=run_another, **SMALL)
    assert report.reused_jobs == 3


def test_a_source_that_changes_meanwhile_is_refused(source: Path, tmp_path: Path) -> None:
    def change(done: int, total: int) -> None:
        write_files(source, [[60, 1, 0, 40], [0], [39, 30]])

    with pytest.raises(FileChangedError):
        shuffle_table(source, tmp_path / "out", on_progress=change, **SMALL)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("part", ["spill", "receipt"])
def test_damage_between_the_passes_is_found_by_the_checksums(source: Path, tmp_path: Path, part: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        shuffle_table(source, tmp_path / "out", on_progress=_stopped_after(2), **SMALL)
    directory = tmp_path / "out.shuffling"
    (spill,), receipt = directory.glob("spill-00000-*.arrow"), directory / "spill-00000.json"
    if part == "spill":
        data = bytearray(spill.read_bytes())
        at = data.index(b"row-")
        data[at : at + 4] = b"raw-"
        spill.write_bytes(data)
    else:
        content = json.loads(receipt.read_text())
        receipt.write_text(json.dumps({**content, "rows": content["rows"] - 1}))
    with pytest.raises(CorruptFileError, match="169 were read" if part == "receipt" else "differ in .*name"):
        shuffle_table(source, tmp_path / "out", **SMALL)
    assert not (tmp_path / "out").exists()


def test_a_spill_file_whose_structure_is_damaged_is_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        shuffle_table(source, tmp_path / "out", on_progress=_stopped_after(2), **SMALL)
    (spill,) = (tmp_path / "out.shuffling").glob("spill-00000-*.arrow")
    data, index_start = spill.read_bytes(), json.loads((spill.parent / "spill-00000.json").read_text())["index_start"]
    spill.write_bytes(bytes(index_start) + data[index_start:])
    with pytest.raises(CorruptFileError, match=r"(?s)spill-00000-.*do not decode.*Remove .*out\.shuffling"):
        shuffle_table(source, tmp_path / "out", **SMALL)


def test_a_spill_file_that_lost_its_end_is_written_again(source: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        shuffle_table(source, tmp_path / "out", on_progress=_stopped_after(2), **SMALL)
    (spill,) = (tmp_path / "out.shuffling").glob("spill-00000-*.arrow")
    spill.write_bytes(spill.read_bytes()[:-8])
    assert shuffle_table(source, tmp_path / "out", **SMALL).reused_jobs == 1
    assert written(tmp_path / "out") == in_random_order(stored(source), 42)


def _stopped_after(jobs: int) -> Any:
    def stop(done: int, total: int) -> None:
        if done == jobs:
            raise KeyboardInterrupt

    return stop
