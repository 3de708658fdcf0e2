"""Packed loaders on real files against a walk over lists: every token once, equal steps, exact resume."""

import itertools
import json
import warnings
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.samples.corpora import EOD, corpora, number_tokens, pack_corpus, packings, samples_of, write_corpus
from torch_dataloader_utils import Decoding, Lanes, StructuredDataset
from torch_dataloader_utils.errors import CheckpointMismatchError
from torch_dataloader_utils.samples import pack_tokens


def load(folder, packing, **options):
    options = {"batch_size": 3, "num_workers": 0, "decoding": Decoding(threads=1), **options}
    return StructuredDataset.create_dataloader(str(folder), pack=packing, **options)[0]


def over_resumes(data, folder, packing, *, epoch=0, **options):
    """The batches of one epoch over ranks and a chain of resumes, and how many samples come twice."""
    state, batches, repeated = None, [], 0
    while state is None or state["epoch"] == epoch:
        num_ranks = data.draw(st.integers(1, 3))
        loaders = [load(folder, packing, num_ranks=num_ranks, rank=rank, **options) for rank in range(num_ranks)]
        steps = data.draw(st.integers(1, 5))
        for loader in loaders:
            if state is None:
                loader.set_epoch(epoch)
            else:
                loader.load_state_dict(state)
            repeated = loader.plan.repeated_rows
            iterator = iter(loader)
            batches += itertools.islice(iterator, steps)
            iterator.close()
        state = json.loads(json.dumps(loaders[0].state_dict()))
    return batches, repeated


@pytest.mark.slow
@given(lengths=corpora, packing=packings())
# Samples that are just full: by the extra token, by a document, and by a document whose EOD is alone in the next one.
@example(lengths=[[[4, 5]]], packing=pack_tokens("tokens", 4, extra_token=True))
@example(lengths=[[[4, 5]]], packing=pack_tokens("tokens", 4, fill="best_fit", over_long="drop"))
@example(lengths=[[[4, 9]]], packing=pack_tokens("tokens", 4, eod=EOD, fill="best_fit"))
@settings(max_examples=effort(60), deadline=None)
def test_samples_are_those_of_a_walk_over_the_documents(lengths, packing):
    assume(any(map(len, lengths)))
    tokens = number_tokens(lengths)
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The epoch has no steps")
        write_corpus(Path(folder), tokens)
        loader = load(folder, packing)
        batches = [samples_of(batch) for batch in loader]
    expected = pack_corpus(tokens, packing)
    assert len(loader) == len(batches) == -(-len(expected) // 3)
    assert [sample for batch in batches for sample in batch] == expected


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder, number_tokens([[[5, 0, 30, None, 12], [40, 3]], [[9] * 20]]))
    return folder


@pytest.mark.processes
def test_worker_processes_deliver_the_same_samples(corpus):
    packing = pack_tokens("tokens", 16, eod=EOD)
    expected = [samples_of(batch) for batch in load(corpus, packing)]
    received = [sample for batch in load(corpus, packing, num_workers=2) for sample in samples_of(batch)]
    assert Counter(received) == Counter(sample for batch in expected for sample in batch)


def test_a_state_binds_to_the_packing(corpus):
    packing = pack_tokens("tokens", 16, eod=EOD)
    state = load(corpus, packing).state_dict()
    load(corpus, pack_tokens("tokens", 16, eod=EOD, fields=("tokens",))).load_state_dict(state)
    for other in (pack_tokens("tokens", 16), pack_tokens("tokens", 16, eod=EOD, pad_id=1), None):
        with pytest.raises(CheckpointMismatchError):
            load(corpus, other).load_state_dict(state)
    with pytest.raises(CheckpointMismatchError):
        load(corpus, packing).load_state_dict(load(corpus, None).state_dict())


def test_lanes_give_the_same_global_batches_on_any_number_of_ranks(corpus):
    packing = pack_tokens("tokens", 8, eod=EOD, window_tokens=1)

    def global_batches(num_ranks):
        options = {"lanes": Lanes(4, rows=1), "batch_size": 4 // num_ranks, "shuffle": True}
        ranks = [load(corpus, packing, num_ranks=num_ranks, rank=rank, **options) for rank in range(num_ranks)]
        return [Counter(s for batch in step for s in samples_of(batch)) for step in zip(*ranks, strict=True)]

    one, two = global_batches(1), global_batches(2)
    assert len(one) == len(two)
    assert one[:-1] == two[:-1]


def test_fields_choose_and_order_the_columns(corpus):
    loader = load(corpus, pack_tokens("tokens", 8, extra_token=True, fields=("loss_mask", "tokens")))
    batch = next(iter(loader))
    assert list(batch) == ["loss_mask", "tokens"]
    assert batch["tokens"].shape == (3, 9)
    assert batch["loss_mask"].shape == (3, 8)


@pytest.mark.parametrize("kind", [pa.list_view(pa.int32()), pa.large_list_view(pa.int32())])
@pytest.mark.parametrize("counts", ["footers", "read"])
def test_views_of_lists_are_documents_too(tmp_path, kind, counts):
    documents = pa.array([[1, 2, 3], None, [], [4, 5]], kind)
    pq.write_table(pa.table({"tokens": documents}), tmp_path / "views.parquet")
    (batch,) = load(tmp_path, pack_tokens("tokens", 4, counts=counts), batch_size=4)
    assert batch["tokens"].tolist() == [[1, 2, 3, 4], [5, 0, 0, 0]]


@pytest.mark.parametrize("kind", [pa.list_view(pa.int32()), pa.large_list_view(pa.int32())])
@pytest.mark.parametrize("fill", ["greedy", "best_fit"])
def test_the_last_view_of_a_list_ends_where_it_ends(tmp_path, kind, fill):
    documents = [[document] * 8 for document in range(1, 17)]
    table = pa.table({"tokens": pa.array(documents, kind)})
    with pa.ipc.new_file(tmp_path / "views.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=2)
    (batch,) = load(tmp_path, pack_tokens("tokens", 8, fill=fill), format="arrow", batch_size=16)
    assert sorted(batch["tokens"].tolist()) == documents


@pytest.mark.parametrize("output_format", ["numpy", "arrow", "dict"])
def test_other_output_formats(corpus, output_format):
    loader = load(corpus, pack_tokens("tokens", 8), output_format=output_format)
    tokens = next(iter(loader))["tokens"]
    expected = next(iter(load(corpus, pack_tokens("tokens", 8))))["tokens"].tolist()
    assert (tokens.to_pylist() if output_format == "arrow" else [list(row) for row in tokens]) == expected
