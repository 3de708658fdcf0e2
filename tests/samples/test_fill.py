"""Documents filled into samples of one length, greedily or best fit: every token once."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils._core.permute import EpochKey
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.samples import DocumentPieces, fill_best_fit, fill_greedily
from torch_dataloader_utils.samples.fill import count_greedy_samples, fill_mixed

_LENGTHS = st.lists(st.integers(0, 20), max_size=25)


def _samples(pieces: DocumentPieces, lengths: list[int]) -> list[list[tuple[int, int]]]:
    """Each sample as the (document, token) pairs it holds."""
    samples: list[list[tuple[int, int]]] = [[] for _ in range(pieces.sample_count)]
    for document, start, stop, sample in zip(
        pieces.document.tolist(), pieces.start.tolist(), pieces.stop.tolist(), pieces.sample.tolist(), strict=True
    ):
        assert 0 <= start < stop <= lengths[document]
        samples[sample] += [(document, token) for token in range(start, stop)]
    assert pieces.token_counts.tolist() == [len(sample) for sample in samples]
    return samples


def test_greedy_pieces_of_the_small_corpus() -> None:
    pieces = fill_greedily([5, 3, 4], 4, extra_tokens=1)
    rows = np.stack([pieces.document, pieces.start, pieces.stop, pieces.sample], axis=1).tolist()
    assert rows == [[0, 0, 5, 0], [0, 4, 5, 1], [1, 0, 3, 1], [2, 0, 1, 1]]


@settings(max_examples=effort(100))
@given(lengths=_LENGTHS, length=st.integers(1, 9), extra_tokens=st.integers(0, 2), keep_tail=st.booleans())
def test_greedy_samples_are_slices_of_all_tokens(
    lengths: list[int], length: int, extra_tokens: int, keep_tail: bool
) -> None:
    row = [(document, token) for document, count in enumerate(lengths) for token in range(count)]
    usable = max(0, len(row) - extra_tokens)
    starts = range(0, usable if keep_tail else usable // length * length, length)
    pieces = fill_greedily(lengths, length, extra_tokens=extra_tokens, keep_tail=keep_tail)
    assert _samples(pieces, lengths) == [row[start : start + length + extra_tokens] for start in starts]
    count = count_greedy_samples(len(row), length, extra_tokens=extra_tokens, keep_tail=keep_tail)
    assert pieces.sample_count == count


@settings(max_examples=effort(100))
@given(lengths=_LENGTHS, capacity=st.integers(1, 9), window=st.integers(1, 30))
def test_best_fit_holds_every_token_once_and_cuts_only_what_is_too_long(
    lengths: list[int], capacity: int, window: int
) -> None:
    pieces = fill_best_fit(lengths, capacity, window_documents=window)
    samples = _samples(pieces, lengths)
    tokens = [token for sample in samples for token in sample]
    assert sorted(tokens) == [(document, token) for document, count in enumerate(lengths) for token in range(count)]
    assert all(0 < len(sample) <= capacity for sample in samples)
    sizes = pieces.stop - pieces.start
    assert all(
        sizes[pieces.document == document].size == -(-count // capacity) for document, count in enumerate(lengths)
    )
    windows = [{document // window for document, _ in sample} for sample in samples]
    assert all(len(each) == 1 for each in windows)
    first = [min(each) for each in windows]
    assert first == sorted(first)


@settings(max_examples=effort(60))
@given(lengths=st.lists(st.integers(1, 9), max_size=25), window=st.integers(1, 30))
def test_best_fit_is_never_worse_than_first_fit_in_its_window(lengths: list[int], window: int) -> None:
    needed = 0
    for start in range(0, len(lengths), window):
        rooms: list[int] = []
        for tokens in sorted(lengths[start : start + window], reverse=True):
            fitting = [number for number, room in enumerate(rooms) if room >= tokens]
            best = min(fitting, key=lambda number: (rooms[number], number), default=None)
            if best is None:
                rooms.append(9 - tokens)
            else:
                rooms[best] -= tokens
        needed += len(rooms)
    assert fill_best_fit(lengths, 9, window_documents=window).sample_count == needed


def test_best_fit_of_the_small_corpora() -> None:
    pieces = fill_best_fit([5, 3, 4, 2], 8, window_documents=4)
    assert _samples(pieces, [5, 3, 4, 2]) == [
        [(0, token) for token in range(5)] + [(1, token) for token in range(3)],
        [(2, token) for token in range(4)] + [(3, token) for token in range(2)],
    ]
    assert fill_best_fit([10], 4, window_documents=1).token_counts.tolist() == [4, 4, 2]


@given(lengths=_LENGTHS, planned=st.integers(0, 40), epoch=st.integers(0, 9))
def test_mixed_samples_hold_every_token_once_whatever_number_of_samples_was_planned(
    lengths: list[int], planned: int, epoch: int
) -> None:
    pieces = fill_mixed(np.array(lengths, np.int64), 8, EpochKey(1, epoch, 0), planned)
    samples = _samples(pieces, lengths)
    wanted = [(document, token) for document, length in enumerate(lengths) for token in range(length)]
    assert sorted(chain.from_iterable(samples)) == wanted
    assert all(0 < len(sample) <= 8 for sample in samples)
    assert len(samples) >= min(planned, len(pieces.sample))


def test_impossible_fills() -> None:
    with pytest.raises(ConfigError, match="Document 1 has the length -1: pass 0 or more"):
        fill_greedily([1, -1], 4)
    with pytest.raises(ConfigError, match="sequence_length=0: pass a whole number of at least 1"):
        fill_greedily([1], 0)
    with pytest.raises(ConfigError, match="extra_tokens=-1: pass a whole number of at least 0"):
        fill_greedily([1], 4, extra_tokens=-1)
    with pytest.raises(ConfigError, match="capacity=0: pass a whole number of at least 1"):
        fill_best_fit([1], 0, window_documents=1)
    with pytest.raises(ConfigError, match="window_documents=0: pass a whole number of at least 1"):
        fill_best_fit([1], 4, window_documents=0)
