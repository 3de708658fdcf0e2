"""The two-chunk order, against Transformer Engine's rule written out chunk by chunk."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.megatron.schedules import get_thd_partitioned_indices


@settings(max_examples=effort(100), deadline=None)
@given(chunks=st.lists(st.integers(1, 5), min_size=1, max_size=8), cp_size=st.integers(1, 8))
def test_rank_r_takes_chunks_r_and_its_mirror(chunks, cp_size):
    rows: list[list[int]] = [[] for _ in range(cp_size)]
    starts = [0]
    for chunk in chunks:
        parts = torch.arange(starts[-1], starts[-1] + 2 * cp_size * chunk).split(chunk)
        for rank in range(cp_size):
            rows[rank] += parts[rank].tolist() + parts[2 * cp_size - 1 - rank].tolist()
        starts.append(starts[-1] + 2 * cp_size * chunk)
    found = [
        get_thd_partitioned_indices(torch.tensor(starts, dtype=torch.int32), starts[-1], cp_size, rank)
        for rank in range(cp_size)
    ]
    assert [each.tolist() for each in found] == rows
    assert sorted(torch.cat(found).tolist()) == list(range(starts[-1]))


def test_documented_example():
    starts = torch.tensor([0, 4, 12], dtype=torch.int32)
    assert get_thd_partitioned_indices(starts, 12, 2, 0).tolist() == [0, 3, 4, 5, 10, 11]
    assert get_thd_partitioned_indices(starts, 12, 2, 1).tolist() == [1, 2, 6, 7, 8, 9]


def test_a_rank_alone_takes_all_tokens():
    for starts in ([0, 3], [0, 3, 6], [0, 4, 12]):
        found = get_thd_partitioned_indices(torch.tensor(starts, dtype=torch.int32), starts[-1], 1, 0)
        assert found.tolist() == list(range(starts[-1]))


def test_wrong_rank_or_odd_total_is_an_error():
    with pytest.raises(ConfigError, match="cp_rank is 2"):
        get_thd_partitioned_indices(torch.tensor([0, 4]), 4, 2, 2)
    with pytest.raises(ConfigError, match="multiple of 4"):
        get_thd_partitioned_indices(torch.tensor([0, 6]), 6, 2, 0)
