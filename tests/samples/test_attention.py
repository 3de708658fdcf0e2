"""What attention needs of packed samples, against plain Python, dense attention, and torch's own block masks."""

import itertools
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from tests.effort import effort
from tests.samples.corpora import EOD, corpora, number_tokens, pack_corpus, walk_group, windows, write_corpus
from tests.samples.test_packed_loader import load
from torch_dataloader_utils import Ragged
from torch_dataloader_utils.megatron.schedules import get_thd_partitioned_indices
from torch_dataloader_utils.samples import (
    document_block_mask,
    document_ids,
    flash_attn_arguments,
    flat_cu_seqlens,
    longest_document,
    pack_tokens,
    position_ids,
    thd_cu_seqlens,
)


@st.composite
def boundaries(draw):
    """(L, the boundaries of some samples, each from 0 to L)."""
    length = draw(st.integers(1, 70))
    inner = st.sets(st.integers(1, length - 1)) if length > 1 else st.just(set())
    samples = draw(st.lists(inner, min_size=1, max_size=4))
    return length, [[0, *sorted(each), length] for each in samples]


def ragged(rows, dtype=torch.int32):
    return Ragged(
        torch.tensor([value for row in rows for value in row], dtype=dtype),
        torch.tensor([0, *itertools.accumulate(map(len, rows))]),
    )


def owners(row):
    return [number for number, (start, stop) in enumerate(itertools.pairwise(row)) for _ in range(start, stop)]


@given(boundaries())
@settings(max_examples=effort(100), deadline=None)
def test_documents_places_and_arguments_are_those_of_the_boundaries(given_samples):
    length, rows = given_samples
    cu_seqlens = ragged(rows)
    sizes = [stop - start for row in rows for start, stop in itertools.pairwise(row)]
    assert document_ids(cu_seqlens, length).tolist() == [owners(row) for row in rows]
    positions = [[place for start, stop in itertools.pairwise(row) for place in range(stop - start)] for row in rows]
    assert position_ids(cu_seqlens, length).tolist() == positions
    assert longest_document(cu_seqlens) == max(sizes)
    arguments = flash_attn_arguments(cu_seqlens, length)
    assert arguments["cu_seqlens_q"].tolist() == [0, *itertools.accumulate(sizes)]
    assert arguments["cu_seqlens_k"].dtype == torch.int32
    assert arguments["max_seqlen_q"] == arguments["max_seqlen_k"] == max(sizes)


@pytest.mark.slow
@given(boundaries(), st.sampled_from([1, 2, 4, 16, 128]), st.booleans())
@settings(max_examples=effort(60), deadline=None)
def test_the_block_mask_is_the_one_that_torch_makes_of_all_pairs(given_samples, block_size, causal):
    length, rows = given_samples
    ids = torch.tensor([owners(row) for row in rows])

    def attends(sample, _, query, key):
        return (ids[sample, query] == ids[sample, key]) & ((key <= query) if causal else (key == key))

    expected = create_block_mask(attends, len(rows), None, length, length, "cpu", BLOCK_SIZE=block_size)
    mask = document_block_mask(ragged(rows), length, causal=causal, block_size=block_size)
    assert mask.shape == expected.shape
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(mask, name), getattr(expected, name)), name
    assert torch.equal(mask.to_dense(), expected.to_dense())


@pytest.mark.slow
@given(boundaries(), st.booleans())
@settings(max_examples=effort(20), deadline=None)
def test_flex_attention_with_the_mask_is_dense_attention_within_documents(given_samples, causal):
    length, rows = given_samples
    torch.manual_seed(0)
    query, key, value = torch.randn(3, len(rows), 2, length, 16)
    mask = document_block_mask(ragged(rows), length, causal=causal, block_size=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it runs without torch.compile
        attended = flex_attention(query, key, value, block_mask=mask)
    for sample, row in enumerate(rows):
        for start, stop in itertools.pairwise(row):
            part = (slice(sample, sample + 1), slice(None), slice(start, stop))
            alone = torch.nn.functional.scaled_dot_product_attention(
                query[part], key[part], value[part], is_causal=causal
            )
            assert torch.allclose(attended[part], alone, atol=1e-5)


@pytest.mark.slow
@given(lengths=corpora, cp_size=st.sampled_from([1, 2, 4]), fill=st.sampled_from(["greedy", "best_fit"]))
@settings(max_examples=effort(30), deadline=None)
def test_padded_documents_divide_over_context_parallel_ranks(lengths, cp_size, fill):
    tokens = number_tokens(lengths)
    fields = ("tokens", "positions", "loss_mask", "cu_seqlens", "document_tokens")
    packing = pack_tokens("tokens", 48, eod=EOD, fill=fill, fields=fields, pad_to_multiple_of=2 * cp_size)
    expected = pack_corpus(tokens, packing)
    assume(expected)
    with TemporaryDirectory() as folder:
        write_corpus(Path(folder), tokens)
        (batch,) = load(folder, packing, batch_size=len(expected))
    real, padded = thd_cu_seqlens(batch["cu_seqlens"], batch["document_tokens"], 48)
    # An independent walk: the lengths of all sequences with and without padding; the padding of a sample is one too.
    walks = [walk for window in windows(tokens, packing) for walk in _sequences(window.group, packing)]
    assert padded.tolist() == [0, *itertools.accumulate(size for _, size in walks)]
    assert real.tolist() == [0, *itertools.accumulate(count for count, _ in walks)]
    assert not (padded % (2 * cp_size)).any()
    total = len(expected) * 48
    parts = [get_thd_partitioned_indices(padded, total, cp_size, rank) for rank in range(cp_size)]
    assert sorted(torch.cat(parts).tolist()) == list(range(total))
    for rank, part in enumerate(parts):
        chunks = [
            range(start + size * chunk // (2 * cp_size), start + size * (chunk + 1) // (2 * cp_size))
            for start, (_, size) in zip(padded.tolist(), walks, strict=False)
            for chunk in ((rank, 2 * cp_size - 1 - rank) if cp_size > 1 else (0, 1))
        ]
        assert part.tolist() == [place for chunk in chunks for place in chunk]


def _sequences(group, packing):
    """(tokens, tokens with padding) of each document and padding of each sample."""
    for entries in walk_group(group, packing):
        for document, part in itertools.groupby(entries, lambda entry: entry[0]):
            places = [place for _, place in part]
            yield sum(place <= len(group[document]) for place in places), len(places)
        if len(entries) < packing.sequence_length:
            yield 0, packing.sequence_length - len(entries)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_boundaries_keep_their_type(dtype):
    assert flat_cu_seqlens(ragged([[0, 3, 8], [0, 8]], dtype), 8).tolist() == [0, 3, 8, 16]
    assert flat_cu_seqlens(ragged([[0, 3, 8], [0, 8]], dtype), 8).dtype == dtype
