"""Between epochs: the newest data are read, and within an epoch nothing changes."""

import logging
import os
import pickle
import re
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.faults.ranks import RANKS, run_ranks
from tests.refresh.sources import KINDS, DeltaSource, DirectorySource, IcebergSource
from torch_dataloader_utils import (
    DeltaDataset,
    StructuredDataset,
    blend,
    load_inventory,
    save_inventory,
    scan_delta,
    scan_files,
)
from torch_dataloader_utils._core.table_snapshot import TableSnapshot
from torch_dataloader_utils.errors import (
    CheckpointMismatchError,
    ConfigError,
    FileChangedError,
    LoaderError,
    NoDataError,
    SchemaError,
)

OPTIONS: dict[str, Any] = {"batch_size": 16, "num_workers": 0, "shuffle": True}


@pytest.fixture(params=list(KINDS))
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    source = KINDS[request.param](tmp_path / "data")
    source.create()
    source.append(range(100))
    return source


def rows_of(loader: Any, steps: int | None = None) -> list[int]:
    rows: list[int] = []
    for step, batch in enumerate(loader, start=1):
        rows += batch["id"].tolist()
        if step == steps:
            break
    return rows


@pytest.mark.slow
def test_each_epoch_reads_what_was_there_when_it_began(source: Any) -> None:
    loader, dataset = source.open(refresh="epoch", **OPTIONS)
    for epoch in range(4):
        loader.set_epoch(epoch)
        expected, length = source.rows(), len(loader)
        assert dataset.snapshot_id == source.snapshot_id()
        batches = iter(loader)
        first = next(batches)["id"].tolist()
        source.append(range(100 * (epoch + 1), 100 * (epoch + 1) + 37))
        rest = [batch["id"].tolist() for batch in batches]
        assert sorted(chain(first, *rest)) == expected
        assert 1 + len(rest) == length == len(loader)


@pytest.mark.slow
def test_by_default_data_stay_until_a_refresh_which_says_what_changed(
    source: Any, caplog: pytest.LogCaptureFixture
) -> None:
    loader, dataset = source.open(**OPTIONS)
    source.append(range(100, 150))
    source.append(range(200, 250))
    for epoch in range(2):
        loader.set_epoch(epoch)
        assert sorted(rows_of(loader)) == list(range(100))
    with caplog.at_level(logging.INFO, "torch_dataloader_utils"):
        change = dataset.refresh()
    assert (change.added_files, change.removed_files, change.added_rows, change.removed_rows) == (2, 0, 100, 0)
    assert "2 files added, 0 removed; 100 rows added, 0 removed" in str(change)
    assert str(change) in caplog.text
    assert str(change) in loader.plan.explain()
    loader.set_epoch(2)
    assert sorted(rows_of(loader)) == source.rows()
    plan = loader.plan
    assert not dataset.refresh()
    assert loader.plan is plan

    source.compact()
    change = dataset.refresh()
    assert (change.added_files, change.removed_files, change.added_rows, change.removed_rows) == (1, 3, 200, 200)


def test_within_an_epoch_a_refresh_is_refused_and_changes_nothing(source: Any) -> None:
    loader, dataset = source.open(**OPTIONS)
    begun = rows_of(loader, 2)
    source.append(range(100, 200))
    with pytest.raises(ConfigError, match="Epoch 0 is in progress"):
        dataset.refresh()
    state = loader.state_dict()
    loader.load_state_dict(state)
    with pytest.raises(ConfigError, match="Epoch 0 is in progress"):
        dataset.refresh()
    assert sorted(begun + rows_of(loader)) == list(range(100))
    assert dataset.refresh()
    assert loader.state_dict()["epoch"] == 1
    loader.set_epoch(1)
    assert sorted(rows_of(loader)) == source.rows()


def test_passes_without_set_epoch_read_the_newest_data_too(source: Any) -> None:
    loader, _ = source.open(refresh="epoch", **{**OPTIONS, "shuffle": False})
    assert len(rows_of(loader)) == 100
    source.append(range(100, 137))
    assert len(rows_of(loader)) == 137
    rows_of(loader, 2)
    source.append(range(200, 237))
    assert len(rows_of(loader)) == 137, "a pass that was left begins again as it was"
    assert len(rows_of(loader)) == 174


@pytest.mark.processes
@pytest.mark.cases(2)
@pytest.mark.parametrize("persistent", [False, True])
def test_worker_processes_read_the_newest_data(source: Any, persistent: bool) -> None:
    loader, _ = source.open(refresh="epoch", **{**OPTIONS, "num_workers": 2}, persistent_workers=persistent)
    for epoch in range(3):
        loader.set_epoch(epoch)
        assert sorted(rows_of(loader)) == source.rows()
        source.append(range(100 * (epoch + 1), 100 * (epoch + 1) + 37))


@pytest.mark.processes
def test_workers_of_another_loader_read_the_newest_data_or_say_that_they_cannot(tmp_path: Path) -> None:
    source = DirectorySource(tmp_path / "data")
    source.create()
    source.append(range(100))
    dataset = StructuredDataset(source.root, batch_size=16, refresh="epoch")
    once = DataLoader(dataset, batch_size=None, num_workers=2)
    kept = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    assert len(rows_of(kept)) == 100
    source.append(range(100, 200))
    dataset.set_epoch(1)
    assert sorted(rows_of(once)) == list(range(200))
    with pytest.raises(ConfigError, match="the data set was refreshed"):
        rows_of(kept)


@pytest.mark.full
@pytest.mark.cases(1)
def test_a_state_at_the_end_of_an_epoch_goes_on_with_newer_data(source: Any) -> None:
    loader, dataset = source.open(refresh="epoch", **OPTIONS)
    rows_of(loader)
    state, first = loader.state_dict(), dataset.snapshot_id
    source.append(range(100, 200))
    loader, _ = source.open(refresh="epoch", **OPTIONS)
    loader.load_state_dict(state)
    assert loader.epoch == 1
    resumed = rows_of(loader)
    assert sorted(resumed) == source.rows()
    if not isinstance(
        source, DirectorySource
    ):  # a loader that begins with the old snapshot moves on to the new one too
        pin = "snapshot_id" if isinstance(source, IcebergSource) else "version"
        pinned, _ = source.open(refresh="epoch", **{pin: first}, **OPTIONS)
        pinned.load_state_dict(state)
        assert rows_of(pinned) == resumed
    fresh, _ = source.open(**OPTIONS)
    fresh.set_epoch(1)
    assert rows_of(fresh) == resumed


@pytest.mark.slow
def test_a_state_inside_an_epoch_is_refused_with_what_continues_it(source: Any) -> None:
    loader, dataset = source.open(refresh="epoch", **OPTIONS)
    loader.set_epoch(3)
    whole = rows_of(loader)
    loader.set_epoch(3)
    begun, state, snapshot = rows_of(loader, 2), loader.state_dict(), dataset.snapshot_id
    save_it = isinstance(source, DirectorySource)
    if save_it:
        save_inventory(loader.plan.inventory, source.root.parent / "inventory.parquet")
    source.append(range(100, 200))
    loader, _ = source.open(refresh="epoch", **OPTIONS)
    wanted = {"IcebergSource": f"snapshot_id={snapshot} ", "DeltaSource": f"version={snapshot} "}
    with pytest.raises(CheckpointMismatchError, match=wanted.get(type(source).__name__, "files 1 files")):
        loader.load_state_dict(state)

    if save_it:
        place: dict[str, Any] = {"inventory": load_inventory(source.root.parent / "inventory.parquet")}
    else:
        place = {"snapshot_id" if isinstance(source, IcebergSource) else "version": snapshot}
    loader, _ = source.open(refresh="epoch", **OPTIONS, **place)
    loader.load_state_dict(state)
    assert begun + rows_of(loader) == whole
    loader.set_epoch(4)
    assert sorted(rows_of(loader)) == source.rows()


def test_without_refresh_other_files_are_never_taken_in_silence(tmp_path: Path) -> None:
    source = DirectorySource(tmp_path / "data")
    source.create()
    source.append(range(100))
    loader, _ = source.open(**OPTIONS)
    rows_of(loader)
    state = loader.state_dict()
    source.append(range(100, 200))
    with pytest.raises(CheckpointMismatchError, match="files 1 files"):
        source.open(**OPTIONS)[0].load_state_dict(state)


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_increments_follow_each_other(kind: str, tmp_path: Path) -> None:
    source = KINDS[kind](tmp_path / "data")
    source.create()
    source.append(range(10))
    start = {"iceberg": "from_snapshot_id", "delta": "from_version"}[kind]
    first = source.snapshot_id()
    source.append(range(10, 30))
    loader, dataset = source.open(**{start: first}, refresh="epoch", **OPTIONS)
    assert sorted(rows_of(loader)) == list(range(10, 30))
    second, state = dataset.snapshot_id, loader.state_dict()
    source.append(range(30, 45))
    source.append(range(45, 60))
    loader.set_epoch(1)
    assert sorted(rows_of(loader)) == list(range(30, 60))
    with pytest.raises(NoDataError, match="nothing to read"):
        loader.set_epoch(2)

    loader, _ = source.open(**{start: first}, **OPTIONS)
    with pytest.raises(CheckpointMismatchError):
        loader.load_state_dict(state)  # rows 10 to 30 would come twice
    loader, _ = source.open(**{start: second}, **OPTIONS)
    loader.load_state_dict(state)
    assert sorted(rows_of(loader)) == list(range(30, 60))


def test_the_next_increment_follows_one_that_an_inventory_holds(tmp_path: Path) -> None:
    source = DeltaSource(tmp_path / "data")
    source.create()
    source.append(range(10))
    source.append(range(10, 20))
    inventory = scan_delta(source.root, from_version=1)
    loader, _ = source.open(inventory=inventory, refresh="epoch", **OPTIONS)
    assert sorted(rows_of(loader)) == list(range(10, 20))
    source.append(range(20, 30))
    loader.set_epoch(1)
    assert sorted(rows_of(loader)) == list(range(20, 30))


def test_an_increment_over_rewritten_rows_raises_and_the_data_stay(tmp_path: Path) -> None:
    source = IcebergSource(tmp_path / "data")
    source.create()
    source.append(range(10))
    first = source.snapshot_id()
    source.append(range(10, 30))
    loader, dataset = source.open(from_snapshot_id=first, **OPTIONS)
    rows_of(loader)
    source.compact()
    with pytest.raises(ConfigError, match="rewritten rows would be delivered twice"):
        dataset.refresh()
    loader.set_epoch(1)
    assert sorted(rows_of(loader)) == list(range(10, 30))
    loader, _ = source.open(from_snapshot_id=first, allow_rewrites=True, **OPTIONS)
    assert sorted(rows_of(loader)) == sorted([*range(10, 30), *range(30)])


def test_a_branch_is_followed_from_one_of_its_snapshots(tmp_path: Path) -> None:
    source = IcebergSource(tmp_path / "data")
    source.create()
    source.append(range(10))
    first = source.snapshot_id()
    catalog, table = source._table()
    table.manage_snapshots().create_branch(first, "audit").commit()
    source.append(range(10, 20))
    loader, _ = source.open(snapshot_id=first, branch="audit", refresh="epoch", **OPTIONS)
    table.refresh()
    table.append(pa.table({"id": pa.array([77])}), branch="audit")
    loader.set_epoch(0)
    rows_of(loader)
    loader.set_epoch(1)
    assert sorted(rows_of(loader)) == [*range(10), 77]
    with pytest.raises(ConfigError, match="not in the history of branch 'audit'"):
        source.open(snapshot_id=source.snapshot_id(), branch="audit", **OPTIONS)
    catalog.close()


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_file_of_an_expired_snapshot_is_an_error_that_says_so(kind: str, tmp_path: Path) -> None:
    source = KINDS[kind](tmp_path / "data")
    source.create()
    source.append(range(10))
    source.append(range(10, 20))
    loader, dataset = source.open(**OPTIONS)
    snapshot = dataset.snapshot_id
    source.compact()
    source.expire()
    with pytest.raises(FileChangedError, match=rf"(snapshot|version) {snapshot}: the snapshot has expired"):
        rows_of(loader)
    dataset.refresh()
    assert sorted(rows_of(loader)) == list(range(20))


def gain_a_column(source: Any) -> None:
    """Append rows 10 and 11, in files that begin with a column `more`."""
    rows = pa.table({"more": [b"a", None], "id": pa.array([10, 11])})
    match source:
        case IcebergSource():
            catalog, table = source._table()
            with table.update_schema() as update:
                update.union_by_name(rows.schema)
            table.append(rows)
            catalog.close()
        case DeltaSource():
            write_deltalake(source.root, rows, mode="append", schema_mode="merge")
        case DirectorySource():
            pq.write_table(rows, source.root / "more.parquet")


@pytest.mark.slow
@pytest.mark.parametrize("columns", [None, ["id"]])
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_gains_a_column_keeps_the_columns_of_the_loader(kind: str, columns: Any, tmp_path: Path) -> None:
    source = KINDS[kind](tmp_path / "data")
    source.create()
    source.append(range(10))
    options = {**OPTIONS, "batch_size": 8, "columns": columns, "refresh": "epoch", "nulls": {"id": "error"}}
    options |= {"missing": "null"} if kind == "directory" else {}
    loader, dataset = source.open(**options)
    assert len(rows_of(loader)) == 10
    gain_a_column(source)
    loader.set_epoch(1)
    assert "new columns, which are not read: more" in loader.plan.explain()
    batches = iter(loader)
    assert list(next(batches)) == ["id"]
    # The same call in a new process reads the new column too. It is the same data, so the state loads.
    again, _ = source.open(**options)
    again.load_state_dict(loader.state_dict())
    rest, theirs = list(batches), list(again)
    assert [batch["id"].tolist() for batch in rest] == [batch["id"].tolist() for batch in theirs]
    assert sorted(theirs[0]) == (columns or ["id", "more"])
    source.append(range(12, 20))
    loader.set_epoch(2)
    assert "new columns" not in loader.plan.explain()
    assert sorted(rows_of(loader)) == list(range(20))
    assert dataset.refresh().new_columns == ()


def test_an_increment_of_a_table_that_replaced_another_one_is_refused(tmp_path: Path) -> None:
    source = DeltaSource(tmp_path / "data")
    source.create()
    source.append(range(10))
    loader, dataset = source.open(from_version=0, **OPTIONS)
    rows_of(loader)
    shutil.rmtree(source.root)
    source.create()
    for first in range(0, 50, 10):
        source.append(range(100 + first, 110 + first))
    with pytest.raises(FileChangedError, match="replaced by another one"):  # 100 to 110 would never be read
        dataset.refresh()


@pytest.mark.parametrize(("change", "message"), [("drop", "'x' is not there now"), ("widen", "'x' is int64 now")])
def test_a_column_that_was_dropped_or_widened_is_an_error_and_the_data_stay(
    change: str, message: str, tmp_path: Path
) -> None:
    narrow = pa.table({"id": range(10), "x": pa.array(range(10), pa.int32())})
    write_deltalake(tmp_path, narrow)
    everything, all_columns = DeltaDataset.create_dataloader(tmp_path, **OPTIONS)
    ids, one_column = DeltaDataset.create_dataloader(tmp_path, columns=["id"], **OPTIONS)
    _, named = DeltaDataset.create_dataloader(tmp_path, columns=["x"], **OPTIONS)
    wide = {"drop": narrow.drop_columns("x"), "widen": narrow.set_column(1, "x", narrow["x"].cast(pa.int64()))}
    write_deltalake(tmp_path, wide[change].slice(0, 4), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SchemaError, match=message):
        all_columns.refresh()
    with pytest.raises(LoaderError, match=r"column 'x'|'x', which is not a column"):
        named.refresh()
    assert len(rows_of(everything)) == 10
    one_column.refresh()
    assert len(rows_of(ids)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_table_may_be_empty_for_an_epoch(kind: str, tmp_path: Path) -> None:
    source = KINDS[kind](tmp_path / "data")
    source.create()
    source.append(range(10))
    loader, _ = source.open(allow_empty=True, refresh="epoch", **OPTIONS)
    lengths = []
    for epoch, change in enumerate([range(10, 20), None, range(5), None]):
        loader.set_epoch(epoch)
        lengths.append(len(rows_of(loader)))
        assert loader.state_dict()["epoch"] == epoch + 1
        if change is None:
            source.clear()
        else:
            source.append(change)
    assert lengths == [10, 20, 0, 5]


def test_a_table_that_lost_its_rows_is_an_error_until_it_has_some(source: Any) -> None:
    loader, _ = source.open(refresh="epoch", **OPTIONS)
    rows_of(loader)
    source.clear()
    for _ in range(2):
        with pytest.raises(NoDataError):
            loader.set_epoch(1)
    with pytest.raises(NoDataError):
        next(iter(loader))
    source.append(range(30))
    assert sorted(rows_of(loader)) == list(range(30))
    assert loader.state_dict()["epoch"] == 2


@pytest.mark.filterwarnings("ignore:A second pass over epoch 0")
def test_a_second_pass_after_a_refresh_reads_the_new_data_in_the_same_epoch(source: Any) -> None:
    loader, dataset = source.open(**OPTIONS)
    rows_of(loader)
    source.append(range(100, 150))
    dataset.refresh()
    assert loader.state_dict()["epoch"] == 1
    begun = rows_of(loader, 3)
    state = loader.state_dict()
    assert state["epoch"] == 0
    again, _ = source.open(**OPTIONS)
    again.load_state_dict(state)
    assert sorted(begun + rows_of(again)) == source.rows()


def test_a_state_of_before_a_refresh_does_not_load_after_it(source: Any) -> None:
    loader, dataset = source.open(**OPTIONS)
    loader.set_epoch(1)
    rows_of(loader, 2)
    state = loader.state_dict()
    source.append(range(100, 150))
    loader.set_epoch(2)
    dataset.refresh()
    with pytest.raises(CheckpointMismatchError):
        loader.load_state_dict(state)
    assert sorted(rows_of(loader)) == source.rows()


def refresh_some(rank: int, meeting: str, source: DirectorySource, callers: list[int], answer: Any) -> None:
    """One rank of a training job, which refreshes between two epochs if it is one of the callers."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    loader, dataset = source.open(num_ranks="auto", **OPTIONS)
    received = 0
    try:
        for epoch in range(2):
            loader.set_epoch(epoch)
            if rank in callers and epoch == 1:
                dataset.refresh()
            for batch in loader:
                received += len(batch["id"])
                dist.all_reduce(torch.ones(1))
        answer.send(received)
    except (ConfigError, RuntimeError) as error:
        answer.send(f"{type(error).__name__}: {error}")
    os._exit(0)


@pytest.mark.processes
@pytest.mark.cases(2)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("callers", [[0], [1], [0, 1]])
def test_a_refresh_on_some_ranks_only_is_an_error_and_nobody_waits_for_ever(callers: list[int], tmp_path: Path) -> None:
    source = DirectorySource(tmp_path / "data")
    source.create()
    source.append(range(100))
    answers = run_ranks(refresh_some, tmp_path / "meeting", source, callers)
    if callers == [0, 1]:
        assert answers == [100, 100]
    else:
        wanted = rf"ConfigError: refresh\(\): rank {1 - callers[0]} began its next pass without it"
        assert re.match(wanted, answers[callers[0]])
        assert answers[1 - callers[0]].startswith("RuntimeError"), "of gloo: the other rank has ended"


def test_what_cannot_be_refreshed_says_so(tmp_path: Path) -> None:
    source = DirectorySource(tmp_path / "data")
    source.create()
    source.append(range(100))
    loader, dataset = source.open(**OPTIONS)
    with pytest.raises(ConfigError, match="copy in another process"):
        pickle.loads(pickle.dumps(dataset)).refresh()
    alone, of_two = source.open(num_ranks=2, rank=1, **OPTIONS)
    with pytest.raises(ConfigError, match="A refresh of 2 ranks needs a process group"):
        of_two.refresh()
    blend([loader, source.open(**OPTIONS)[0]], weights=[1, 1])
    with pytest.raises(ConfigError, match="that a blend reads"):
        dataset.refresh()
    with pytest.raises(ConfigError, match='refresh="epoch": the length of a blend'):
        blend([source.open(refresh="epoch", **OPTIONS)[0], alone], weights=[1, 1])
    with pytest.raises(ConfigError, match='use "epoch" or None'):
        source.open(refresh="always")


def test_an_inventory_says_where_to_begin(tmp_path: Path) -> None:
    source = DirectorySource(tmp_path / "data")
    source.create()
    source.append(range(100))
    inventory = scan_files(source.root, identity="content")
    source.append(range(100, 200))
    loader, dataset = source.open(inventory=inventory, **OPTIONS)
    assert len(rows_of(loader)) == 100
    dataset.refresh()
    loader.set_epoch(1)
    assert len(rows_of(loader)) == 200
    assert loader.plan.inventory.files.contents is not None, "files go on being known by content"


CHANGES = st.lists(st.sampled_from(["append", "compact", "expire"]), max_size=3)


@pytest.mark.slow
@settings(max_examples=15)
@given(
    changes=st.lists(CHANGES, min_size=1, max_size=5),
    stop=st.integers(0, 60),
    kind=st.sampled_from(["delta", "directory"]),
)
def test_every_epoch_is_the_plan_of_its_own_data(
    changes: list[list[str]], stop: int, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever happens to the data, an epoch of a job that was stopped and resumed is that of a new loader."""
    root = tmp_path_factory.mktemp("table") / "data"
    source, rows = KINDS[kind](root), 0
    source.create()
    source.append(range(40))
    loader, dataset = source.open(refresh="epoch", **OPTIONS)
    for epoch, within in enumerate(changes):
        loader.set_epoch(epoch)
        inventory, snapshot = loader.plan.inventory, dataset.snapshot_id
        expected, fresh = source.rows(), source.open(**OPTIONS)[0]
        fresh.set_epoch(epoch)
        order = rows_of(fresh)
        assert sorted(order) == expected
        begun = rows_of(loader, 1 + stop % len(loader))
        state = loader.state_dict()
        # Other changes take files away that are still to be read.
        for _ in range(within.count("append")):
            rows += 40
            source.append(range(1000 + rows, 1040 + rows))
        at_end = len(begun) == len(order)
        place = {} if at_end else {"inventory": inventory} if kind == "directory" else {"version": snapshot}
        loader, dataset = source.open(refresh="epoch", **OPTIONS, **place)
        loader.load_state_dict(state)
        if not at_end:
            assert begun + rows_of(loader) == order
        for name in within:
            if name != "append":
                getattr(source, name)()
    shutil.rmtree(root)


@given(
    table=st.text(max_size=12),
    numbers=st.tuples(*[st.none() | st.integers(-(2**63), 2**63 - 1)] * 2),
    kind=st.sampled_from(["snapshot", "version"]),
)
def test_a_snapshot_is_what_its_text_says(table: str, numbers: tuple[int | None, int | None], kind: Any) -> None:
    snapshot = TableSnapshot(table=table, snapshot_id=numbers[0], from_snapshot_id=numbers[1], kind=kind)
    expected = None if table == "None" else table
    assert TableSnapshot.parse(str(snapshot)) == TableSnapshot(
        table=expected, snapshot_id=numbers[0], from_snapshot_id=numbers[1], kind=kind
    )
    assert TableSnapshot.parse("none") is None
