"""Split strategies that return the wrong thing: errors say what it was, on which rows, and what to write instead."""

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.plan.model import make_space
from torch_dataloader_utils._core.splits import DataFileInfo, RowRange, Shard, Split
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.plan.strategy_call import ENTRY_POINT_GROUP, StrategyCall, find_fault, find_strategy

ROWS = [50, 33, 0, 60]


class ByHand:
    """Gives what a function of the files gives, on every rank."""

    def __init__(self, generate):
        self.generate_shards = generate

    def generate(self, files, num_workers, epoch):
        return self.generate_shards(files)


def units(strategy, num_ranks=1, num_workers=1, rows=ROWS):
    space = make_space([[each] for each in rows])
    files = [DataFileInfo(path=f"{index}.parquet", record_count=each) for index, each in enumerate(rows)]
    return StrategyCall(strategy=strategy, files=files, space=space).units(0, num_ranks, num_workers)


def spans(ranks):
    return [[[*zip(lane.start.tolist(), lane.stop.tolist(), strict=True)] for lane in workers] for workers in ranks]


def ranges(*parts):
    """A strategy that gives these (file, offset, length) to its only worker."""
    return ByHand(lambda files: [Shard(0, [Split(files[file], RowRange(*rows)) for file, *rows in parts])])


class Generators:
    """Shards and splits are made as they are asked for."""

    def generate(self, files, num_workers, epoch=0, num_ranks=1, rank=0):
        mine = files[rank::num_ranks]
        for worker in range(num_workers):
            yield Shard(worker, (Split(file) for file in mine[worker::num_workers]))


def test_shards_and_splits_may_come_from_generators():
    expected = [[[(0, 50)], []], [[(50, 83)], [(83, 143)]]]
    assert spans(units(Generators(), num_ranks=2, num_workers=2)) == expected


class OnlyRankZero:
    def __init__(self, is_lazy):
        self.is_lazy = is_lazy

    def generate(self, files, num_workers, epoch=0, num_ranks=1, rank=0):
        shards = (Shard({0: 0}[rank], [Split(file)]) for file in files)
        return shards if self.is_lazy else list(shards)


@pytest.mark.parametrize("is_lazy", [False, True])
def test_an_error_of_a_strategy_keeps_its_type_and_says_what_was_asked_for(is_lazy):
    with pytest.raises(KeyError) as caught:
        units(OnlyRankZero(is_lazy), num_ranks=2)
    assert caught.value.__notes__ == ["Split strategy OnlyRankZero was asked for epoch 0, rank 1 of 2."]
    with pytest.raises(ZeroDivisionError) as caught:
        units(ByHand(lambda files: 1 / 0))
    assert caught.value.__notes__ == ["Split strategy ByHand was asked for epoch 0."]


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
    ("generate", "says"),
    [
        (lambda files: [Shard(0, Split(files[0]))], r"Shard\(0, \.\.\.\) a Split for its splits"),
        (lambda _: [Shard(0, None)], r"Shard\(0, \.\.\.\) a NoneType for its splits"),
        (lambda files: [Shard(0, [Split(files[0].path)])], r"a Split of a str.*Split\(file\)"),
        (lambda _: [Shard(0, [Split(None)])], r"a Split of a NoneType.*Split\(file\)"),
        (lambda files: [Shard(0, [Split(files[0], (0, 50))])], r"row_range=\(0, 50\).*RowRange\(offset, length\)"),
        (lambda files: [Shard(0, [Split(files[0], range(50))])], r"row_range=range\(0, 50\).*RowRange\(offset"),
        (lambda files: [Shard(0, [Split(files[0], RowRange("0", "50"))])], r"offset='0', length='50'\).*whole numbers"),
        (lambda files: [Shard(0, [Split(files[0], RowRange(0, None))])], r"offset=0, length=None\).*whole numbers"),
        (lambda files: [Shard(0, [Split(files[0], RowRange(0, 50.5))])], r"offset=0, length=50\.5\).*whole numbers"),
        (lambda files: [Shard(0, [Split(files[0], RowRange(True, 50))])], r"offset=True, length=50\).*whole numbers"),
    ],
)
def test_errors_of_splits_that_are_no_rows_of_files_say_what_to_return(generate, says):
    with pytest.raises(ConfigTypeError, match=rf"ByHand\.generate\(\) gave .*{says}"):
        units(ByHand(generate))


def test_a_file_of_elsewhere_is_named_without_its_password():
    strategy = ByHand(lambda _: [Shard(0, [Split(DataFileInfo("https://me:secret@host/x.parquet"))])])
    with pytest.raises(ConfigError, match=r"host/x\.parquet, which is not in the data set") as caught:
        units(strategy)
    assert "secret" not in str(caught.value)


def test_rows_given_twice_are_named_to_the_end_of_what_repeats_them():
    with pytest.raises(ConfigError, match=r"ByHand repeated rows: 0\.parquet rows \[10, 20\)\. Over"):
        units(ranges((0, 0, 50), (0, 10, 10), (1, 0, 33), (3, 0, 60)))


def test_all_rows_given_twice_are_counted():
    with pytest.raises(ConfigError, match=r"repeated rows: 0\.parquet rows \[40, 50\), 43 rows in all\."):
        units(ranges((0, 0, 50), (0, 40, 10), (1, 0, 33), (1, 0, 33), (3, 0, 60)))


def test_lost_rows_are_named_within_one_file_and_counted_in_all():
    with pytest.raises(ConfigError, match=r"lost rows: 0\.parquet rows \[45, 50\), 43 rows in all\."):
        units(ranges((0, 0, 45), (3, 5, 55)))


def test_lost_rows_behind_the_end_of_a_file_are_those_of_the_next_that_has_rows():
    with pytest.raises(ConfigError, match=r"lost rows: 3\.parquet rows \[0, 60\)\. Over"):
        units(ranges((0, 0, 50), (1, 0, 33)))


def test_a_strategy_that_gives_nothing_is_told_how_much_it_lost():
    with pytest.raises(ConfigError, match=r"lost rows: 0\.parquet rows \[0, 50\), 143 rows in all\."):
        units(ByHand(lambda _: []))


parts = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 9)), max_size=8)


@given(parts)
@settings(max_examples=effort(200), deadline=None)
def test_a_fault_is_told_exactly_where_a_row_is_not_there_once(parts):
    rows = [7, 1, 9]
    fitting = [(file, min(offset, rows[file]), length) for file, offset, length in parts]
    fitting = [(file, offset, min(length, rows[file] - offset)) for file, offset, length in fitting]
    counts = Counter((file, row) for file, offset, length in fitting for row in range(offset, offset + length))
    every = [(file, row) for file in range(3) for row in range(rows[file])]
    if all(counts[row] == 1 for row in every):
        units(ranges(*fitting), rows=rows)
        return
    with pytest.raises(ConfigError) as caught:
        units(ranges(*fitting), rows=rows)
    found = re.search(
        r"(lost|repeated) rows: (\d)\.parquet rows \[(\d+), (\d+)\)(?:, (\d+) rows in all)?\.", str(caught.value)
    )
    verb, file, first, last = found[1], *map(int, found.group(2, 3, 4))
    named = [counts[file, row] for row in range(first, last)]
    assert 0 <= first < last <= rows[file]
    assert all(count == 0 if verb == "lost" else count > 1 for count in named)
    wrong = sum(counts[row] == 0 for row in every) if verb == "lost" else sum(counts.values()) - len(counts)
    assert int(found[5] or last - first) == wrong
    before = every[: every.index((file, first))]
    assert all(counts[row] == 1 for row in before)


def test_spans_that_cover_every_row_once_have_no_fault():
    assert find_fault(np.array([5, 0]), np.array([9, 5]), 9) is None
    assert find_fault(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 0) is None


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


class NeedsASetting:
    def __init__(self, setting):
        self.setting = setting

    generate = Generators.generate


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("no_such_module:Strategy", "ModuleNotFoundError: No module named 'no_such_module'"),
        (f"{__name__}:NoSuchClass", "AttributeError: .* has no attribute 'NoSuchClass'"),
        (f"{__name__}:NeedsASetting", "TypeError: .* missing 1 required positional argument: 'setting'"),
    ],
)
def test_a_plug_in_that_does_not_load_is_named(tmp_path, monkeypatch, target, says):
    package = tmp_path / "broken_plug_in-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: broken-plug-in\nVersion: 1\n")
    (package / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\nbroken = {target}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=rf"^Split strategy 'broken' \({target}\) does not load: {says}"):
        find_strategy("broken")
