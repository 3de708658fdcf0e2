"""Length buckets: every batch is one bucket of its window, every row comes once, and resume continues exactly."""

import json
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.stream.tables import files
from torch_dataloader_utils import (
    Lanes,
    PadRagged,
    Ragged,
    StructuredDataset,
    TensorBatch,
    TokenBatches,
    plan_epoch,
    scan_files,
)
from torch_dataloader_utils._core.token_budget import EqualBuckets
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, ConfigTypeError


def length_of(row):
    """The length of a row, scattered over short and long; some rows have equal ones."""
    return row * 7919 % 101


def write_texts(folder, files):
    """Parquet files whose rows have lists of known length, the length itself, and a text of it."""
    row = 0
    schema = pa.schema([("row", pa.int64()), ("tokens", pa.list_(pa.int32())), ("length", pa.int32())])
    schema = schema.append(pa.field("text", pa.string()))
    for index, groups in enumerate(files):
        with pq.ParquetWriter(folder / f"part-{index:02}.parquet", schema) as writer:
            for rows in groups:
                lengths = [length_of(number) for number in range(row, row + rows)]
                columns = {
                    "row": list(range(row, row + rows)),
                    "tokens": [[number] * length for number, length in enumerate(lengths, start=row)],
                    "length": lengths,
                    "text": ["x" * length for length in lengths],
                }
                writer.write_table(pa.table(columns, schema=schema), row_group_size=max(rows, 1))
                row += rows
    return row


TABLE = [[130, 400, 70], [220], [10, 300, 301]]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    return folder, write_texts(folder, TABLE)


def load(folder, **options):
    defaults = {"batch_size": 8, "num_workers": 0, "columns": ["row"], "shuffle_rows": 100}
    defaults["token_batches"] = TokenBatches("tokens")
    return StructuredDataset.create_dataloader(str(folder), **{**defaults, "split_rows": 150, **options})[0]


def rows_of(batch):
    return batch["row"].tolist()


def window_rows(plan, rank):
    """All rows of every shuffle window that a rank's workers read, by (worker, window number)."""
    table = plan.to_arrow([rank]).to_pylist()
    starts = dict(zip(zip(*group_names(plan), strict=True), plan.inputs.space.group_start.tolist(), strict=False))
    windows = defaultdict(list)
    for use in table:
        first = starts[use["path"], use["row_group"]]
        windows[use["worker"], use["window"]] += range(first + use["start_row"], first + use["stop_row"])
    return windows


def group_names(plan):
    groups, paths = plan.inventory.groups, plan.inventory.files.paths
    return [paths[file] for file in groups.file.tolist()], groups.ordinal.tolist()


def check_buckets(batches, window, batch_size):
    """The batches are the window's rows cut by length: whole buckets first, a short one last."""
    by_length = sorted(length_of(row) for row in window)
    found = sorted((sorted(length_of(row) for row in batch) for batch in batches), key=lambda b: (b[0], b[-1], len(b)))
    assert [length for bucket in found for length in bucket] == by_length
    sizes = [len(batch) for batch in batches]
    assert all(size == batch_size for size in sizes[:-1])


class TestOrder:
    @given(
        lengths=st.lists(st.one_of(st.integers(0, 20), st.floats(0, 1)), max_size=60),
        bucket_rows=st.integers(1, 12),
        seed=st.integers(0, 2**64 - 1),
        index=st.integers(0, 2**40),
    )
    @settings(max_examples=effort(100), deadline=None)
    def test_buckets_are_runs_of_the_sorted_lengths(self, lengths, bucket_rows, seed, index):
        lengths = np.array(lengths)
        order = EqualBuckets(bucket_rows=bucket_rows).order(lengths, seed=seed, epoch=3, index=index)
        assert order.dtype == np.int64
        assert sorted(order.tolist()) == list(range(len(lengths)))
        buckets = [lengths[order[at : at + bucket_rows]] for at in range(0, len(order), bucket_rows)]
        buckets.sort(key=lambda bucket: (bucket.min(), bucket.max(), len(bucket)))
        in_order = [value for bucket in buckets for value in np.sort(bucket).tolist()]
        assert in_order == np.sort(lengths).tolist()
        again = EqualBuckets(bucket_rows=bucket_rows).order(lengths.copy(), seed=seed, epoch=3, index=index)
        assert order.tolist() == again.tolist()

    def test_is_pinned(self):
        order = EqualBuckets(bucket_rows=3).order(np.array([5, 1, 4, 2, 9, 9, 0]), seed=42, epoch=1, index=7)
        assert order.tolist() == [0, 5, 4, 1, 3, 2, 6]

    def test_depends_on_every_part_of_the_key(self):
        lengths = np.zeros(50, dtype=np.int64)
        keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
        orders = [EqualBuckets(bucket_rows=5).order(lengths, seed=s, epoch=e, index=i).tolist() for s, e, i in keys]
        assert len({tuple(order) for order in orders}) == 4

    def test_the_short_bucket_may_have_any_length(self):
        lengths = np.arange(31)
        shorts = {
            int(EqualBuckets(bucket_rows=10).order(lengths, seed=seed, epoch=0, index=0)[-1]) for seed in range(40)
        }
        assert shorts == {0, 10, 20, 30}


class TestLoader:
    @pytest.mark.slow
    @given(
        files=files,
        num_ranks=st.integers(1, 3),
        batch_size=st.integers(2, 12),
        shuffle_rows=st.integers(1, 80),
        drop_last=st.booleans(),
        shuffle=st.booleans(),
        token_batches=st.sampled_from([TokenBatches(column) for column in ("tokens", "length", "text")]),
        filtered=st.booleans(),
    )
    @settings(max_examples=effort(50), deadline=None)
    def test_every_row_once_and_every_batch_one_bucket(
        self, files, num_ranks, batch_size, shuffle_rows, filtered, **options
    ):
        assume(sum(map(sum, files)) > 0)
        with TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            total = write_texts(Path(folder), files)
            expected = set(range(total if not filtered else total // 2))
            if filtered:
                options["filters"] = pc.field("row") < total // 2
            counts = Counter()
            for rank in range(num_ranks):
                loader = load(
                    folder,
                    num_ranks=num_ranks,
                    rank=rank,
                    batch_size=batch_size,
                    shuffle_rows=shuffle_rows,
                    **options,
                )
                plan = loader.plan
                batches = [rows_of(batch) for batch in loader]
                assert len(batches) == len(loader)
                counts.update(row for batch in batches for row in batch)
                if not filtered and not plan.repeated_rows:
                    self.check_windows(plan, rank, batches, batch_size, shuffle_rows)
        assert set(counts) <= expected
        assert len(expected - set(counts)) == plan.dropped_rows
        assert sum(counts.values()) - len(counts) == plan.repeated_rows

    def check_windows(self, plan, rank, batches, batch_size, shuffle_rows):
        """One worker: its windows follow one another, each a whole number of batches but for the last one."""
        wanted = -(-shuffle_rows // batch_size) * batch_size
        windows = list(window_rows(plan, rank).values())
        assert all(len(window) == wanted for window in windows[:-1])
        at = 0
        for window in windows:
            mine, rows = [], 0
            while rows < len(window):
                mine.append(batches[at])
                rows += len(batches[at])
                at += 1
            assert sorted(row for batch in mine for row in batch) == sorted(window)
            check_buckets(mine if len(mine[-1]) > 1 else merge_tail(mine, batch_size), window, batch_size)

    def test_all_output_formats_and_columns_have_the_same_order(self, texts):
        whole = [rows_of(batch) for batch in load(texts[0])]
        for options in (
            {"token_batches": TokenBatches("length")},
            {"token_batches": TokenBatches("text")},
            {"columns": None},
            {"columns": ["row", "tokens"]},
        ):
            assert [rows_of(batch) for batch in load(texts[0], **options)] == whole
        for output_format in ("numpy", "dict", "arrow"):
            batches = load(texts[0], output_format=output_format)
            assert [list(np.asarray(batch["row"])) for batch in batches] == whole
        assert list(next(iter(load(texts[0])))) == ["row"]

    @pytest.mark.processes
    def test_worker_processes_and_persistent_epochs(self, texts):
        loader = load(texts[0], num_workers=2, persistent_workers=True)
        orders = []
        for epoch in range(2):
            loader.set_epoch(epoch)
            orders.append([rows_of(batch) for batch in loader])
            assert sorted(row for batch in orders[-1] for row in batch) == list(range(texts[1]))
        assert orders[0] != orders[1]

    @pytest.mark.slow
    @pytest.mark.parametrize("num_ranks", [1, 3])
    def test_resume_on_the_same_topology_gives_the_same_batches(self, texts, num_ranks):
        options = {"num_ranks": num_ranks, "rank": num_ranks - 1, "shuffle": True}
        whole = [rows_of(batch) for batch in load(texts[0], **options)]
        for step in (0, 1, 12, 13, 20, len(whole) - 1):
            loader = load(texts[0], **options)
            batches = iter(loader)
            assert [rows_of(next(batches)) for _ in range(step)] == whole[:step]
            resumed = load(texts[0], **options)
            resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
            assert [rows_of(batch) for batch in resumed] == whole[step:]

    def test_batches_of_a_resumed_job_lie_in_few_buckets(self, texts):
        """On other ranks the cuts fall anywhere, so a batch may lie in two buckets, or three at a short one."""
        bucket, state = {}, None
        for rank in range(2):
            loader = load(texts[0], num_ranks=2, rank=rank)
            for step, batch in enumerate(loader):
                bucket |= dict.fromkeys(rows_of(batch), (rank, step))
                state = loader.state_dict() if step == 19 else state
        for rank in range(3):
            resumed = load(texts[0], num_ranks=3, rank=rank)
            resumed.load_state_dict(state)
            assert max(len({bucket[row] for row in rows_of(batch)}) for batch in resumed) <= 3

    def test_lanes_give_the_same_global_batches_on_other_topologies(self, texts):
        def global_batches(num_ranks):
            ranks = [
                [rows_of(b) for b in load(texts[0], num_ranks=num_ranks, rank=r, batch_size=16 // num_ranks, **lanes)]
                for r in range(num_ranks)
            ]
            return [sorted(row for batch in step for row in batch) for step in zip(*ranks, strict=True)]

        lanes = {"lanes": Lanes(4, rows=4), "shuffle": True}
        assert global_batches(1) == global_batches(2) == global_batches(4)

    def test_a_state_with_another_bucket_column_is_refused(self, texts):
        state = load(texts[0]).state_dict()
        with pytest.raises(CheckpointMismatchError, match="bucket_by"):
            load(texts[0], token_batches=TokenBatches("length")).load_state_dict(state)

    def test_buckets_waste_less_padding(self, texts):
        def padding(loader):
            lengths = [[length_of(row) for row in rows_of(batch)] for batch in loader]
            return 1 - sum(map(sum, lengths)) / sum(max(batch) * len(batch) for batch in lengths)

        assert padding(load(texts[0])) < padding(load(texts[0], token_batches=None)) / 3

    def test_a_plan_knows_its_windows(self, texts):
        plan = plan_epoch(
            scan_files(str(texts[0])), batch_size=8, shuffle_rows=100, token_batches=TokenBatches("tokens")
        )
        windows = window_rows(plan, 0).values()
        assert {len(window) for window in windows} <= {104, texts[1] % 104}
        assert "buckets by tokens" in plan.explain()

    @pytest.mark.parametrize(("num_ranks", "num_workers"), [(1, 3), (3, 1), (2, 3)])
    def test_only_the_last_window_of_a_worker_is_partial(self, texts, num_ranks, num_workers):
        plan = plan_epoch(
            scan_files(str(texts[0])),
            batch_size=8,
            shuffle_rows=30,
            token_batches=TokenBatches("tokens"),
            shuffle=True,
            split_rows=50,
            num_ranks=num_ranks,
            num_workers=num_workers,
        )
        for rank in range(num_ranks):
            sizes = defaultdict(list)
            for (worker, _), window in window_rows(plan, rank).items():
                sizes[worker].append(len(window))
            assert len(sizes) == num_workers
            assert all(size == 32 for of_worker in sizes.values() for size in of_worker[:-1])

    def test_refusals(self, texts):
        with pytest.raises(ConfigError, match="shuffle_rows="):
            load(texts[0], shuffle_rows=None)
        with pytest.raises(ConfigError, match="no such column"):
            load(texts[0], token_batches=TokenBatches("nowhere"))
        with pytest.raises(ConfigTypeError, match=r"TokenBatches\.column is the name of a column; got 5"):
            TokenBatches(5)
        with pytest.raises(ConfigError, match=r"TokenBatches\.column is the name of a column; got an empty one"):
            TokenBatches("")
        with pytest.raises(ConfigTypeError, match=r"token_batches='tokens': pass TokenBatches\(column"):
            load(texts[0], token_batches="tokens", shuffle_rows=None)
        with pytest.raises(ConfigTypeError, match=r"token_batches=\['row'\]: pass TokenBatches\(column"):
            plan_epoch(scan_files(str(texts[0])), token_batches=["row"])
        with pytest.raises(ConfigError, match="exact row counts"):
            load(texts[0], filters=pc.field("row") > 3, count_rows=False).plan.worker_inputs(0)


def merge_tail(batches, batch_size):
    """A rank short of a step ends with B - 1 rows and 1: together its last bucket."""
    if len(batches) > 1 and len(batches[-2]) == batch_size - 1:
        return [*batches[:-2], batches[-2] + batches[-1]]
    return batches


class TestPadRagged:
    @given(
        rows=st.lists(st.lists(st.integers(1, 9), max_size=7), max_size=6),
        side=st.sampled_from(["left", "right"]),
        multiple=st.integers(1, 5),
        value=st.integers(-3, 0),
    )
    @settings(max_examples=effort(60), deadline=None)
    def test_pads_as_a_loop_would(self, rows, side, multiple, value):
        values = torch.tensor([item for row in rows for item in row], dtype=torch.int32)
        offsets = torch.tensor(np.cumsum([0, *map(len, rows)]))
        batch = TensorBatch({"x": Ragged(values, offsets), "y": torch.arange(len(rows))})
        padded = PadRagged(padding_value=value, side=side, pad_to_multiple_of=multiple)(batch)
        width = -(-max(map(len, rows), default=0) // multiple) * multiple
        fill, ones = [[value] * (width - len(row)) for row in rows], [[True] * len(row) for row in rows]
        zeros = [[False] * len(missing) for missing in fill]
        right = side == "right"
        assert padded["x"].tolist() == [a + b if right else b + a for a, b in zip(rows, fill, strict=True)]
        assert padded["x_mask"].tolist() == [a + b if right else b + a for a, b in zip(ones, zeros, strict=True)]
        assert padded["x"].dtype == torch.int32
        assert padded["y"] is batch["y"]
        assert padded.num_rows == len(rows)

    @pytest.mark.processes
    def test_as_collate_function_of_a_loader(self, texts):
        collate = PadRagged(pad_to_multiple_of=16, padding_value={"tokens": -1})
        for batch in load(texts[0], columns=["row", "tokens"], collate_fn=collate, num_workers=1):
            lengths = [length_of(row) for row in rows_of(batch)]
            assert batch["tokens"].shape == (len(lengths), -(-max(lengths) // 16) * 16)
            assert batch["tokens_mask"].sum(1).tolist() == lengths
            assert (batch["tokens"] == -1).sum().item() == batch["tokens_mask"].logical_not().sum().item()

    def test_chosen_columns_and_refusals(self):
        ragged = Ragged(torch.tensor([1.0]), torch.tensor([0, 1]))
        batch = TensorBatch({"a": ragged, "b": ragged, "a_mask": torch.ones(1, dtype=torch.bool)})
        assert isinstance(PadRagged(columns=["b"])(batch)["a"], Ragged)
        assert list(PadRagged(with_masks=False)(batch)) == ["a", "b", "a_mask"]
        with pytest.raises(ConfigError, match="a_mask"):
            PadRagged()(batch)
        with pytest.raises(ConfigError, match="not a ragged column"):
            PadRagged(columns=["a_mask"])(batch)
        with pytest.raises(ConfigError, match="'c' is not a ragged column"):
            PadRagged(padding_value={"c": 1})(batch)
        with pytest.raises(ConfigError, match="side"):
            PadRagged(side="both")
        with pytest.raises(ConfigError, match="at least 1"):
            PadRagged(pad_to_multiple_of=0)
        with pytest.raises(ConfigError, match="output_format"):
            PadRagged()({"a": [1]})

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("pad_to_multiple_of", None),
            ("pad_to_multiple_of", "8"),
            ("with_masks", "no"),
            ("padding_value", "0"),
            ("padding_value", {"tokens": None}),
        ],
    )
    def test_another_type_is_refused(self, name, value):
        with pytest.raises(ConfigTypeError, match=f"{name}={value!r}: pass"):
            PadRagged(**{name: value})

    def test_one_column_name_is_no_list(self):
        with pytest.raises(ConfigTypeError, match=r"Write columns=\['tokens'\]"):
            PadRagged(columns="tokens")
