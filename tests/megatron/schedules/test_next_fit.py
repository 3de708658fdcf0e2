"""dp_balanced: the documented result for the documented inputs, and clear errors where the original asserts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.megatron.schedules import DpBalancedScheduler


def groups_of(lengths: list[int], **options: object) -> list[list[list[int]]]:
    return DpBalancedScheduler(**options).get_groups_and_subsamples(list(enumerate(lengths)))


@pytest.mark.parametrize(
    ("lengths", "tokens", "dp", "cp", "expected"),
    [
        ([3, 4, 5, 2, 6, 1, 7], 8, 2, 1, [[[0, 1], [2, 3]], [[4, 5], [6]]]),
        ([3, 4, 5, 2, 6, 1], 8, 2, 1, [[[0, 1], [2, 3]], [[4], [5]]]),
        ([3, 4, 5, 2], 4, 2, 2, [[[0, 1], [0, 1], [2, 3], [2, 3]]]),
    ],
)
def test_gives_the_documented_groups(lengths, tokens, dp, cp, expected):
    assert groups_of(lengths, max_seqlen_per_dp_cp_rank=tokens, dp_size=dp, cp_size=cp) == expected


def test_an_over_long_sequence_is_an_error_that_names_it():
    with pytest.raises(ConfigError, match=r"1 of 3 .* \(first: sequence 0 with 9 tokens\)"):
        groups_of([9, 3, 2], max_seqlen_per_dp_cp_rank=8)


def test_an_over_long_sequence_may_stand_alone_and_leaves_no_empty_pack():
    assert groups_of([9, 3, 2], max_seqlen_per_dp_cp_rank=8, over_long="alone") == [[[0]], [[1, 2]]]


def test_an_over_long_sequence_may_be_dropped_with_a_warning():
    scheduler = DpBalancedScheduler(8, over_long="drop")
    with pytest.warns(UserWarning, match="left out 1 of 3") as warned:
        assert scheduler.schedule([9, 3, 2]).samples.tolist() == [1, 2]
    assert [warning.filename for warning in warned] == [__file__]
    with pytest.raises(ConfigError, match="all 2 sequences"):
        scheduler.schedule([9, 10])


@pytest.mark.parametrize("lengths", [[8, 8, 8], [3]])
def test_too_few_sequences_are_an_error_or_filled_on_purpose(lengths):
    with pytest.raises(ConfigError, match="multiple of 2"):
        groups_of(lengths, max_seqlen_per_dp_cp_rank=8, dp_size=2)
    filled = groups_of(lengths, max_seqlen_per_dp_cp_rank=8, dp_size=2, missing_packs="fill")
    assert filled[-1][-1] == []
    assert sum(not pack for microbatch in filled for pack in microbatch) == 1


def test_one_pack_of_two_splits_over_two_ranks():
    assert groups_of([3, 4], max_seqlen_per_dp_cp_rank=8, dp_size=2) == [[[0], [1]]]


def test_moves_last_sequences_of_the_last_packs_first():
    # Packs 012 | 345: two more are needed, and both come from the last pack, last sequence first.
    groups = groups_of([2, 3, 3] * 2, max_seqlen_per_dp_cp_rank=8, dp_size=4)
    assert groups == [[[0, 1, 2], [3], [5], [4]]]


def test_microbatches_are_a_multiple_of_the_virtual_pipeline_group():
    groups = groups_of([4] * 12, max_seqlen_per_dp_cp_rank=8, dp_size=2, microbatch_group_size_per_vp_stage=2)
    assert len(groups) == 4


@pytest.mark.parametrize("lengths", [[], [3, 0], [3, -1]])
def test_impossible_lengths_are_errors(lengths):
    with pytest.raises(ConfigError):
        groups_of(lengths, max_seqlen_per_dp_cp_rank=8)


def slow_next_fit(lengths: list[int], *, tokens: int, dp: int, cp: int, group: int) -> list[list[list[int]]] | None:
    """The documented rule, word for word; None where the original asserts."""
    packs: list[list[int]] = [[]]
    for position, length in enumerate(lengths):
        if packs[-1] and sum(lengths[each] for each in packs[-1]) + length > tokens * cp:
            packs.append([])
        packs[-1].append(position)
    originals = len(packs)
    giver = originals - 1
    while len(packs) % (dp * group):
        if len(packs[giver]) > 1:
            packs.append([packs[giver].pop()])
        elif giver == 0:
            return None
        else:
            giver -= 1
    return [[packs[microbatch * dp + rank // cp] for rank in range(dp * cp)] for microbatch in range(len(packs) // dp)]


@settings(max_examples=effort(100), deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=40),
    dp=st.integers(1, 4),
    cp=st.integers(1, 3),
    group=st.integers(1, 3),
)
def test_follows_the_documented_rule_for_all_inputs(lengths, dp, cp, group):
    expected = slow_next_fit(lengths, tokens=12, dp=dp, cp=cp, group=group)
    options = {"dp_size": dp, "cp_size": cp, "microbatch_group_size_per_vp_stage": group}
    if expected is None:
        with pytest.raises(ConfigError):
            groups_of(lengths, max_seqlen_per_dp_cp_rank=12, **options)
    else:
        assert groups_of(lengths, max_seqlen_per_dp_cp_rank=12, **options) == expected


def test_ids_are_those_given():
    scheduler = DpBalancedScheduler(8)
    assert scheduler.get_groups_and_subsamples([(70, 5), (80, 3), (90, 1)]) == [[[70, 80]], [[90]]]


def test_accepts_a_numpy_array():
    assert DpBalancedScheduler(8).schedule(np.array([5, 3, 1])).num_microbatches == 2
