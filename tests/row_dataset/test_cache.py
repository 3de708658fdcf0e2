"""The row group cache: each row group decoded once where the budget allows, never kept beyond it, safe for threads."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.stream.tables import write_table
from torch_dataloader_utils import Decoding, RowDataset
from torch_dataloader_utils.stream.block_cache import BlockCache

GROUPS = [30] * 6


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    write_table(folder, [GROUPS[:3], GROUPS[3:]])
    return str(folder)


class Bytes:
    """A block of which only the size matters."""

    def __init__(self, num_bytes):
        self.num_bytes = num_bytes


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 50), min_size=10, max_size=10), st.integers(0, 120))
@settings(max_examples=effort(100), deadline=None)
def test_least_recently_used_go_first_and_the_last_one_stays(asked, sizes, budget):
    cache, model, decoded = BlockCache(budget), [], []
    for group in asked:
        cache.get(group, lambda group: decoded.append(group) or Bytes(sizes[group]))
        if group in model:
            model.remove(group)
        model.append(group)
        while len(model) > 1 and sum(sizes[g] for g in model) > budget:
            model.pop(0)
        assert [g for g in range(10) if cache.holds(g)] == sorted(model)
        assert cache.info().held_bytes == sum(sizes[g] for g in model)
    info = cache.info()
    assert info.misses == len(decoded)
    assert info.hits == len(asked) - len(decoded)


def test_errors_are_not_kept():
    cache = BlockCache(100)

    def fail(group):
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        cache.get(1, fail)
    assert cache.get(1, lambda group: Bytes(3)).num_bytes == 3


def test_threads_that_want_the_same_group_decode_it_once():
    cache, begun, go, decoded = BlockCache(100), threading.Event(), threading.Event(), []

    def decode(group):
        decoded.append(group)
        begun.set()
        assert go.wait(60)
        return Bytes(5)

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(cache.get, 1, decode)
        assert begun.wait(60)
        others = [pool.submit(cache.get, 1, decode) for _ in range(3)]
        go.set()
        assert len({id(future.result()) for future in [first, *others]}) == 1
    assert decoded == [1]


@pytest.mark.parametrize("cache_bytes", [0, "1MiB"])
@pytest.mark.parametrize("decode_threads", [1, 4])
def test_a_batch_decodes_each_of_its_row_groups_once(table, cache_bytes, decode_threads):
    rows = RowDataset(table, cache_bytes=cache_bytes, decoding=Decoding(threads=decode_threads))
    rows.__getitems__([0, 170, 5, 65, 171, 64])
    assert rows.cache_info().misses == 3


def test_reading_in_order_decodes_every_row_group_once_without_any_budget(table):
    rows = RowDataset(table, cache_bytes=0)
    for index in range(len(rows)):
        rows[index]
    assert rows.cache_info().misses == len(GROUPS)


def test_many_threads_get_the_right_rows(table):
    rows = RowDataset(table, columns=["row"], cache_bytes=2000, decoding=Decoding(threads=2))
    orders = [np.random.default_rng(seed).integers(-180, 180, 60) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda order: [int(row["row"]) for row in rows.__getitems__(order)], orders))
    assert found == [(order % 180).tolist() for order in orders]


def test_decoded_rows_are_not_pickled(table):
    rows = RowDataset(table)
    empty = len(pickle.dumps(rows))
    rows.take(range(180))
    assert rows.cache_info().held_bytes > 5000
    assert len(pickle.dumps(rows)) < empty + 500  # an opened store has a name
    copy = pickle.loads(pickle.dumps(rows))
    assert copy.cache_info().misses == 0
    assert copy[7]["name"] == "row-7"


def test_a_row_does_not_keep_its_row_group(table):
    row = RowDataset(table)[3]
    assert row["row"].untyped_storage().nbytes() <= 8 * len(row)
