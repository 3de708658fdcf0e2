"""Documents that are permuted by epoch before they are packed, against a walk over permuted lists."""

import itertools
import warnings
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.samples.corpora import corpora, kept_documents, number_tokens, packings, walk_group, windows, write_corpus
from tests.samples.test_fields import FIELDS, expected_sample, samples, write
from tests.samples.test_packed_loader import load, over_resumes
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._core.permute import EpochKey, Purpose
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigTypeError
from torch_dataloader_utils.samples import pack_tokens
from torch_dataloader_utils.samples.fill import count_mixed
from torch_dataloader_utils.samples.layout import document_tokens

shuffled_packings = packings(fields=FIELDS, shuffle_documents=True)


def expected_of(folder, files, packing, epoch, seed=42):
    """All samples of an epoch in plan order, window after window, from its documents in the epoch's order."""
    plan_row = 0
    for window in windows(files, packing):
        key = EpochKey(seed, epoch, plan_row)
        if packing.fill == "best_fit":
            walk = mixed(window.group, packing, key)
        else:
            order = key.permutation(len(window.group), Purpose.DOCUMENTS).tolist()
            walk = walk_group([window.group[row] for row in order], packing)
            walk = [[(order[number], at) for number, at in entries] for entries in walk]
        for entries in walk:
            yield expected_sample(entries, window, folder, packing)
            plan_row += 1


def mixed(group, packing, key):
    """The samples of a window that best fit mixes, as `walk_group` gives them: lists of pieces, in plain Python."""
    width = packing.sample_tokens
    pieces = [each[at : at + width] for each in kept_documents(group, packing) for at in range(0, len(each), width)]
    count = count_mixed(document_tokens(np.array([len(each or ()) for each in group]), packing, ""), width)
    if not pieces:
        return []
    order = sorted(key.permutation(len(pieces), Purpose.DOCUMENTS).tolist(), key=lambda each: -len(pieces[each]))
    words = [int(word) >> 32 for word in key.random_words(len(pieces), Purpose.PLACES)]
    total, bins = sum(map(len, pieces)), []
    for part in (256, 16, 4, None):
        bins = [] if part is None else [[] for _ in range(count)]
        for place, piece in enumerate(order):
            free = sorted((width - sum(len(pieces[each]) for each in one), number) for number, one in enumerate(bins))
            fits = [number for room, number in free if room >= len(pieces[piece])]
            rest = sum(len(pieces[each]) for each in order[place:])
            is_random = part is not None and rest > total // part
            if not fits:
                bins.append([piece])
            else:
                bins[fits[words[place] * len(fits) >> 32 if is_random else 0]].append(piece)
        if len(bins) <= count:
            break
    bins += [[] for _ in range(count - len(bins))]
    owner = {piece: number for number, one in enumerate(bins) for piece in one}
    spare = [piece for piece in sorted(owner) if any(owner[each] == owner[piece] for each in range(piece))]
    for number in (number for number, one in enumerate(bins) if not one):
        owner[spare.pop(0)] = number
    by_size = sorted(owner, key=lambda each: (-len(pieces[each]), each))
    return [
        [entry for piece in by_size if owner[piece] == number for entry in pieces[piece]] for number in range(count)
    ]


@pytest.mark.slow
@given(lengths=corpora, packing=shuffled_packings, epoch=st.integers(0, 2**40), seed=st.integers(0, 2**64))
@settings(max_examples=effort(60), deadline=None)
def test_samples_are_those_of_a_walk_over_the_permuted_documents(lengths, packing, epoch, seed):
    assume(any(map(len, lengths)))
    files = number_tokens(lengths)
    with TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The epoch has no steps")
        folder = Path(name)
        write(folder, files)
        loader = load(folder, packing, shuffle_seed=seed)
        loader.set_epoch(epoch)
        received = [sample for batch in loader for sample in samples(batch)]
        assert received == list(expected_of(folder, files, packing, epoch, seed))


@pytest.mark.slow
@given(lengths=corpora, packing=shuffled_packings, epoch=st.integers(0, 3), data=st.data())
@settings(max_examples=effort(40), deadline=None)
def test_samples_of_an_epoch_come_once_over_ranks_and_a_chain_of_resumes(lengths, packing, epoch, data):
    files = number_tokens(lengths)
    with TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        folder = Path(name)
        expected = list(expected_of(folder, files, packing, epoch))
        assume(expected)
        write(folder, files)
        options = {"shuffle": True, "shuffle_rows": data.draw(st.sampled_from([None, 7])), "split_rows": 5}
        batches, repeated = over_resumes(data, folder, packing, epoch=epoch, **options)
    received = [sample for batch in batches for sample in samples(batch)]
    assert set(received) == set(expected)
    assert len(received) == len(expected) + repeated


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder, number_tokens([[[5, 0, 30, None, 12] * 5, [40, 3]], [[9] * 20]]))
    return folder


def company(loader):
    """Which documents share a sample in the next epoch of a loader."""
    found = set()
    for batch in loader:
        for group, rows in zip(batch["document_row_group"].to_list(), batch["document_row"].to_list(), strict=True):
            found.update(itertools.combinations(sorted(zip(group, rows, strict=True)), 2))
    return found


@pytest.mark.parametrize("fill", ["greedy", "best_fit"])
def test_company_changes_with_the_epoch_and_the_number_of_samples_does_not(corpus, fill):
    fields = ("tokens", "document_row", "document_row_group")
    found, steps = [], set()
    for shuffled in (False, True):
        loader = load(corpus, pack_tokens("tokens", 32, fill=fill, fields=fields, shuffle_documents=shuffled))
        for epoch in range(3):
            loader.set_epoch(epoch)
            steps.add(len(loader))
            found.append(company(loader))
    assert len(steps) == 1
    assert found[0] == found[1] == found[2]
    assert len(set(map(frozenset, found[2:]))) == 4


@pytest.mark.processes
@pytest.mark.cases(1)
@pytest.mark.parametrize("workers", [1, 2])
def test_worker_processes_and_a_foreign_loader_deliver_the_same_samples(corpus, workers):
    from torch.utils.data import DataLoader

    packing = pack_tokens("tokens", 16, shuffle_documents=True)
    threads = load(corpus, packing)
    threads.set_epoch(5)
    expected = Counter(tuple(row) for batch in threads for row in batch["tokens"].tolist())
    processes = load(corpus, packing, num_workers=workers)
    processes.set_epoch(5)
    assert Counter(tuple(row) for batch in processes for row in batch["tokens"].tolist()) == expected
    dataset = StructuredDataset(str(corpus), batch_size=3).pack_tokens("tokens", 16, shuffle_documents=True)
    dataset.set_epoch(5)
    foreign = DataLoader(dataset, batch_size=None, num_workers=workers)
    assert Counter(tuple(row) for batch in foreign for row in batch["tokens"].tolist()) == expected


def test_a_state_and_an_inventory_bind_to_it(corpus):
    plain, shuffled = (pack_tokens("tokens", 16, shuffle_documents=each) for each in (False, True))
    state = load(corpus, plain).state_dict()
    assert plain.describe() == pack_tokens("tokens", 16).describe()
    with pytest.raises(CheckpointMismatchError):
        load(corpus, shuffled).load_state_dict(state)
    with pytest.raises(ConfigTypeError, match="shuffle_documents="):
        pack_tokens("tokens", 16, shuffle_documents="yes")
