"""`TokenBatches(..., padding_free=True)` over real files: sums of lengths, workers, resume, states, refusals."""

import json
import re
from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import given, settings

from tests.effort import effort
from tests.structured.test_token_batches import (
    BUDGET,
    OPTIONS,
    STOPS,
    TOTAL,
    check_resume_elsewhere,
    length_of,
    rows_of,
    write_texts,
)
from tests.tables.iceberg.tables import TableWriter, field_of
from torch_dataloader_utils import IcebergDataset, PadRagged, StructuredDataset, TokenBatches, pack_tokens
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores, on purpose
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

TOKENS = TokenBatches("tokens", max_tokens=BUDGET, padding_free=True)
FREE = {**OPTIONS, "token_batches": TOKENS}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder)
    return str(folder)


def load(folder, **options):
    return StructuredDataset.create_dataloader(folder, **{**FREE, **options})[0]


def tokens_of(rows):
    return sum(map(length_of, rows))


def check_batches(batches, batch_size=24):
    assert all(tokens_of(rows) <= BUDGET and len(rows) <= batch_size for rows in batches)


def drain(folder, num_ranks, **options):
    """The batches of every rank, after checking that lengths are as announced and equal."""
    ranks = []
    for rank in range(num_ranks):
        loader = load(folder, num_ranks=num_ranks, rank=rank, **options)
        ranks.append([rows_of(batch) for batch in loader])
        assert len(ranks[-1]) == len(loader)
        check_batches(ranks[-1])
    assert len({len(batches) for batches in ranks}) == 1
    return ranks


@pytest.mark.parametrize("column", ["tokens", "length", "seconds", "text"])
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_every_row_once_and_batches_full(texts, num_ranks, column):
    ranks = drain(texts, num_ranks, token_batches=replace(TOKENS, column=column))
    batches = [rows for batches in ranks for rows in batches]
    assert sorted(row for rows in batches for row in rows) == list(range(TOTAL))
    assert np.mean([tokens_of(rows) for rows in batches]) > 0.9 * BUDGET
    # Short and long rows share batches, which hold more rows than 600 tokens of the longest row would be.
    assert np.mean([np.ptp([length_of(row) for row in rows]) for rows in batches]) > 70
    assert len(batches) < len(load(texts, token_batches=replace(TOKENS, padding_free=False)))


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_rows_of_a_batch_lie_end_to_end(texts, num_workers):
    seen = []
    for batch in load(texts, columns=["row", "tokens"], num_workers=num_workers):
        tokens, rows = batch["tokens"], rows_of(batch)
        assert tokens.offsets[-1] == len(tokens.values) == tokens_of(rows) <= BUDGET
        assert torch.equal(tokens.values, batch["row"].repeat_interleave(tokens.lengths))
        seen += rows
    assert sorted(seen) == list(range(TOTAL))


@pytest.mark.processes
def test_all_output_formats_lengths_and_workers_give_the_same_batches(texts):
    (whole,) = drain(texts, 1)
    for options in (
        {"token_batches": replace(TOKENS, column="length")},
        {"columns": None},
        {"columns": ["row", "tokens"]},
    ):
        assert drain(texts, 1, **options) == [whole]
    batches = load(texts, output_format="numpy", transform=lambda batch: batch, num_workers=0)
    assert [rows_of(batch) for batch in batches] == whole
    # Two workers have the batches of two runs of the same list.
    (by_two,) = drain(texts, 1, num_workers=2)
    assert by_two[::2] + by_two[1::2] == whole


@pytest.mark.processes
def test_epochs_have_as_many_steps_of_other_batches(texts):
    loader = load(texts, num_workers=2, persistent_workers=True)
    orders, steps = [], len(loader)
    for epoch in range(3):
        loader.set_epoch(epoch)
        orders.append([rows_of(batch) for batch in loader])
        assert len(orders[-1]) == len(loader) == steps
        check_batches(orders[-1])
        assert sorted(row for rows in orders[-1] for row in rows) == list(range(TOTAL))
    members = [{frozenset(rows) for rows in order} for order in orders]
    assert all(len(members[0] & other) < steps / 2 for other in members[1:])


@pytest.mark.slow
@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("num_ranks", "num_workers"), [(1, 0), (3, 0), pytest.param(1, 2, marks=pytest.mark.processes)]
)
def test_resume_at_every_step_gives_the_other_batches(texts, num_ranks, num_workers):
    options = {"num_ranks": num_ranks, "rank": num_ranks - 1, "num_workers": num_workers}
    loader = load(texts, **options)
    states, whole = [json.loads(json.dumps(loader.state_dict()))], []
    for batch in loader:
        whole.append(rows_of(batch))
        states.append(json.loads(json.dumps(loader.state_dict())))
    resumed = load(texts, **options)
    for step in range(len(whole)) if num_workers == 0 else (1, 2, len(whole) - 1):
        resumed.load_state_dict(states[step])
        assert [rows_of(batch) for batch in resumed] == whole[step:]


@pytest.mark.slow
@given(**STOPS)
@settings(max_examples=effort(15), deadline=None)
def test_resume_on_another_topology_gives_the_other_rows(texts, **stop):
    check_resume_elsewhere(load, check_batches, texts, **stop)


def test_an_iceberg_table_with_deletes(tmp_path):
    table = TableWriter(tmp_path)
    table.evolve(field_of(1, "row", "long"), field_of(2, "length", "int"))
    rows = [{"row": row, "length": length_of(row)} for row in range(300)]
    paths = [table.append(rows[:120], rows_per_group=40), table.append(rows[120:], rows_per_group=50)]
    table.delete_positions([(paths[0], 3), (paths[0], 50), (paths[1], 0)])
    options = {**FREE, "token_batches": replace(TOKENS, column="length"), "shuffle_rows": 70, "num_ranks": 2}
    ranks = []
    for rank in range(2):
        loader, _ = IcebergDataset.create_dataloader(table.metadata, rank=rank, **options)
        ranks.append([rows_of(batch) for batch in loader])
        check_batches(ranks[-1])
    assert len(ranks[0]) == len(ranks[1])
    received = sorted(row for batches in ranks for part in batches for row in part)
    assert received == sorted(set(range(300)) - {3, 50, 120})


def test_a_filter_is_counted_and_only_its_rows_have_lengths(texts):
    ranks = drain(texts, 2, filters=pc.field("length") <= 50, token_batches=replace(TOKENS, max_tokens=60))
    rows = sorted(row for batches in ranks for part in batches for row in part)
    assert rows == [row for row in range(TOTAL) if length_of(row) <= 50]
    assert all(tokens_of(part) <= 60 for batches in ranks for part in batches)


def test_rows_too_long_are_named_as_they_are(texts):
    first = next(row for row in range(TOTAL) if length_of(row) > 64)
    wanted = f"live row {first} of .*part-0.parquet row group 0, with {length_of(first)} tokens of 'tokens'. Raise"
    with pytest.raises(ConfigError, match=wanted):
        load(texts, token_batches=replace(TOKENS, max_tokens=64))
    load(texts, token_batches=replace(TOKENS, max_tokens=100))


def test_a_state_says_that_it_is_padding_free(texts):
    padded, free = load(texts, token_batches=replace(TOKENS, padding_free=False)), load(texts)
    assert dict(free.state_dict()["options"])["padding_free"] is True
    assert "padding_free" not in dict(padded.state_dict()["options"])
    for loader, state, says in (
        (padded, free.state_dict(), "padding_free=True, here False"),
        (free, padded.state_dict(), "padding_free=False, here True"),
    ):
        with pytest.raises(CheckpointMismatchError, match=says):
            loader.load_state_dict(state)
    assert "buckets by tokens of at most 600 tokens, padding_free" in free.plan.explain()
    assert "padding_free" not in padded.plan.explain()
    assert free.plan.fingerprint != padded.plan.fingerprint


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_tokens": None}, "pass max_tokens=, or leave padding_free out"),
        ({"pad_to_multiple_of": 8}, "pad_to_multiple_of=8 with padding_free=True"),
        ({"pad_to_multiple_of": 1}, "pad_to_multiple_of=1 with padding_free=True"),
        ({"padding_free": "yes"}, "padding_free='yes'"),
    ],
)
def test_values_that_cannot_be(options, match):
    with pytest.raises(ConfigError, match=match):
        replace(TOKENS, **options)


@pytest.mark.parametrize("padding", [{"collate_fn": PadRagged()}, {"transform": PadRagged(pad_to_multiple_of=8)}])
def test_functions_that_pad_are_refused(texts, padding):
    with pytest.raises(ConfigError, match="Leave PadRagged out"):
        load(texts, **padding)


def test_packs_refuse_it(texts):
    with pytest.raises(ConfigError, match=re.escape("token_batches with pack=")):
        StructuredDataset(texts, token_batches=TOKENS, pack=pack_tokens("tokens", 8))
