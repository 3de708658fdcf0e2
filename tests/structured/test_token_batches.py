"""Batches limited by tokens, of loaders over files: budgets, masks, workers, filters, deletes, resume, refusals."""

import json
import math
import os
import re
import warnings
from collections import Counter
from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.effort import effort
from tests.tables.iceberg.tables import TableWriter, field_of
from torch_dataloader_utils import (
    IcebergDataset,
    PadRagged,
    RowDataset,
    StructuredDataset,
    TokenBatches,
    plan_epoch,
    scan_files,
)
from torch_dataloader_utils._core.row_group_task import ALL_ROWS
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError
from torch_dataloader_utils.integrations.torchdata import for_torchdata
from torch_dataloader_utils.tables.reader import Reader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores, on purpose
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.set_vital. is deprecated"),  # torchdata calls it
]

BUDGET = 600
GROUPS = [[130, 80, 70], [220], [10, 100, 101]]
TOTAL = sum(map(sum, GROUPS))


def length_of(row):
    """The length of a row, scattered over short and long."""
    return row * 7919 % 101


def write_texts(folder):
    """Files whose rows have a list of known length, the length as an integer and as a float, and a text of it."""
    row = 0
    for index, groups in enumerate(GROUPS):
        schema = pa.schema([("row", pa.int64()), ("tokens", pa.list_(pa.int32())), ("length", pa.int16())])
        schema = schema.append(pa.field("seconds", pa.float32())).append(pa.field("text", pa.string()))
        with pq.ParquetWriter(folder / f"part-{index}.parquet", schema) as writer:
            for rows in groups:
                numbers = range(row, row + rows)
                lengths = [length_of(number) for number in numbers]
                columns = {
                    "row": numbers,
                    "tokens": [[number] * length for number, length in zip(numbers, lengths, strict=True)],
                    "length": lengths,
                    "seconds": [max(0, length - 0.25) for length in lengths],
                    "text": ["x" * length for length in lengths],
                }
                writer.write_table(pa.table(columns, schema=schema), row_group_size=rows)
                row += rows


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder)
    return str(folder)


TOKENS = TokenBatches("tokens", max_tokens=BUDGET)
OPTIONS = {
    "batch_size": 24,
    "columns": ["row"],
    "num_workers": 0,
    "shuffle": True,
    "split_rows": 60,
    "shuffle_rows": 150,
    "token_batches": TOKENS,
}


def load(folder, **options):
    return StructuredDataset.create_dataloader(folder, **{**OPTIONS, **options})[0]


def rows_of(batch):
    return batch["row"].tolist()


def check_batches(batches, multiple=1, batch_size=24):
    for rows in batches:
        widest = max(-(-length_of(row) // multiple) * multiple for row in rows)
        assert widest * len(rows) <= BUDGET
        assert len(rows) <= batch_size


def drain(folder, num_ranks, **options):
    """The batches of every rank, after checking that lengths are as announced and equal."""
    ranks = []
    for rank in range(num_ranks):
        loader = load(folder, num_ranks=num_ranks, rank=rank, **options)
        ranks.append([rows_of(batch) for batch in loader])
        assert len(ranks[-1]) == len(loader)
    assert len({len(batches) for batches in ranks}) == 1
    return ranks


@pytest.mark.parametrize("column", ["tokens", "length", "seconds", "text"])
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_every_row_once_within_the_budget(texts, num_ranks, column):
    ranks = drain(texts, num_ranks, token_batches=replace(TOKENS, column=column))
    for batches in ranks:
        check_batches(batches)
    assert sorted(row for batches in ranks for rows in batches for row in rows) == list(range(TOTAL))
    sizes = {len(rows) for batches in ranks for rows in batches}
    assert min(sizes) <= 6
    assert max(sizes) == 24


def test_batches_are_full(texts):
    (batches,) = drain(texts, 1, batch_size=600, shuffle_rows=1000)
    tokens = [max(map(length_of, rows)) * len(rows) for rows in batches]
    assert np.mean(tokens[1:]) > 0.9 * BUDGET
    assert sum(map(length_of, range(TOTAL))) / sum(tokens) > 0.9


@pytest.mark.processes
def test_all_output_formats_lengths_and_workers_give_the_same_batches(texts):
    (whole,) = drain(texts, 1)
    for options in (
        {"token_batches": replace(TOKENS, column="length")},
        {"columns": None},
        {"columns": ["row", "tokens"]},
    ):
        assert drain(texts, 1, **options) == [whole]
    for output_format in ("numpy", "dict", "arrow"):
        batches = load(texts, output_format=output_format)
        assert [list(np.asarray(batch["row"])) for batch in batches] == whole
    # Two workers have the batches of two runs of the same list.
    (by_two,) = drain(texts, 1, num_workers=2)
    assert by_two[::2] + by_two[1::2] == whole


@pytest.mark.processes
def test_epochs_differ_and_reach_persistent_workers(texts):
    loader = load(texts, num_workers=2, persistent_workers=True)
    orders, steps = [], len(loader)
    for epoch in range(2):
        loader.set_epoch(epoch)
        assert len(loader) == steps
        orders.append([rows_of(batch) for batch in loader])
        check_batches(orders[-1])
        assert len(orders[-1]) == len(loader)
        assert sorted(row for rows in orders[-1] for row in rows) == list(range(TOTAL))
    assert {frozenset(rows) for rows in orders[0]} != {frozenset(rows) for rows in orders[1]}


@pytest.mark.processes
@pytest.mark.cases(2)
@pytest.mark.parametrize(("num_ranks", "num_workers"), [(1, 0), (3, 0), (1, 2)])
def test_resume_at_every_step_gives_the_other_batches(texts, num_ranks, num_workers):
    options = {"num_ranks": num_ranks, "rank": num_ranks - 1, "num_workers": num_workers}
    whole = [rows_of(batch) for batch in load(texts, **options)]
    loader = load(texts, **options)
    states = [loader.state_dict(), *(json.loads(json.dumps(loader.state_dict())) for _ in loader)]
    assert states[-1]["epoch"] == 1
    steps = range(len(whole)) if num_workers == 0 else (1, 2, 17, len(whole) - 1)
    resumed = load(texts, **options)
    for step in steps:
        resumed.load_state_dict(states[step])
        assert len(resumed) == len(whole)
        assert [rows_of(batch) for batch in resumed] == whole[step:]


STOPS = {
    "step": st.integers(0, 60),
    "ranks": st.tuples(st.integers(1, 3), st.integers(1, 4)),
    "batch_sizes": st.tuples(st.integers(1, 40), st.integers(1, 40)),
    "drop_last": st.tuples(st.booleans(), st.booleans()),
    "shuffle_rows": st.integers(1, 300),
}


def check_resume_elsewhere(load, check_batches, texts, *, step, ranks, batch_sizes, drop_last, shuffle_rows):
    """Check that an epoch that stops after `step` batches goes on under other ranks and options with the other rows."""
    inventory = scan_files(texts)

    def start(job, rank):
        options = {"batch_size": batch_sizes[job], "drop_last": drop_last[job], "shuffle_rows": shuffle_rows}
        return load(texts, inventory=inventory, num_ranks=ranks[job], rank=rank, **options)

    received, rest, state = [], [], None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # rows that come twice
        for rank in range(ranks[0]):
            loader = start(0, rank)
            batches = iter(loader)
            received += [rows_of(next(batches)) for _ in range(min(step, len(loader) - 1))]
            state = loader.state_dict()
        check_batches(received, batch_size=batch_sizes[0])
        for rank in range(ranks[1]):
            loader = start(1, rank)
            loader.load_state_dict(state)
            plan = loader.plan
            rest.append([rows_of(batch) for batch in loader])
            check_batches(rest[-1], batch_size=batch_sizes[1])
    assert len(set(map(len, rest))) == 1
    rows = [row for part in [*received, *chain.from_iterable(rest)] for row in part]
    assert len(rows) - len(set(rows)) == plan.repeated_rows
    assert TOTAL - len(set(rows)) == plan.dropped_rows


@pytest.mark.slow
@given(**STOPS)
@settings(max_examples=effort(15), deadline=None)
def test_resume_on_another_topology_gives_the_other_rows(texts, **stop):
    check_resume_elsewhere(load, check_batches, texts, **stop)


def test_drop_last_leaves_out_batches_that_do_not_divide(texts):
    alone = load(texts)
    num_ranks = next(count for count in range(2, 9) if len(alone) % count)
    ranks = drain(texts, num_ranks, drop_last=True)
    plan = load(texts, num_ranks=num_ranks, drop_last=True).plan
    assert len(ranks[0]) == len(alone) // num_ranks
    seen = {row for batches in ranks for rows in batches for row in rows}
    assert TOTAL - len(seen) == plan.dropped_rows > 0
    whole = {frozenset(rows_of(batch)) for batch in alone}
    assert all(frozenset(rows) in whole for batches in ranks for rows in batches)


@pytest.mark.processes
def test_padded_tensors_and_masks_keep_the_budget(texts):
    """The multiple that counts is that of PadRagged, without being said twice."""
    collate = PadRagged(pad_to_multiple_of=16, padding_value=-1)
    seen = []
    for num_workers in (0, 2):
        batches = []
        for batch in load(texts, columns=["row", "tokens"], collate_fn=collate, num_workers=num_workers):
            lengths = torch.tensor([length_of(row) for row in rows_of(batch)])
            assert batch["tokens"].numel() <= BUDGET
            assert batch["tokens"].shape[1] == -(-int(lengths.max()) // 16) * 16
            assert batch["tokens_mask"].sum(1).tolist() == lengths.tolist()
            place = torch.arange(batch["tokens"].shape[1])
            assert torch.equal(batch["tokens_mask"], place < lengths[:, None])
            assert torch.equal(batch["tokens"], torch.where(batch["tokens_mask"], batch["row"][:, None], -1))
            batches += rows_of(batch)
        seen.append(sorted(batches))
    assert seen == [list(range(TOTAL))] * 2
    check_batches(
        [rows_of(batch) for batch in load(texts, token_batches=replace(TOKENS, pad_to_multiple_of=16))], multiple=16
    )


def test_a_filter_is_counted_and_only_its_rows_have_lengths(texts):
    keep = pc.field("length") <= 50
    ranks = drain(texts, 2, filters=keep, token_batches=replace(TOKENS, max_tokens=60))
    rows = sorted(row for batches in ranks for part in batches for row in part)
    assert rows == [row for row in range(TOTAL) if length_of(row) <= 50]
    assert all(max(map(length_of, part)) * len(part) <= 60 for batches in ranks for part in batches)


def test_rows_too_long_are_named_and_a_filter_leaves_them_out(texts):
    first = next(row for row in range(TOTAL) if length_of(row) > 64)
    wanted = f"live row {first} of .*part-0.parquet row group 0, with {length_of(first)} tokens of 'tokens'"
    with pytest.raises(ConfigError, match=wanted):
        load(texts, token_batches=replace(TOKENS, max_tokens=64))
    with pytest.raises(ConfigError, match=re.escape("max_tokens=104")):
        load(texts, token_batches=replace(TOKENS, max_tokens=104, pad_to_multiple_of=16))
    load(texts, token_batches=replace(TOKENS, max_tokens=100))
    keep = pc.list_value_length(pc.field("tokens")) <= 64
    batches = [rows_of(batch) for batch in load(texts, token_batches=replace(TOKENS, max_tokens=64), filters=keep)]
    assert sum(map(len, batches)) == sum(length_of(row) <= 64 for row in range(TOTAL))


@pytest.mark.parametrize(
    "lengths",
    [[1.0, math.nan, None], [1.0, -math.inf, 0.0], [1.5, -0.5, 0.0], [3, -1, 0], np.int8([3, -1, 0]), [1, 1 << 60, 3]],
)
def test_lengths_that_are_no_numbers_of_tokens_are_named(tmp_path, lengths):
    pq.write_table(pa.table({"row": [0, 1, 2], "x": lengths}), tmp_path / "x.parquet")
    says = r"1 rows do not fit .* live row 1 of .*, whose 'x' is negative, not finite or beyond 2\^60\. Raise"
    with pytest.raises(ConfigError, match=says):
        load(str(tmp_path), token_batches=replace(TOKENS, column="x"))


def test_shards_of_a_stream_share_its_batches(texts):
    dataset = load(texts).dataset
    for contiguous in (False, True):
        shards = [dataset.shard_rows(3, index, contiguous=contiguous) for index in range(3)]
        rows = []
        for shard in shards:
            batches = [rows_of(batch) for batch in shard]
            check_batches(batches)
            assert len(batches) == len(shard)
            rows += [row for part in batches for row in part]
        assert sorted(rows) == list(range(TOTAL))


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_in_a_plain_dataloader_and_a_stateful_one(texts, num_workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def dataset():
        return StructuredDataset(texts, **{**OPTIONS, "num_workers": 1})

    whole = [rows_of(batch) for batch in DataLoader(dataset(), batch_size=None, num_workers=num_workers)]
    assert whole == drain(texts, 1, num_workers=num_workers)[0]
    loader = stateful.StatefulDataLoader(for_torchdata(dataset()), batch_size=None, num_workers=num_workers)
    batches = iter(loader)
    assert [rows_of(next(batches)) for _ in range(7)] == whole[:7]
    state = loader.state_dict()
    del batches
    resumed = stateful.StatefulDataLoader(for_torchdata(dataset()), batch_size=None, num_workers=num_workers)
    resumed.load_state_dict(state)
    assert [rows_of(batch) for batch in resumed] == whole[7:]


def test_single_row_batches_repeat_a_row_where_ranks_are_short(texts):
    counts = Counter()
    with pytest.warns(UserWarning, match="come a second time"):
        ranks = drain(texts, 4, batch_size=1)
    counts.update(row for batches in ranks for rows in batches for row in rows)
    assert len(counts) == TOTAL
    assert sum(counts.values()) - TOTAL == -TOTAL % 4 > 0


def test_a_plan_explains_itself_and_refuses_without_lengths(texts):
    plan = load(texts, num_ranks=2).plan
    assert "buckets by tokens of at most 600 tokens" in plan.explain()
    assert set(plan.to_arrow().column("rank").to_pylist()) == {0, 1}
    state = load(texts).state_dict()
    for other in ({"max_tokens": 700}, {"pad_to_multiple_of": 2}, {"column": "length"}):
        with pytest.raises(CheckpointMismatchError):
            load(texts, token_batches=replace(TOKENS, **other)).load_state_dict(state)
    options = plan.inputs.options
    planner = type(load(texts).dataset.planner)(inventory=scan_files(texts), options=options)
    with pytest.raises(ConfigError, match="lengths of all rows"):
        planner.plan(load(texts).dataset.progress.position)
    assert plan_epoch(scan_files(texts)).repeated_rows == 0


@pytest.mark.parametrize("deletes", ["positions", "equality", "none"])
def test_an_iceberg_table_with_deletes(tmp_path, deletes):
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "row", "long"), field_of(2, "length", "int"))
    rows = [{"row": row, "length": length_of(row) + 1} for row in range(300)]
    paths = [table.append(rows[:120], rows_per_group=40), table.append(rows[120:], rows_per_group=50)]
    gone = set()
    if deletes == "positions":
        table.delete_positions([(paths[0], 3), (paths[0], 50), (paths[1], 0)])
        gone = {3, 50, 120}
    if deletes == "equality":
        table.delete_equal([2], [{"length": 8}, {"length": 21}])
        gone = {row["row"] for row in rows if row["length"] in (8, 21)}
    options = {**OPTIONS, "token_batches": replace(TOKENS, column="length"), "shuffle_rows": 70, "num_ranks": 2}
    ranks = []
    for rank in range(2):
        loader, _ = IcebergDataset.create_dataloader(table.metadata, rank=rank, **options)
        ranks.append([rows_of(batch) for batch in loader])
        assert all(max(length_of(row) + 1 for row in part) * len(part) <= BUDGET for part in ranks[-1])
    assert len(ranks[0]) == len(ranks[1])
    assert sorted(row for batches in ranks for part in batches for row in part) == sorted(set(range(300)) - gone)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"shuffle": "chunks", "shuffle_rows": None}, "pass shuffle=True, or shuffle_rows="),
        ({"lanes": 4}, "lanes=4"),
        ({"rank_sharding": "chunks"}, "rank_sharding"),
        (
            {"collate_fn": PadRagged(pad_to_multiple_of=4), "token_batches": replace(TOKENS, pad_to_multiple_of=8)},
            "PadRagged",
        ),
        ({"filters": pc.field("row") > 3, "count_rows": False}, "exact row counts"),
        ({"token_batches": replace(TOKENS, column="nowhere")}, "no such column"),
    ],
)
def test_refusals(texts, options, match):
    with pytest.raises(ConfigError, match=match):
        load(texts, **options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"column": None}, "column is the name of a column; got None"),
        ({"max_tokens": 0}, "at least 1"),
        ({"pad_to_multiple_of": 0}, "at least 1"),
        ({"max_tokens": None, "pad_to_multiple_of": 8}, "not given"),
    ],
)
def test_values_that_cannot_be(options, match):
    with pytest.raises(ConfigError, match=match):
        replace(TOKENS, **options)


class TestLengths:
    """What is read before the first plan, and what is not."""

    @pytest.fixture
    def reads(self, monkeypatch, tmp_path):
        """Columns of every read of this process; lengths are kept in a directory of the test."""
        monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", str(tmp_path / "kept"))
        reads, read = [], Reader.read

        def noting(self, task, rows=ALL_ROWS):
            reads.append(self.spec.columns)
            return read(self, task, rows)

        monkeypatch.setattr(Reader, "read", noting)
        return reads

    def test_only_the_length_column_is_read_and_once_on_a_host(self, texts, reads):
        num_groups = sum(map(len, GROUPS))
        loader = load(texts, token_batches=replace(TOKENS, column="length"))
        assert reads == [("length",)] * num_groups
        again = load(texts, token_batches=replace(TOKENS, column="length"))
        assert len(reads) == num_groups
        assert [rows_of(batch) for batch in again] == [rows_of(batch) for batch in loader]
        del reads[:]
        assert RowDataset(texts, length_column="length").lengths.tolist() == list(map(length_of, range(TOTAL)))
        assert reads == []
        load(texts, token_batches=replace(TOKENS, column="tokens"))
        assert reads == [("tokens",)] * num_groups

    @pytest.mark.parametrize("identity", ["strict", "content"])
    def test_another_file_is_measured_anew_though_size_and_time_stay(self, reads, tmp_path, identity):
        path = tmp_path / "texts.parquet"
        for length in (3, 4):
            pq.write_table(pa.table({"row": range(10), "length": [length] * 10}), path)
            os.utime(path, ns=(1, 1))
            loader = load(str(path), token_batches=TokenBatches("length", max_tokens=4), identity=identity)
            assert loader.dataset.planner.lengths.tolist() == [length] * 10

    def test_a_filter_is_never_taken_from_what_was_kept(self, texts, reads):
        for limit in (50, 60):
            load(
                texts,
                token_batches=replace(TOKENS, column="length"),
                filters=pc.field("length").isin(list(range(limit))),
            )
        assert reads.count(("length",)) == 2 * sum(map(len, GROUPS))

    def test_what_was_kept_and_damaged_is_read_again(self, texts, reads, tmp_path):
        load(texts, token_batches=replace(TOKENS, column="length"))
        for file in (tmp_path / "kept").rglob("k" + "?" * 39):
            file.write_bytes(file.read_bytes()[:-1] + b"\xff")
        del reads[:]
        load(texts, token_batches=replace(TOKENS, column="length"))
        assert len(reads) == sum(map(len, GROUPS))

    def test_can_be_switched_off(self, texts, reads, monkeypatch):
        monkeypatch.setenv("TORCH_DATALOADER_UTILS_CACHE", "off")
        load(texts, token_batches=replace(TOKENS, column="length"))
        load(texts, token_batches=replace(TOKENS, column="length"))
        assert len(reads) == 2 * sum(map(len, GROUPS))
