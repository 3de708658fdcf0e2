"""`tdu verify`: finds what is wrong with files and with plans, and names it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.shell import tdu, tdu_json
from tests.effort import effort
from tests.stream.tables import files, write_table
from torch_dataloader_utils import Lanes, plan_epoch, scan_files
from torch_dataloader_utils._core.splits import RowRange, Shard, Split
from torch_dataloader_utils.cli.coverage import check_coverage


def test_good_data_is_good(table):
    report = tdu_json("verify", table, "--ranks", 3, "--workers", 2, "--shuffle", "--shuffle-rows", 100)
    assert report["ok"]
    assert report["rows_read"] == report["plan"]["delivered_rows"] == 1500
    assert "each exactly once" in tdu("verify", table, "--ranks", 7, "--no-read").stdout


def test_a_flipped_byte_is_found_and_its_row_group_named(table):
    path = table / "part-1.parquet"
    data = bytearray(path.read_bytes())
    data[600] ^= 0xFF
    path.write_bytes(data)
    report = tdu_json("verify", table, code=1)
    assert [(fault["path"], fault["row_group"]) for fault in report["faults"]] == [(str(path), 0)]
    assert report["rows_read"] == 1300
    shown = tdu("verify", table, code=1).stdout
    assert "CorruptFileError" in shown
    assert f"{path} row group 0" in shown


def test_files_that_changed_since_they_were_scanned_are_found(table, tmp_path):
    saved = tmp_path / "inventory.parquet"
    tdu("scan", table, "--save", saved)
    (table / "part-2.parquet").unlink()
    report = tdu_json("verify", "--inventory", saved, code=1)
    assert {fault["error"] for fault in report["faults"]} == {"FileChangedError"}
    assert len(report["faults"]) == 4
    assert tdu_json("verify", "--inventory", saved, "--no-read")["ok"]


@settings(max_examples=effort(60))
@given(
    files=files.filter(lambda found: sum(map(sum, found))),
    ranks=st.integers(1, 5),
    workers=st.integers(1, 3),
    batch_size=st.integers(1, 9),
    options=st.sampled_from(
        [
            {},
            {"shuffle": True},
            {"shuffle": True, "shuffle_rows": 13, "interleave": 3, "split_rows": 5},
            {"drop_last": True},
            {"drop_last": True, "shuffle_rows": 10},
            {"rank_sharding": "chunks", "split_rows": 5},
            {"lanes": True},
        ]
    ),
)
def test_every_plan_of_ours_is_exact(tmp_path_factory, files, ranks, workers, batch_size, options):
    folder = tmp_path_factory.mktemp("table")
    total = write_table(folder, files)
    if "lanes" in options:
        options = {"lanes": Lanes(ranks * workers, rows=batch_size)}
    plan = plan_epoch(scan_files(str(folder)), num_ranks=ranks, num_workers=workers, batch_size=batch_size, **options)
    coverage = check_coverage(plan)
    assert coverage.is_exact, coverage
    assert coverage.delivered_rows == total - plan.dropped_rows + plan.repeated_rows


class Torn:
    """A plan whose programs were tampered with."""

    def __init__(self, plan, programs):
        self._plan = plan
        self._programs = programs

    def __getattr__(self, name):
        return getattr(self._plan, name)

    @property
    def details(self):
        return self

    @property
    def space(self):
        return self._plan.inputs.space

    def programs(self, rank):
        return self._programs[rank]


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "shuffle_rows": 100}])
def test_a_plan_that_loses_or_repeats_rows_is_caught(table, options):
    plan = plan_epoch(scan_files(str(table)), num_ranks=2, batch_size=10, **options)
    programs = [plan.programs(rank) for rank in range(2)]
    lost = check_coverage(Torn(plan, [programs[0], ()]))
    assert (lost.missing_rows, lost.repeated_rows, lost.is_exact) == (750, 0, False)
    assert lost.where
    assert all("row group" in where for where in lost.where)
    twice = check_coverage(Torn(plan, [programs[0] + programs[1], programs[1]]))
    assert (twice.missing_rows, twice.repeated_rows) == (0, 750)


class WholeFiles:
    """A split strategy that deals files in turn."""

    def generate(self, files, num_workers, epoch, num_ranks, rank):
        shards = []
        for worker in range(num_workers):
            own = [
                file
                for number, file in enumerate(files)
                if number % (num_ranks * num_workers) == rank * num_workers + worker
            ]
            splits = tuple(Split(file=file, row_range=RowRange(offset=0, length=file.record_count)) for file in own)
            shards.append(Shard(id=worker, splits=splits))
        return shards


class ForAll:
    """A split strategy that knows nothing of ranks: each reads everything."""

    def generate(self, files, num_workers, epoch):
        return WholeFiles().generate(files, num_workers, epoch, 1, 0)


@pytest.mark.parametrize("strategy", [WholeFiles(), ForAll()])
def test_plans_of_strategies_are_checked_too(table, strategy):
    plan = plan_epoch(
        scan_files(str(table)), num_ranks=2, batch_size=10, split_strategy=strategy, rank_sharding="chunks"
    )
    assert check_coverage(plan).missing_rows == 0
    assert np.isclose(check_coverage(plan).delivered_rows, 1500)


def test_row_groups_of_unknown_counts_are_checked_whole(table):
    report = tdu_json("verify", table, "--filter", "id < 137", "--ranks", 2)
    assert report["ok"]
    assert report["rows_read"] == 3 * 137
