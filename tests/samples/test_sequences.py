"""Sequences of real files against loops over lists: every sequence once, in order, whatever the row groups."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.tables.delta.tables import HandTable, add, column
from torch_dataloader_utils import (
    Decoding,
    DeltaDataset,
    Hash,
    Holdout,
    Interval,
    Ragged,
    Sequences,
    StructuredDataset,
    TensorBatch,
    TokenBatches,
    pack_tokens,
    save_inventory,
    scan_files,
)
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import Inventory, planning_fingerprint
from torch_dataloader_utils._core.row_group_task import SequencePlace
from torch_dataloader_utils._store import StoreAccess
from torch_dataloader_utils.datasets.options import TableOptions
from torch_dataloader_utils.datasets.table_rows import build_rows
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, DataError, NoDataError, NullValueError
from torch_dataloader_utils.samples.sequence_layout import sequence_spans

Row = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """A group of rows. steps: Step of `time` from each row to the next. events: Whether each row is an event."""

    steps: list[int]
    events: list[bool]


def rows_of_groups(groups: list[Group]) -> list[Row]:
    """Return the rows of all groups; `row` numbers them."""
    rows: list[Row] = []
    for number, group in enumerate(groups):
        time = 100 * number
        for step, event in zip([0, *group.steps], group.events, strict=True):
            time += step
            rows.append({"group": f"group {number}", "time": time, "event": event, "row": len(rows)})
    return rows


def write(folder: Path, rows: list[Row], cuts: list[int], files: list[int]) -> None:
    """Write the rows to files of row groups. cuts, files: Rows at which row groups end, and files."""
    schema = pa.schema([("group", pa.string()), ("time", pa.int64()), ("event", pa.bool_()), ("row", pa.int64())])
    table = pa.Table.from_pylist(rows, schema)
    for number, (start, stop) in enumerate(spans(files, len(rows))):
        with pq.ParquetWriter(folder / f"{number:03}.parquet", schema) as file:
            for first, last in spans([cut - start for cut in cuts if start < cut < stop], stop - start):
                file.write_table(table.slice(start + first, last - first))


def spans(cuts: list[int], end: int) -> list[tuple[int, int]]:
    """Return the ranges between these places of [0, end)."""
    borders = sorted({0, end, *(cut for cut in cuts if 0 < cut < end)})
    return list(pairwise(borders))


def runs_of(rows: list[Row], sequences: Sequences) -> Iterator[list[Row]]:
    """Yield the rows of each run."""
    run: list[Row] = []
    for row in rows:
        is_same = run and all(run[-1][name] == row[name] for name in sequences.by)
        if is_same and sequences.interval and row["time"] - run[-1]["time"] > sequences.interval.step:
            is_same = False
        if run and not is_same:
            yield run
            run = []
        run.append(row)
    if run:
        yield run


def expected_sequences(rows: list[Row], sequences: Sequences) -> list[tuple[list[int], list[int]]]:
    """Return the rows before the horizon, and those of the horizon, of all sequences, by loops."""
    found = []
    for run in runs_of(rows, sequences):
        numbers = [row["row"] for row in run]
        if sequences.length is None:
            found.append((numbers, []))
        elif sequences.at is not None:
            for place, row in enumerate(run):
                past, future = numbers[max(0, place - sequences.length) : place], numbers[place:][: sequences.horizon]
                is_event = sequences.at == "every row" or row["event"]
                least = sequences.length if sequences.incomplete == "drop" else 1
                if is_event and len(future) == sequences.horizon and len(past) >= least:
                    found.append((past, future))
        else:
            total, covered = sequences.length + sequences.horizon, 0
            for start in range(0, len(run), sequences.stride):
                sample = numbers[start : start + total]
                is_more = sequences.incomplete != "drop" and start + len(sample) > covered
                if len(sample) == total or (is_more and len(sample) > sequences.horizon):
                    cut = len(sample) - sequences.horizon
                    found.append((sample[:cut], sample[cut:]))
                if len(sample) < total:
                    break
                covered = start + total
    return found


def sequences_of_batch(batch: Any, sequences: Sequences) -> list[tuple[list[int], list[int]]]:
    """Return the rows of a batch's sequences in any output format, without padding."""
    past = _lists(batch["row"])
    if sequences.incomplete == "pad":
        masks = _lists(batch["sequence_mask"])
        assert all(mask == sorted(mask) for mask in masks)  # padding comes first
        for row, mask in zip(past, masks, strict=True):
            assert not any(value for value, is_row in zip(row, mask, strict=True) if not is_row)
        past = [
            [v for v, is_row in zip(row, mask, strict=True) if is_row] for row, mask in zip(past, masks, strict=True)
        ]
    future = _lists(batch["row_target"]) if sequences.horizon else [[] for _ in past]
    return list(zip(past, future, strict=True))


def _lists(column: Any) -> list[list[int]]:
    match column:
        case torch.Tensor():
            return column.tolist()
        case Ragged():
            return column.to_list()
        case pa.Array():
            return column.to_pylist()
    return [np.asarray(row).tolist() for row in column]


def load(folder: Path, sequences: Sequences, **options: Any) -> Any:
    options = {"batch_size": 3, "num_workers": 0, "decoding": Decoding(threads=1), **options}
    return StructuredDataset.create_dataloader(str(folder), sequences=sequences, **options)[0]


@st.composite
def groups(draw: st.DrawFn) -> list[Group]:
    """Groups of 1 to 14 rows, with steps of 1 to 3."""
    sizes = draw(st.lists(st.integers(1, 14), min_size=1, max_size=6))
    return [
        Group(
            draw(st.lists(st.sampled_from([1, 1, 1, 2, 3]), min_size=size - 1, max_size=size - 1)),
            draw(st.lists(st.booleans(), min_size=size, max_size=size)),
        )
        for size in sizes
    ]


incompletes = st.sampled_from(["drop", "pad", "ragged"])
gaps = st.sampled_from([None, "split", Interval(2)])
SEQUENCES = st.one_of(
    st.builds(
        lambda length, **more: Sequences(length, by="group", order="time", **more),
        st.integers(1, 6),
        horizon=st.integers(0, 3),
        stride=st.integers(1, 7),
        incomplete=incompletes,
        gaps=gaps,
    ),
    st.builds(
        lambda length, **more: Sequences(length, by="group", order="time", **more),
        st.integers(1, 6),
        horizon=st.integers(1, 3),
        at=st.sampled_from(["every row", "event"]),
        incomplete=incompletes,
        gaps=gaps,
    ),
    st.builds(lambda gaps: Sequences(None, by="group", order="time", gaps=gaps), gaps),
)
FORMATS = ["torch", "numpy", "arrow", "dict"]


@given(
    groups=groups(),
    cuts=st.lists(st.integers(1, 60), max_size=20),
    files=st.lists(st.integers(1, 60), max_size=3),
    sequences=SEQUENCES,
    output_format=st.sampled_from(FORMATS),
    batch_size=st.integers(1, 7),
)
# One row a row group: a sequence has rows of many row groups, and some row groups have none that begins there.
@example([Group([1] * 9, [True] * 10)], list(range(60)), [4], Sequences(4, horizon=2, stride=3, by="group"), "torch", 2)
@example([Group([1] * 9, [True] * 10)], list(range(60)), [4], Sequences(None, by="group"), "torch", 2)
@settings(max_examples=effort(150), deadline=None)
def test_sequences_are_those_of_loops_over_the_rows(groups, cuts, files, sequences, output_format, batch_size):
    rows = rows_of_groups(groups)
    expected = expected_sequences(rows, sequences)
    with TemporaryDirectory() as folder:
        write(Path(folder), rows, cuts, files)
        options = {"columns": ["row"], "output_format": output_format, "batch_size": batch_size}
        if not expected:
            with pytest.raises(NoDataError, match="no sequence"):
                load(folder, sequences, **options)
            return
        loader = load(folder, sequences, **options)
        batches = [sequences_of_batch(batch, sequences) for batch in loader]
    assert [sequence for batch in batches for sequence in batch] == expected
    assert len(loader) == len(batches) == -(-len(expected) // batch_size)
    assert all(len(batch) == batch_size for batch in batches[:-1])


class Meeting:
    """Processes of one count, as threads: each adds its numbers to the numbers of all others."""

    def __init__(self, count: int) -> None:
        self._count, self._given, self._barrier = count, [None] * count, Barrier(count)

    def share(self, index: int) -> Share:
        def exchange(numbers: np.ndarray) -> np.ndarray:
            self._given[index] = numbers
            self._barrier.wait()
            total = sum(self._given)
            self._barrier.wait()
            return total

        return Share(index=index, count=self._count, exchange=exchange)


def counted(folder: str, sequences: Sequences, share: Share) -> Inventory:
    options = TableOptions(sequences=sequences, columns=["row"])
    return build_rows(scan_files(folder), options, StoreAccess.of(None), share).inventory


@given(
    groups=groups(),
    cuts=st.lists(st.integers(1, 60), max_size=20),
    sequences=SEQUENCES,
    count=st.integers(2, 4),
)
@settings(max_examples=effort(40), deadline=None)
def test_processes_that_divide_the_row_groups_count_the_same_sequences(groups, cuts, sequences, count):
    rows = rows_of_groups(groups)
    assume(expected_sequences(rows, sequences))
    with TemporaryDirectory() as folder:
        write(Path(folder), rows, cuts, [20])
        alone, meeting = counted(folder, sequences, Share()), Meeting(count)
        with ThreadPoolExecutor(count) as pool:
            found = list(pool.map(lambda index: counted(folder, sequences, meeting.share(index)), range(count)))
    for each in found:
        assert planning_fingerprint(each) == planning_fingerprint(alone)
        for name in ("rows", "lead", "halo"):
            assert np.array_equal(getattr(each.sequences, name), getattr(alone.sequences, name))
        assert each.notes == alone.notes


HOURS = pa.timestamp("us", "UTC")


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three series of 40, 9 and 30 hours, in row groups of 16 rows in two files."""
    folder = tmp_path_factory.mktemp("series")
    rows = []
    for name, hours in (("a", 40), ("b", 9), ("c", 30)):
        for hour in range(hours):
            time = datetime(2024, 3, 1) + timedelta(hours=hour)
            number = len(rows)
            rows.append({"series": name, "time": time, "load": number + 0.5, "wind": -number, "site": f"at {name}"})
    schema = pa.schema(
        [("series", pa.string()), ("time", HOURS), ("load", pa.float64()), ("wind", pa.int32()), ("site", pa.string())]
    )
    table = pa.Table.from_pylist(rows, schema)
    pq.write_table(table.slice(0, 50), folder / "0.parquet", row_group_size=16)
    pq.write_table(table.slice(50), folder / "1.parquet", row_group_size=16)
    return folder


FORECAST = Sequences(
    8,
    horizon=4,
    by="series",
    order="time",
    gaps=Interval("1h", "error"),
    targets=["load"],
    known=["wind"],
    static=["site"],
)


def test_a_batch_keeps_targets_known_columns_and_static_columns_apart(series):
    batch = next(iter(load(series, FORECAST)))
    assert isinstance(batch, TensorBatch)
    assert {name: list(value.shape) for name, value in batch.items() if isinstance(value, torch.Tensor)} == {
        "time": [3, 8],
        "load": [3, 8],
        "wind": [3, 8],
        "load_target": [3, 4],
        "time_future": [3, 4],
        "wind_future": [3, 4],
    }
    assert batch.objects("series") == ["a", "a", "a"]
    assert batch.objects("site") == ["at a", "at a", "at a"]
    assert batch["load"][1].tolist() == [number + 0.5 for number in range(1, 9)]
    assert batch["load_target"][1].tolist() == [number + 0.5 for number in range(9, 13)]
    assert batch["wind_future"][2].tolist() == [-10, -11, -12, -13]


def test_a_stack_becomes_a_matrix_for_each_row_of_a_sequence(series):
    sequences = Sequences(8, horizon=4, by="series", order="time", targets=["load"])
    options = {"stack": {"x": ["load", "wind"]}, "dtypes": {"x": "float32"}, "columns": ["load", "wind"]}
    sequences = Sequences(8, horizon=4, by="series", order="time", targets=["x"])
    batch = next(iter(load(series, sequences, **options)))
    assert {name: (list(value.shape), value.dtype) for name, value in batch.items()} == {
        "x": ([3, 8, 2], torch.float32),
        "x_target": ([3, 4, 2], torch.float32),
    }
    assert batch["x"][1, :2].tolist() == [[1.5, -1.0], [2.5, -2.0]]
    assert batch["x_target"][0, 0].tolist() == [8.5, -8.0]


def test_shuffling_gives_every_sequence_once_in_another_order(series):
    def first_hours(**options):
        batches = load(series, FORECAST, shuffle=True, shuffle_rows=16, split_rows=8, **options)
        return [value for batch in batches for value in batch["load"][:, 0].tolist()]

    stored = [value for batch in load(series, FORECAST) for value in batch["load"][:, 0].tolist()]
    assert len(stored) == 29 + 0 + 19
    assert first_hours() != stored
    assert sorted(first_hours()) == sorted(stored)
    assert first_hours(shuffle_seed=1) != first_hours()


@pytest.mark.processes
def test_worker_processes_deliver_the_same_sequences(series):
    options = {"shuffle": True, "split_rows": 8}
    threads, processes = (load(series, FORECAST, num_workers=workers, **options) for workers in (0, 1))
    for batch, same in zip(threads, processes, strict=True):
        assert batch.keys() == same.keys()
        for name, value in batch.items():
            assert torch.equal(value, same[name]) if isinstance(value, torch.Tensor) else value == same[name]


def test_a_transform_sees_sequences(series):
    loader = load(series, FORECAST, transform=lambda batch: batch["load"].mean(dim=1))
    assert next(iter(loader)).tolist() == [4.0, 5.0, 6.0]


def test_columns_of_objects_become_lists(series):
    sequences = Sequences(2, by="series", order="time", incomplete="pad", stride=50)
    batch = next(iter(load(series, sequences, columns=["site", "load"])))
    assert batch.objects("site")[0] == ["at a", "at a"]


def test_structs_and_masks_of_nulls_have_a_value_for_each_row(tmp_path):
    table = pa.table({"state": [{"x": 1}, {"x": 2}, {"x": 3}], "n": [1, None, 3]})
    pq.write_table(table, tmp_path / "0.parquet", row_group_size=2)
    (batch,) = load(tmp_path, Sequences(2), nulls={"n": "mask"})
    assert batch["state"]["x"].tolist() == [[1, 2], [2, 3]]
    assert batch["n"].tolist() == [[1, 0], [0, 3]]
    assert batch["n_mask"].tolist() == [[True, False], [False, True]]


def test_filters_leave_rows_out_before_sequences_are_made(series):
    (batch,) = load(series, Sequences(3, stride=3), filters=pc.field("wind") > -6, columns=["wind"])
    assert batch["wind"].tolist() == [[0, -1, -2], [-3, -4, -5]]


def test_a_filter_that_leaves_no_row_leaves_no_sequence(series):
    with pytest.warns(UserWarning, match="The epoch has no steps"):
        loader = load(series, FORECAST, filters=pc.field("load") == 0.75)
    assert list(loader) == []


def test_whole_groups_are_held_out_together(series):
    parts = []
    for part in ("train", "holdout"):
        loader = load(series, Sequences(2, by="series"), holdout=Holdout(0.5, part, by="series"))
        parts.append({name for batch in loader for name in batch.objects("series")})
    assert set.union(*parts) == {"a", "b", "c"}
    assert not set.intersection(*parts)


def test_keys_may_be_fields_of_structs_as_for_a_holdout(series, tmp_path):
    for file in sorted(series.iterdir()):
        table = pq.read_table(file)
        keys = pc.make_struct(table["series"].combine_chunks(), table["time"].combine_chunks(), field_names=["id", "t"])
        pq.write_table(pa.table({"key": keys, "load": table["load"]}), tmp_path / file.name, row_group_size=16)
    flat = load(series, Sequences(8, by="series", order="time"), holdout=Holdout(0.5, "train", by="series"))
    sequences, options = Sequences(8, by="key.id", order="key.t"), {"holdout": Holdout(0.5, "train", by="key.id")}
    for columns in (["load"], ["load", "key.t"]):
        for batch, same in zip(load(tmp_path, sequences, columns=columns, **options), flat, strict=True):
            assert torch.equal(batch["load"], same["load"])
            assert columns == ["load"] or torch.equal(batch["key"]["t"], same["time"])


def test_groups_of_several_columns_ordered_by_dates(tmp_path):
    table = pa.table(
        {
            "shop": pa.array(["a", "a", "a", "a", "b", "b"]).dictionary_encode(),
            "item": [1, 1, 2, 2, 2, 2],
            "day": pa.array([1, 2, 1, 2, 1, 2], pa.date32()),
            "sold": [0, 1, 2, 3, 4, 5],
        }
    )
    pq.write_table(table, tmp_path / "0.parquet", row_group_size=3)
    sequences = Sequences(2, by=["shop", "item"], order="day", gaps=Interval("1d", "error"))
    (batch,) = load(tmp_path, sequences)
    assert batch["sold"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert (batch["shop"], batch["item"].tolist()) == (["a", "a", "b"], [1, 2, 2])


def test_deleted_rows_of_a_table_are_in_no_sequence(tmp_path):
    table = HandTable(tmp_path)
    path = table.file(pa.table({"row": list(range(40)), "payload": [0] * 20 + [1] * 20}), row_group_size=7)
    size = (tmp_path / path).stat().st_size
    deleted = add(path, size=size, deletionVector=table.vector([1, 2, 7, 39]))
    table.create([column("row"), column("payload")], deleted, features=["deletionVectors"])
    sequences = Sequences(4, stride=4, by="payload", order="row", incomplete="ragged")
    loader, _ = DeltaDataset.create_dataloader(str(tmp_path), sequences=sequences, num_workers=0)
    (batch,) = loader
    assert batch.ragged("row").to_list() == [
        [0, 3, 4, 5],
        [6, 8, 9, 10],
        [11, 12, 13, 14],
        [15, 16, 17, 18],
        [19],
        [20, 21, 22, 23],
        [24, 25, 26, 27],
        [28, 29, 30, 31],
        [32, 33, 34, 35],
        [36, 37, 38],
    ]
    with pytest.raises(DataError, match="row=3 follows row=0 of payload=0, a step of more than"):
        DeltaDataset.create_dataloader(str(tmp_path), sequences=Sequences(4, by="payload", order="row", gaps="error"))
    with pytest.raises(ConfigError, match="files of a table have random names"):
        DeltaDataset.create_dataloader(str(tmp_path), sequences=Sequences(4, by="payload"))


def test_a_state_binds_to_the_sequences(series):
    state = load(series, FORECAST).state_dict()
    load(series, FORECAST).load_state_dict(state)
    for other in (Sequences(8, horizon=3, by="series"), Sequences(12, by="series", order="time")):
        with pytest.raises(CheckpointMismatchError, match="sequences"):
            load(series, other).load_state_dict(state)
    with pytest.raises(CheckpointMismatchError):
        StructuredDataset.create_dataloader(str(series))[0].load_state_dict(json.loads(json.dumps(state)))


def test_the_plan_says_what_is_read_twice(series):
    plan = load(series, FORECAST).dataset.plan
    assert "48 of 8 + 4 rows in 3 runs; 51.9 % of the rows are read twice" in plan.explain()
    assert "1 run shorter than a sequence left out" in plan.explain()


def test_the_keys_are_read_once_on_a_host(series, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", str(tmp_path))
    first = load(series, FORECAST)

    def fail(*_: object) -> None:
        raise AssertionError("the keys are read again")

    monkeypatch.setattr("torch_dataloader_utils.samples.sequence_counts._Counter.counts", fail)
    assert load(series, FORECAST).state_dict() == first.state_dict()


def table_of(**columns: Any) -> pa.Table:
    return pa.table(columns)


BAD_DATA = {
    "a step back": (
        {"g": [1, 1, 1], "t": [1, 3, 2]},
        Sequences(2, by="g", order="t"),
        DataError,
        "group 0, live row 2: t=2 follows t=3 of g=1, so the rows are not in order.* ORDER BY g, t",
    ),
    "a step back between row groups": (
        {"g": [1, 1, 1, 1, 1], "t": [1, 2, 3, 4, 2]},
        Sequences(2, by="g", order="t"),
        DataError,
        "group 1, live row 0: t=2 follows t=4 of g=1",
    ),
    "a group that begins again": (
        {"g": [1, 1, 2, 2, 2, 1], "t": [1, 2, 1, 2, 3, 3]},
        Sequences(2, by="g", order="t"),
        DataError,
        r"group 1, live row 1: the group \{'g': 1\} begins again, after rows of \{'g': 2\}",
    ),
    "a null group": ({"g": [1, None], "t": [1, 2]}, Sequences(1, by="g"), NullValueError, "live row 1: 'g' is null"),
    "a null in a struct": (
        {"g": [{"id": 1}, None]},
        Sequences(1, by="g.id"),
        NullValueError,
        r"live row 1: 'g.id' is null.*pc.field\('g', 'id'\)",
    ),
    "a null order": ({"g": [1, 1], "t": [1, None]}, Sequences(1, order="t"), NullValueError, "live row 1: 't' is null"),
    "a gap": (
        {"g": [1, 1], "t": [1, 3]},
        Sequences(1, by="g", order="t", gaps="error"),
        DataError,
        "t=3 follows t=1 of g=1, a step of more than Interval",
    ),
    "a gap between row groups": (
        {"g": [1] * 5, "t": [1, 2, 3, 4, 6]},
        Sequences(1, by="g", order="t", gaps="error"),
        DataError,
        "group 1, live row 0: t=6 follows t=4 of g=1, a step of more than Interval",
    ),
    "equal order with gaps": (
        {"g": [1, 1], "t": [1, 1]},
        Sequences(1, by="g", order="t", gaps="split"),
        DataError,
        "equal values with gaps=",
    ),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_rows_are_errors_that_name_place_and_values(case, tmp_path):
    columns, sequences, kind, message = BAD_DATA[case]
    pq.write_table(pa.table(columns), tmp_path / "part-7.parquet", row_group_size=4)
    with pytest.raises(kind, match=f"part-7.parquet row .*{message}"):
        load(tmp_path, sequences)


def test_rows_of_equal_order_stay_in_stored_order(tmp_path):
    pq.write_table(pa.table({"t": [1, 1, 1, 2], "x": [3, 1, 2, 0]}), tmp_path / "0.parquet", row_group_size=2)
    (batch,) = load(tmp_path, Sequences(4, order="t"))
    assert batch["x"].tolist() == [[3, 1, 2, 0]]


def test_times_are_compared_as_instants_whatever_their_zone(tmp_path):
    # Two o'clock comes twice in this night.
    local = [datetime(2024, 10, 27, 0, 30) + timedelta(minutes=30 * step) for step in range(4)]
    times = pa.array(local, pa.timestamp("ms", "UTC")).cast(pa.timestamp("ms", "Europe/Berlin"))
    pq.write_table(pa.table({"t": times, "x": [0, 1, 2, 3]}), tmp_path / "0.parquet")
    (batch,) = load(tmp_path, Sequences(4, order="t", gaps=Interval("30min", "error")), columns=["x"])
    assert batch["x"].tolist() == [[0, 1, 2, 3]]


def test_a_file_that_is_added_in_the_middle_of_a_series_is_another_data_set(tmp_path):
    def part(number, times):
        pq.write_table(pa.table({"t": times}), tmp_path / f"{number}.parquet")

    part(0, [0, 1, 2])
    part(2, [5, 6, 7])
    sequences = Sequences(3, order="t")
    state = load(tmp_path, sequences).state_dict()
    part(1, [3, 9])
    with pytest.raises(DataError, match=r"2.parquet row group 0, live row 0: t=5 follows t=9"):
        load(tmp_path, sequences)
    part(1, [3, 4])
    with pytest.raises(CheckpointMismatchError, match="files"):
        load(tmp_path, sequences).load_state_dict(state)


def test_sequences_of_too_short_runs_are_no_data(series):
    with pytest.raises(NoDataError, match="no sequence in 79 rows of 3 runs, all shorter than 100 rows"):
        load(series, Sequences(100, by="series"))


REFUSED = {
    "a horizon of whole runs": (lambda: Sequences(None, horizon=1), "whole runs"),
    "at without a horizon": (lambda: Sequences(3, at="every row", horizon=0), "horizon begins with the row"),
    "at with a stride": (lambda: Sequences(3, at="every row", stride=2), "so does stride"),
    "targets without a horizon": (lambda: Sequences(3, targets=["load"]), "pass horizon="),
    "gaps without an order": (lambda: Sequences(3, gaps="split"), "name its column"),
    "an unknown unit": (lambda: Interval("1 fortnight"), "a whole number and a unit"),
    "a step of nothing": (lambda: Interval("0h"), "positive"),
    "an unknown way": (lambda: Sequences(3, incomplete="fill"), "incomplete"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_values_that_do_not_fit_each_other_are_refused(case):
    make, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        make()


REFUSED_OPTIONS = {
    "a group of floats": (Sequences(3, by="load"), {}, "values that repeat exactly"),
    "an order of text": (Sequences(3, order="site"), {}, "integers .int64., dates or times"),
    "an interval of numbers": (Sequences(3, order="time", gaps="split"), {}, "a length of time"),
    "an unknown column": (Sequences(3, by="serie"), {}, "'series'"),
    "an event that is no bool": (Sequences(3, at="wind"), {}, '"every row" or bools'),
    "a target that is not delivered": (
        Sequences(3, horizon=1, targets=["load"]),
        {"columns": ["wind"]},
        "batches lack",
    ),
    "two roles": (Sequences(3, horizon=1, targets=["load"], known=["load"]), {}, "only one of them"),
    "a row filter of chance": (FORECAST, {"holdout": Holdout(0.1, "train")}, "Hold out whole groups"),
    "skipped row groups": (FORECAST, {"on_error": "skip"}, "neighbours"),
    "no counts": (FORECAST, {"count_rows": False}, "neighbours"),
    "packs": (FORECAST, {"pack": pack_tokens("wind", 8)}, "both make samples"),
    "token batches": (FORECAST, {"token_batches": TokenBatches("wind"), "shuffle": True}, "both make samples"),
    "unknown nulls": (FORECAST, {"nulls": {"sight": "mask"}}, "did you mean 'site'"),
    "an unknown type": (FORECAST, {"dtypes": {"lode": "float32"}}, "did you mean 'load'"),
    "an unknown encoder": (FORECAST, {"encode": {"sight": Hash(buckets=9)}}, "did you mean 'site'"),
    "no value": ("sequences", {}, "pass Sequences"),
}


@pytest.mark.parametrize("case", REFUSED_OPTIONS)
def test_options_that_do_not_fit_are_refused(case, series):
    sequences, options, message = REFUSED_OPTIONS[case]
    with pytest.raises(ConfigError, match=message):
        load(series, sequences, **options)


@pytest.mark.parametrize("incomplete", ["drop", "ragged"])
@pytest.mark.parametrize("output_format", ["torch", "numpy"])
def test_lists_of_one_length_are_one_more_dimension(output_format, incomplete, tmp_path):
    pq.write_table(pa.table({"action": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}), tmp_path / "0.parquet")
    (batch,) = load(tmp_path, Sequences(2, incomplete=incomplete), output_format=output_format)
    actions = [np.asarray(actions).tolist() for actions in batch["action"]]
    assert actions == [[[1.0, 2.0], [3.0, 4.0]], [[3.0, 4.0], [5.0, 6.0]]]


@pytest.mark.parametrize("output_format", ["torch", "numpy"])
def test_lists_of_several_lengths_are_an_error_but_arrow_lists(output_format, tmp_path):
    pq.write_table(pa.table({"tokens": [[1], [2, 3], [4]]}), tmp_path / "0.parquet")
    with pytest.raises(DataError, match="'tokens' has lists of 1 and of 2 items"):
        next(iter(load(tmp_path, Sequences(2), output_format=output_format)))
    (batch,) = load(tmp_path, Sequences(2), output_format="arrow")
    assert batch["tokens"].to_pylist() == [[[1], [2, 3]], [[2, 3], [4]]]


def test_names_of_a_batch_are_distinct(tmp_path):
    pq.write_table(pa.table({"x": [1, 2], "x_target": [1, 2]}), tmp_path / "0.parquet")
    with pytest.raises(ConfigError, match="two columns the name 'x_target'"):
        load(tmp_path, Sequences(1, horizon=1))


def test_an_inventory_of_sequences_is_neither_saved_nor_read_as_rows(series, tmp_path):
    inventory = load(series, FORECAST).dataset.planner.inventory
    with pytest.raises(NotImplementedError, match="save the result of scan_files"):
        save_inventory(inventory, tmp_path / "inventory.parquet")
    with pytest.raises(ConfigError, match="counts sequences"):
        StructuredDataset(str(series), inventory=inventory)
    rows = scan_files(str(series))
    assert len(load(series, FORECAST, inventory=rows)) == len(load(series, FORECAST))


def test_a_row_group_takes_the_rows_of_its_sequences_from_the_next_ones():
    place = SequencePlace(rows=5, lead=2, halo=2)
    spans = sequence_spans(np.array([3]), 7, place, Sequences(3, stride=2))
    assert [each.tolist() for each in spans] == [[0, 3], [3, 6]]
