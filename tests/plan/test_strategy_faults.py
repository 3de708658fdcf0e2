"""Split strategies that give the wrong thing: each is told what it gave, on which rows, and what to write instead."""

import re

import numpy as np
import pytest

from tests.plan.model import make_space
from torch_dataloader_utils._core.splits import DataFileInfo, RowRange, Shard, Split
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.plan.strategy_check import StrategyCall

ROWS = [50, 33, 0, 60]


class ByHand:
    """Gives what a function of the files gives, on every rank."""

    def __init__(self, deal):
        self.deal = deal

    def generate(self, files, num_workers, epoch):
        return self.deal(files)


def units(strategy, num_ranks=1, num_workers=1, rows=ROWS):
    space = make_space([[each] for each in rows])
    files = [DataFileInfo(path=f"{index}.parquet", record_count=each) for index, each in enumerate(rows)]
    return StrategyCall(strategy=strategy, files=files, space=space).units(0, num_ranks, num_workers)


def spans(ranks):
    return [[[*zip(lane.start.tolist(), lane.stop.tolist(), strict=True)] for lane in workers] for workers in ranks]


class Generators:
    """Shards and splits are made as they are asked for."""

    def generate(self, files, num_workers, epoch=0, num_ranks=1, rank=0):
        mine = files[rank::num_ranks]
        for worker in range(num_workers):
            yield Shard(worker, (Split(file) for file in mine[worker::num_workers]))


def test_shards_and_splits_may_come_from_generators():
    expected = [[[(0, 50)], []], [[(50, 83)], [(83, 143)]]]
    assert spans(units(Generators(), num_ranks=2, num_workers=2)) == expected


@pytest.mark.parametrize("worker", [True, np.int32(1)])
def test_a_worker_may_be_any_whole_number(worker):
    strategy = ByHand(lambda files: [Shard(worker, [Split(file) for file in files])])
    assert spans(units(strategy, num_workers=2)) == [[[], [(0, 50), (50, 83), (83, 143)]]]


@pytest.mark.parametrize("worker", ["0", 0.0, None, (0,)])
def test_a_worker_that_is_no_whole_number_is_refused(worker):
    strategy = ByHand(lambda files: [Shard(worker, [Split(file) for file in files])])
    says = rf"ByHand\.generate\(\) gave Shard\({re.escape(repr(worker))}.*number shards from 0"
    with pytest.raises(ConfigTypeError, match=says):
        units(strategy)


@pytest.mark.parametrize(
    ("deal", "says"),
    [
        (lambda files: [Shard(0, Split(files[0]))], r"Shard\(0, \.\.\.\) a Split for its splits"),
        (lambda _: [Shard(0, None)], r"Shard\(0, \.\.\.\) a NoneType for its splits"),
        (lambda files: [Shard(0, [Split(files[0].path)])], r"a Split of a str.*Split\(file\)"),
        (lambda _: [Shard(0, [Split(None)])], r"a Split of a NoneType.*Split\(file\)"),
        (lambda files: [Shard(0, [Split(files[0], (0, 50))])], r"row_range=\(0, 50\).*RowRange\(offset, length\)"),
        (lambda files: [Shard(0, [Split(files[0], range(50))])], r"row_range=range\(0, 50\).*RowRange\(offset"),
        (lambda files: [Shard(0, [Split(files[0], RowRange("0", "50"))])], r"offset='0', length='50'\).*whole numbers"),
        (lambda files: [Shard(0, [Split(files[0], RowRange(0, None))])], r"offset=0, length=None\).*whole numbers"),
    ],
)
def test_splits_that_are_no_rows_of_files_are_told_what_to_give(deal, says):
    with pytest.raises(ConfigTypeError, match=rf"ByHand\.generate\(\) gave .*{says}"):
        units(ByHand(deal))


def test_a_file_of_elsewhere_is_named_without_its_password():
    strategy = ByHand(lambda _: [Shard(0, [Split(DataFileInfo("https://me:secret@host/x.parquet"))])])
    with pytest.raises(ConfigError, match=r"host/x\.parquet, which is not in the data set") as caught:
        units(strategy)
    assert "secret" not in str(caught.value)


def without_epoch(self, files, num_workers):
    return []


def without_workers(self, files):
    return []


def only_the_rank(self, files, num_workers, epoch, rank):
    return []


def ranks_alone(self, files, num_workers, epoch, num_ranks):
    return []


def ranks_without_epoch(self, files, num_workers, num_ranks, rank):
    return []


def other_names(self, data_files, workers, epoch, num_ranks, rank):
    return []


def one_too_many(self, files, num_workers, epoch, num_ranks, rank, seed):
    return []


@pytest.mark.parametrize(
    ("generate", "says"),
    [
        (without_epoch, r"\(files, num_workers\) cannot be called with files, num_workers, epoch: "),
        (without_workers, r"\(files\) cannot be called with files, num_workers, epoch: "),
        (only_the_rank, "'rank'"),
        (ranks_alone, "'rank'"),
        (ranks_without_epoch, r"cannot be called with files, num_workers, epoch, num_ranks, rank: .*'epoch'"),
        (other_names, "'data_files'|'files'"),
        (one_too_many, "'seed'"),
    ],
)
def test_a_generate_that_cannot_be_called_is_told_its_parameters(generate, says):
    strategy = type("Careless", (), {"generate": generate})()
    with pytest.raises(ConfigTypeError, match=rf"Careless\.generate.*({says})") as caught:
        units(strategy)
    assert "generate(self, files, num_workers, epoch, num_ranks, rank)" in str(caught.value)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_type_error_within_generate_stays_its_own(num_ranks):
    class Broken:
        def generate(self, files, num_workers, **others):
            return len(3)

    with pytest.raises(TypeError, match="has no len") as caught:
        units(Broken(), num_ranks=num_ranks)
    assert not isinstance(caught.value, ConfigError)
