"""`StructuredDataset.create_dataloader` as users call it: formats, columns, filters, outputs, strategies, errors."""

import copy
import functools
import logging
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from torch_dataloader_utils import (
    DataFileInfo,
    Decoding,
    Ragged,
    RoundRobinSplitStrategy,
    SizeBalancedSplitStrategy,
    Split,
    StructuredDataset,
    TensorBatch,
    _engine,
    merge_states,
    plan_epoch,
    scan_files,
)
from torch_dataloader_utils.datasets import build
from torch_dataloader_utils.errors import ConfigError, NoDataError, NullValueError, SchemaError
from torch_dataloader_utils.splits import RowRange, Shard, TargetSizeSplitStrategy

ROWS = 97


def make_table(start=0, rows=ROWS):
    number = np.arange(start, start + rows)
    return pa.table(
        {
            "row": number,
            "x": number.astype(np.float32) / 2,
            "y": (number % 2).astype(np.int8),
            "name": [f"n{i}" for i in number],
            "ids": [list(range(i % 4)) for i in number],
        }
    )


@pytest.fixture
def folder(tmp_path):
    for part, (start, rows) in enumerate(((0, 40), (40, 7), (47, 50))):
        pq.write_table(make_table(start, rows), tmp_path / f"part-{part}.parquet", row_group_size=16)
    return str(tmp_path)


def load(path, file_format="parquet", **options):
    return StructuredDataset.create_dataloader(path, file_format, **{"batch_size": 10, "num_workers": 0, **options})


def all_rows(loader):
    return sorted(int(row) for batch in loader for row in batch["row"])


def write(file_format, path):
    table = make_table()
    match file_format:
        case "parquet":
            pq.write_table(table, path, row_group_size=20)
        case "orc":
            pa.orc.write_table(table, path, stripe_size=1024)
        case "arrow":
            pa.feather.write_feather(table, path, chunksize=20, compression="uncompressed")
        case "csv":
            pa.csv.write_csv(table.drop_columns("ids"), path)
        case _:
            lines = (row for row in table.to_pylist())
            path.write_text("".join(str(row).replace("'", '"') + "\n" for row in lines))


@pytest.mark.parametrize("file_format", ["parquet", "orc", "arrow", "csv", "json", "jsonl"])
def test_every_format_gives_every_row_with_an_exact_length(tmp_path, file_format):
    path = tmp_path / f"data.{file_format}"
    write(file_format, path)
    loader, _ = load(str(path), file_format)
    batches = list(loader)
    assert len(batches) == len(loader) == 10
    assert all_rows(batches) == list(range(ROWS))
    assert all(isinstance(batch, TensorBatch) for batch in batches)


def test_columns_come_in_the_order_asked_and_filters_may_name_others(folder):
    loader, _ = load(folder, columns=["y", "row"], filters=pc.field("x") >= 20)
    batches = list(loader)
    assert all(list(batch) == ["y", "row"] for batch in batches)
    assert all_rows(batches) == list(range(40, ROWS))


def test_output_formats(folder):
    torch_batch, numpy_batch, arrow_batch, dict_batch = (
        next(iter(load(folder, output_format=name)[0])) for name in ("torch", "numpy", "arrow", "dict")
    )
    assert torch_batch["x"].dtype == torch.float32
    assert isinstance(torch_batch["ids"], Ragged)
    assert torch_batch["ids"].to_padded(-1).shape == (10, 3)
    assert torch_batch["name"][:2] == ["n0", "n1"]
    assert numpy_batch["x"].dtype == np.float32
    assert isinstance(arrow_batch, pa.RecordBatch)
    assert arrow_batch.num_rows == 10
    assert dict_batch["row"] == list(range(10))


def test_stack_transform_and_collate(folder):
    loader, _ = load(
        folder,
        columns=["x", "row", "y"],
        stack={"features": ["x"]},
        transform=lambda batch: {**batch, "twice": batch["features"] * 2},
        collate_fn=lambda batch: (batch["features"], batch["twice"]),
    )
    features, twice = next(iter(loader))
    assert features.shape == (10, 1)
    assert torch.equal(twice, features * 2)


def test_nulls_are_an_error_that_names_the_column_unless_told_otherwise(tmp_path):
    pq.write_table(pa.table({"a": pa.array([1, None, 3]), "b": pa.array([1.0, None, 3.0])}), tmp_path / "a.parquet")
    with pytest.raises(NullValueError, match="a"):
        list(load(str(tmp_path))[0])
    (batch,) = load(str(tmp_path), nulls={"a": {"fill": -1}})[0]
    assert batch["a"].tolist() == [1, -1, 3]
    assert torch.isnan(batch["b"]).tolist() == [False, True, False]


def test_hive_partitions_are_typed_columns_and_prune_files(tmp_path, caplog):
    for year in (2022, 2023, 2024):
        part = tmp_path / f"year={year}" / "kind=a"
        part.mkdir(parents=True)
        pq.write_table(make_table(year * 100, 20), part / "part.parquet")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".hidden").write_text("no data")
    loader, dataset = load(
        str(tmp_path), partitioning="hive", filters=pc.field("year") == 2023, columns=["row", "year", "kind"]
    )
    batches = list(loader)
    assert {int(year) for batch in batches for year in batch["year"]} == {2023}
    assert batches[0]["kind"][0] == "a"
    assert all_rows(batches) == list(range(202_300, 202_320))
    assert dataset.plan.inventory.num_groups == 1


def test_memory_file_systems_work(folder):
    import fsspec

    memory = fsspec.filesystem("memory")
    for name in ("part-0", "part-1", "part-2"):
        memory.pipe_file(f"/bucket/table/{name}.parquet", Path(folder, f"{name}.parquet").read_bytes())
    try:
        assert all_rows(load("memory://bucket/table")[0]) == list(range(ROWS))
    finally:
        memory.rm("/bucket", recursive=True)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"columns": ["rwo"]}, ConfigError, "row"),
        ({"filters": pc.field("missing") > 1}, ConfigError, "missing"),
        ({"filters": "row > 1"}, TypeError, "pyarrow expression"),
        ({"output_format": "tensorflow"}, ConfigError, "tensorflow"),
        ({"rank": 2, "num_ranks": 2}, ConfigError, "global rank"),
        ({"batch_size": 0}, ConfigError, "batch_size"),
        ({"rank_sharding": "files"}, ConfigError, "rank_sharding"),
        ({"split_bytes": "12 parsecs"}, ConfigError, "parsecs"),
        ({"split_strategy": "not_installed"}, ConfigError, "not_installed"),
        ({"shuffle_rows": 5, "shuffle_buffer_size": 5}, ConfigError, "two names"),
        ({"num_workers": -1}, ConfigError, "num_workers"),
        ({"batchsize": 3}, ConfigError, "did you mean 'batch_size'"),
        ({"persistent_worker": True}, ConfigError, "did you mean 'persistent_workers'"),
    ],
)
def test_wrong_calls_say_what_to_do(folder, options, error, match):
    with pytest.raises(error, match=match):
        load(folder, **options)


def test_wrong_data_says_what_to_do(tmp_path, folder):
    with pytest.raises(NoDataError):
        load(str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="parquett"):
        load(folder, "parquett")
    pq.write_table(pa.table({"row": ["text"]}), f"{folder}/part-9.parquet")
    with pytest.raises(SchemaError, match="part-9"):
        load(folder)


def test_an_unknown_option_of_the_constructor_names_the_near_one(folder):
    with pytest.raises(ConfigError, match="batch_size"):
        StructuredDataset(folder, "parquet", batch_sise=3)


def test_drop_last_gives_full_batches_and_says_how_many_rows_it_leaves_out(folder):
    loader, _ = load(folder, drop_last=True, num_ranks=2)
    assert {batch.num_rows for batch in loader} == {10}
    assert loader.plan.dropped_rows == ROWS - 2 * 10 * len(loader)
    assert "leaves out" in loader.plan.explain()


def test_uneven_chunk_sharding_warns_with_the_step_counts(folder):
    with pytest.warns(UserWarning, match=r"different numbers of steps: \d+ to \d+"):
        load(folder, rank_sharding="chunks", num_ranks=2, split_rows=16)


def test_more_ranks_than_rows_repeat_a_row_and_warn(tmp_path):
    pq.write_table(make_table(0, 3), tmp_path / "a.parquet")
    with pytest.warns(UserWarning, match="2 rows will come a second time"):
        loaders = [load(str(tmp_path), num_ranks=5, rank=rank)[0] for rank in range(5)]
    assert [len(list(loader)) for loader in loaders] == [1] * 5


def test_single_rows_that_do_not_divide_are_told_as_that(folder):
    with pytest.warns(UserWarning, match=r"batches of one row do not divide by the ranks.*larger batches"):
        load(folder, batch_size=1, num_ranks=ROWS - 1)


def test_a_last_step_of_lanes_with_fewer_rows_than_ranks_is_told_as_that(tmp_path):
    pq.write_table(make_table(0, 9), tmp_path / "a.parquet")
    with pytest.warns(UserWarning, match=r"1 row will come a second time.*fewer rows are left for it than ranks"):
        load(str(tmp_path), batch_size=4, num_ranks=2, lanes=2)


class OldStrategy:
    """A strategy of the three-argument kind."""

    def generate(self, files, num_workers, epoch):
        return [Shard(0, [Split(file) for file in files])]


class LosesTheTail:
    def generate(self, files, num_workers, epoch=0, num_ranks=1, rank=0):
        ranges = [Split(file, RowRange(0, file.record_count - 1)) for file in files]
        return [Shard(0, ranges[rank::num_ranks])]


@pytest.mark.parametrize(
    "strategy",
    [TargetSizeSplitStrategy(target_rows=16, shuffle=True), RoundRobinSplitStrategy(), SizeBalancedSplitStrategy()],
    ids=lambda strategy: type(strategy).__name__,
)
@pytest.mark.parametrize("num_workers", [1, 3])
def test_strategies_decide_and_steps_stay_equal(folder, strategy, num_workers):
    inventory = scan_files(folder)
    plan = plan_epoch(inventory, num_ranks=3, num_workers=num_workers, batch_size=4, split_strategy=strategy)
    assert len(set(plan.rank_steps)) == 1
    table = plan.to_arrow()
    covered = Counter()
    for path, group, start, stop in zip(
        *(table[name].to_pylist() for name in ("path", "row_group", "start_row", "stop_row")), strict=True
    ):
        covered.update((path, group, row) for row in range(start, stop))
    assert len(covered) == ROWS
    assert set(covered.values()) == {1}
    received = []
    for rank in range(3):
        received += all_rows(load(folder, split_strategy=strategy, num_ranks=3, rank=rank)[0])
    assert sorted(received) == list(range(ROWS))


def test_a_strategy_without_rank_arguments_reads_everything_on_every_rank_and_warns(folder):
    with pytest.warns(UserWarning, match="no rank arguments"):
        loader, _ = load(folder, split_strategy=OldStrategy(), num_ranks=2, rank=1)
    assert "EVERY rank reads all rows" in loader.plan.explain()
    assert all_rows(loader) == list(range(ROWS))


@pytest.mark.filterwarnings("ignore:.*no rank arguments")
def test_ranks_that_all_read_everything_and_had_drifted_apart_are_refused(folder):
    states = []
    for rank, steps in enumerate((1, 3)):
        loader, _ = load(folder, split_strategy=OldStrategy(), num_ranks=2, rank=rank)
        batches = iter(loader)
        for _ in range(steps):
            next(batches)
        states.append(loader.state_dict())
    loader, _ = load(folder, split_strategy=OldStrategy(), num_ranks=2, rank=0)
    with pytest.raises(ConfigError, match=r"OldStrategy has no rank arguments.* drifted apart"):
        loader.load_state_dict(merge_states(states))


def test_a_plan_without_steps_is_a_table_with_columns(tmp_path):
    pq.write_table(make_table(0, 9), tmp_path / "a.parquet")
    inventory = scan_files(tmp_path)
    plans = [plan_epoch(inventory, batch_size=20, drop_last=True, lanes=lanes) for lanes in (None, 4)]
    assert [plan.to_arrow().num_rows for plan in plans] == [0, 0]
    assert plans[1].to_arrow().schema == plans[0].to_arrow().schema


@pytest.mark.parametrize("rank", [-1, 2])
def test_repeated_rows_of_a_rank_out_of_range_are_an_error(folder, rank):
    plan = plan_epoch(scan_files(folder), num_ranks=2)
    with pytest.raises(ConfigError, match=r"rank=.* is not in \[0, num_ranks=2\)"):
        plan.padding_rows(rank)


def test_a_strategy_that_loses_rows_is_caught_with_the_rows_named(folder):
    with pytest.raises(ConfigError, match=r"LosesTheTail lost rows: .*part-0.parquet rows \[39, 40\)"):
        next(iter(load(folder, split_strategy=LosesTheTail())[0]))


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        (lambda files: [Shard(0, files)], "gave a DataFileInfo"),
        (lambda files: files, "gave a DataFileInfo"),
        (lambda _: None, "gave a NoneType"),
    ],
)
def test_a_strategy_that_gives_no_shards_of_splits_is_told_what_to_return(folder, given, seen):
    class Careless(OldStrategy):
        def generate(self, files, num_workers, epoch):
            return given(files)

    with pytest.raises(ConfigError, match=rf"Careless\.generate\(\) {seen}.*Shard\(worker, \[Split\(file\)"):
        load(folder, split_strategy=Careless())


def test_a_strategy_as_a_class_or_by_a_name_that_is_not_installed_is_told_to_be_an_object(folder):
    with pytest.raises(ConfigError, match=r"is a class: .* such as OldStrategy\(\)"):
        load(folder, split_strategy=OldStrategy)
    with pytest.raises(ConfigError, match=r"No split strategy 'round_robin'.*RoundRobinSplitStrategy\(\)"):
        load(folder, split_strategy="round_robin")


def test_the_constructor_takes_file_infos_and_any_dataloader(folder):
    files = [DataFileInfo(f"{folder}/part-{part}.parquet") for part in (2, 0, 1)]
    dataset = StructuredDataset(files, "parquet", batch_size=10, shuffle=True)
    loader = DataLoader(dataset, batch_size=None, collate_fn=lambda batch: batch)
    assert all_rows(loader) == list(range(ROWS))
    dataset.set_epoch(0)
    again = pickle.loads(pickle.dumps(dataset))
    assert all_rows(again) == list(range(ROWS))


@pytest.mark.processes
@pytest.mark.cases(2)
@pytest.mark.parametrize("engine", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_of_a_loader_stands_where_it_stood_and_counts_for_itself(folder, copied, engine):
    loader, _ = load(folder, **engine)
    batches = iter(loader)
    next(batches)
    again = copied(loader)
    assert again.state_dict() == loader.state_dict()
    assert again.metrics().rows == 0
    again.load_state_dict(loader.state_dict())
    assert all_rows(again) == all_rows(batches)


def test_storage_options_stay_secret(folder, caplog):
    caplog.set_level(logging.DEBUG)
    loader, dataset = load(folder, storage_options={"secret": "CANARY"})
    list(loader)
    texts = [
        repr(dataset),
        repr(loader),
        str(vars(dataset)),
        caplog.text,
        str(loader.state_dict()),
        loader.plan.explain(),
    ]
    assert not any("CANARY" in text for text in texts)


def test_a_loader_without_the_compiled_decoder_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    monkeypatch.setattr(_engine, "IS_BUILT", False)
    monkeypatch.setattr(build, "_log_no_decoder", functools.cache(build._log_no_decoder.__wrapped__))
    for decoding in (Decoding(compiled=False), Decoding(), Decoding()):
        StructuredDataset.create_dataloader(tmp_path, num_workers=0, decoding=decoding)
        said = [record.message for record in caplog.records if "compiled decoder is not installed" in record.message]
        assert len(said) == (1 if decoding.compiled else 0)
