"""Packing windows: which row groups are packed together, what that fills, and that nothing else changes."""

import itertools
import json
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.samples.corpora import EOD, corpora, number_tokens, pack_corpus, packings, samples_of, write_corpus
from tests.samples.test_packed_loader import load, over_resumes
from torch_dataloader_utils import Holdout, load_inventory, save_inventory, scan_files
from torch_dataloader_utils._core.permute import EpochKey
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, NullValueError
from torch_dataloader_utils.samples import fill_best_fit, pack_tokens
from torch_dataloader_utils.samples.fill import count_mixed, fill_mixed
from torch_dataloader_utils.samples.sample_counts import cut_windows

LENGTHS = [[[5, 0, 30, None, 12], [40, 3]], [[9] * 7], [[1], [2, 6]]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder, number_tokens(LENGTHS))
    return folder


@given(st.lists(st.integers(0, 9)), st.integers(1, 30))
def test_windows_are_neighbours_with_enough_tokens_and_no_row_group_is_left(tokens, least):
    groups, first = cut_windows(np.array(tokens, dtype=np.int64), least)
    assert groups.tolist() == [group for group, count in enumerate(tokens) if count]
    windows = [[tokens[group] for group in part] for part in np.split(groups, first[1:])] if len(first) else []
    assert sum(map(len, windows)) == len(groups)
    for window in windows[:-1]:
        assert sum(window[:-1]) < least <= sum(window)
    assert len(windows) < 2 or sum(windows[-1]) >= least


def test_row_groups_of_few_documents_fill_long_samples_as_far_as_the_sum_allows(tmp_path):
    lengths = np.random.default_rng(0).integers(1, 80, (30, 10)).tolist()
    write_corpus(tmp_path, number_tokens([lengths]))
    total = sum(map(sum, lengths))
    for fill in ("greedy", "best_fit"):
        for least, most in ((1, 0.5), (None, 1.0)):
            inventory = load(tmp_path, pack_tokens("tokens", 1000, fill=fill, window_tokens=least)).plan.inventory
            assert (inventory.num_rows == -(-total // 1000)) == (least is None)
            assert total / (1000 * inventory.num_rows) < most


def test_a_plan_says_its_fill_and_that_it_is_low(corpus):
    text = load(corpus, pack_tokens("tokens", 8)).plan.explain()
    assert "packed: 21 samples of 8 tokens, greedy, fill 0.964\n" in text
    text = load(corpus, pack_tokens("tokens", 1000, window_tokens=1)).plan.explain()
    assert "greedy, fill 0.032; LOW: 97% of every step is padding" in text


def delivered(loader):
    """The tokens that a batch's samples have from documents."""
    return Counter(token for batch in loader for token in batch["tokens"].flatten().tolist() if token not in (0, EOD))


@pytest.mark.slow
@given(lengths=corpora, packing=packings(shuffle_documents=True), part=st.integers(0, 3), data=st.data())
@settings(max_examples=effort(40), deadline=None)
def test_every_live_token_comes_once_over_ranks_and_a_chain_of_resumes(lengths, packing, part, data):
    packing = replace(packing, over_long="cut", extra_token=False)
    files = number_tokens([[[5, 0, 9]], *lengths, [[7, 3, 8], [2, 20]]])
    options = [{}, {"filters": pc.field("row") != 1}, {"holdout": Holdout(0.5, "train")}, {"on_error": "skip"}][part]
    if data.draw(st.booleans()):
        options |= {"shuffle": True, "shuffle_rows": data.draw(st.sampled_from([None, 7]))}
    with TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        folder = Path(name)
        write_corpus(folder, files)
        if part == 3:
            content = bytearray((folder / "part-00.parquet").read_bytes())
            content[4:40] = bytes(36)  # the page of the first row group
            (folder / "part-00.parquet").write_bytes(content)
        plain = load(folder, None, columns=["tokens"], output_format="dict", **options)
        rows = [token for batch in plain for row in batch["tokens"] for token in row or ()]
        assume(rows)
        batches, repeated = over_resumes(data, folder, packing, **options)
    received = delivered(batches)
    assert set(received) == set(rows)
    assert repeated or sum(received.values()) == len(rows)


def test_a_saved_inventory_keeps_its_windows(corpus, tmp_path):
    packing = pack_tokens("tokens", 8, eod=EOD, window_tokens=30)
    plain = load(corpus, packing)
    save_inventory(plain.plan.inventory, tmp_path / "packed.inventory")
    packed = load_inventory(tmp_path / "packed.inventory")
    again = load(corpus, packing, inventory=packed)
    assert again.plan.inventory is packed
    expected = [sample for batch in plain for sample in samples_of(batch)]
    assert [sample for batch in again for sample in samples_of(batch)] == expected
    for length, least in ((16, 30), (8, 1)):
        with pytest.raises(ConfigError, match="counts samples of"):
            load(corpus, pack_tokens("tokens", length, eod=EOD, window_tokens=least), inventory=packed)
    alone = load(corpus, pack_tokens("tokens", 8, eod=EOD, window_tokens=1)).plan.inventory
    assert load(corpus, packing, inventory=alone).plan.inventory.fingerprint() == packed.fingerprint()


def test_the_text_that_states_of_single_row_groups_are_bound_to_has_not_changed():
    assert pack_tokens("tokens", 8, eod=3, shuffle_documents=True).describe() == (
        '{"column": "tokens", "sequence_length": 8, "eod": 3, "extra_token": false, "fill": "greedy", "pad_id": 0, '
        '"over_long": "cut", "counts": "footers", "shuffle_documents": true}'
    )
    assert '"window_tokens": 512' in pack_tokens("tokens", 8).describe(joins=True)


def test_a_state_of_single_row_groups_goes_on_where_windows_are_or_says_how(tmp_path):
    write_corpus(tmp_path, number_tokens([[[40] * 20, [30] * 20]]))
    for length, is_same in ((4, True), (64, False)):
        before = load(tmp_path, pack_tokens("tokens", length, window_tokens=1))
        first = next(iter(before))
        state = json.loads(json.dumps(before.state_dict()))
        now = load(tmp_path, pack_tokens("tokens", length))
        if is_same:
            now.load_state_dict(state)
            rest = [first, *now]
            expected = list(load(tmp_path, pack_tokens("tokens", length, window_tokens=1)))
            assert [batch["tokens"].tolist() for batch in rest] == [batch["tokens"].tolist() for batch in expected]
        else:
            with pytest.raises(CheckpointMismatchError, match="pass window_tokens=1 to pack_tokens"):
                now.load_state_dict(state)


# Samples of two epochs: where documents begin, and their rows.
GOLDEN = {
    "greedy": (
        "0 12 20 of 4 2 | 0 20 of 2 | 0 2 11 17 18 20 of 2 1 1 0 4 | 0 7 16 20 of 4 3 6 | 0 5 20 of 6 0 | "
        "0 20 of 0 | 0 5 10 19 20 of 0 0 0 2 | 0 8 10 13 20 of 2 0 1 5 | 0 2 20 of 5",
        "0 9 11 20 of 5 0 3 | 0 20 of 2 | 0 10 11 20 of 2 0 2 | 0 3 12 20 of 1 4 0 | 0 20 of 0 | "
        "0 12 20 of 0 6 | 0 1 10 15 20 of 6 1 0 1 | 0 1 13 20 of 1 4 0 | 0 2 20 of 0",
    ),
    "best_fit": (
        "0 20 of 0 | 0 9 18 20 of 3 6 | 0 6 11 14 16 20 of 1 0 1 0 | 0 12 13 20 of 4 0 | 0 20 of 2 | "
        "0 9 18 20 of 0 1 | 0 20 of 0 | 0 9 18 20 of 2 5 | 0 10 19 20 of 2 4",
        "0 5 8 20 of 0 1 | 0 20 of 0 | 0 9 18 20 of 0 4 0 | 0 20 of 0 | 0 10 19 20 of 2 6 | "
        "0 9 18 19 20 of 2 3 0 | 0 12 18 20 of 4 1 | 0 20 of 2 | 0 9 18 20 of 1 5",
    ),
}


@pytest.mark.parametrize("fill", ["greedy", "best_fit"])
def test_the_order_of_samples_is_pinned(corpus, fill):
    packing = pack_tokens("tokens", 20, fill=fill, fields=("cu_seqlens", "document_row"), shuffle_documents=True)
    for epoch, expected in enumerate(GOLDEN[fill]):
        loader = load(corpus, packing, batch_size=50)
        loader.set_epoch(epoch)
        (batch,) = loader
        samples = zip(batch["cu_seqlens"].to_list(), batch["document_row"].to_list(), strict=True)
        assert " | ".join(" of ".join(" ".join(map(str, part)) for part in sample) for sample in samples) == expected


def company(lengths, capacity, epoch):
    samples = fill_mixed(lengths, capacity, EpochKey(42, epoch, 0), count_mixed(lengths, capacity))
    of_sample = np.split(samples.document, np.flatnonzero(np.diff(samples.sample)) + 1)
    return {pair for documents in of_sample for pair in itertools.combinations(sorted(documents.tolist()), 2)}


@pytest.mark.parametrize(("documents", "capacity", "most"), [(2000, 2048, 0.02), (360, 2048, 0.06)])
def test_few_documents_meet_again_in_the_next_epoch(documents, capacity, most):
    lengths = np.random.default_rng(7).lognormal(5.5, 0.9, documents).astype(np.int64).clip(1, capacity)
    fewest = fill_best_fit(lengths, capacity, window_documents=documents).sample_count
    assert fewest <= count_mixed(lengths, capacity) <= fewest + fewest // 64
    first, second = (company(lengths, capacity, epoch) for epoch in (0, 1))
    assert len(first & second) < most * len(first)


def test_row_groups_of_a_window_may_lie_in_several_files(corpus):
    packing = pack_tokens("tokens", 50, fields=("document_file", "document_row_group", "document_row"))
    found = []
    for batch in load(corpus, packing):
        for row in zip(
            *(column if isinstance(column, list) else column.to_list() for column in batch.values()), strict=True
        ):
            found += zip(*row, strict=True)
    expected = [
        (str(corpus / f"part-{file:02}.parquet"), group, row)
        for file, groups in enumerate(LENGTHS)
        for group, lengths in enumerate(groups)
        for row, length in enumerate(lengths)
        if length
    ]
    assert list(dict.fromkeys(found)) == expected


def test_more_ranks_than_windows_share_the_only_window(corpus):
    packing = pack_tokens("tokens", 8)
    ranks = [load(corpus, packing, num_ranks=3, rank=rank, drop_last=True) for rank in range(3)]
    assert ranks[0].plan.inventory.num_groups == scan_files(str(corpus)).num_groups
    assert len({len(rank) for rank in ranks}) == 1
    received = Counter(sample for rank in ranks for batch in rank for sample in samples_of(batch))
    assert not received - Counter(pack_corpus(number_tokens(LENGTHS), packing))


def test_a_null_token_names_its_window(corpus, tmp_path):
    lists = [pa.array([[1, 2], [3]]), pa.array([[4], [5, None]])]
    for number, tokens in enumerate(lists):
        pq.write_table(pa.table({"tokens": tokens, "x": [1, 2]}), tmp_path / f"{number}.parquet")
    with pytest.raises(
        NullValueError, match=r"0.parquet row group 0 \(and the next 1, packed with it\) has 1 null tokens"
    ):
        list(load(tmp_path, pack_tokens("tokens", 4)))


def test_remote_row_groups_of_a_window_are_read_in_parallel_and_counted(corpus):
    memory = fsspec.filesystem("memory")
    memory.put(str(corpus), "/test-windows", recursive=True)
    try:
        packing = pack_tokens("tokens", 8, eod=EOD, window_tokens=30)
        remote = load("memory://test-windows", packing)
        expected = [sample for batch in load(corpus, packing) for sample in samples_of(batch)]
        assert [sample for batch in remote for sample in samples_of(batch)] == expected
        assert remote.metrics().fetched_bytes > 0
    finally:
        memory.rm("/test-windows", recursive=True)
