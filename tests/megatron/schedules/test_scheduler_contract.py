"""Schedulers of a user: the answers that are accepted, and the error for each of the others."""

import numpy as np
import pytest

from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.megatron.schedules import BasePackingScheduler, PackingConfig, PackingGroups, scheduler_map
from torch_dataloader_utils.megatron.schedules.packed_loader import create_scheduler


class Fixed(BasePackingScheduler):
    """Gives the groups that it was made with."""

    groups: list[list[list[int]]]

    def get_groups_and_subsamples(self, sample_id_seqlens):
        return self.groups


def schedule(groups, lengths, **options):
    scheduler = Fixed(8, **options)
    scheduler.groups = groups
    return scheduler.schedule(lengths)


def test_a_users_schedule_is_carried_out_as_it_is():
    assert schedule([[[1], [0, 2]]], [3, 4, 5], dp_size=2).samples.tolist() == [1, 0, 2]


def test_ids_may_be_numpy_arrays():
    first, second = np.array([1]), np.array([0, 2])
    assert schedule([[first, second]], [3, 4, 5], dp_size=2).samples.tolist() == [1, 0, 2]
    shared = schedule([[second, second.copy()], [first, first.copy()]], [3, 4, 5], cp_size=2)
    assert shared.span.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], "no microbatch"),
        ([[[0, 1, 2]]], "1 entries for 2 ranks"),
        ([[[0], [1]]], "sequence 2 in 0 packs"),
        ([[[0, 1], [1, 2]]], "sequence 1 in 2 packs"),
        ([[[0, 1], [2, 3]]], "names sequence 3"),
        ([[[0, 1], [2]], [[], []]], "gives rank 0 no sequence"),
        ([[[0, 2, 1], [0, 2, 1]]], "2 ranks from rank 0"),
        ([[[0, 2], [1]]], "has 9 tokens"),
    ],
)
def test_a_broken_schedule_is_named(groups, message):
    with pytest.raises(ConfigError, match=message):
        schedule(groups, [4, 3, 5], dp_size=2)


@pytest.mark.parametrize("groups", [None, [0, 1], [[0, 1], [2, 0]]])
def test_anything_but_nested_lists_is_named(groups):
    with pytest.raises(ConfigTypeError, match="Return a list of lists of lists"):
        schedule(groups, [4, 3, 5], dp_size=2)


def test_context_parallel_ranks_must_agree():
    with pytest.raises(ConfigError, match="equal lists"):
        schedule([[[0], [1]]], [4, 4], cp_size=2)


def test_microbatches_must_fit_the_virtual_pipeline():
    with pytest.raises(ConfigError, match="not a multiple"):
        schedule([[[0]], [[1]], [[2]]], [4, 4, 4], microbatch_group_size_per_vp_stage=2)


def test_dropping_what_fits_is_an_error():
    with pytest.raises(ConfigError, match="which fits"):
        schedule([[[0]]], [4, 4], over_long="drop")


def test_lengths_count_as_padded_for_context_parallelism():
    # 5 and 6 tokens on 2 ranks take 8 each: 16 tokens, exactly what two ranks hold.
    assert schedule([[[0, 1], [0, 1]]], [5, 6], cp_size=2).span.tolist() == [2]


@pytest.mark.parametrize("options", [{"over_long": "cut"}, {"missing_packs": "no"}, {"dp_size": 0}])
def test_unknown_options_are_errors(options):
    with pytest.raises(ConfigError):
        Fixed(8, **options)


def test_a_scheduler_is_found_by_name(monkeypatch):
    monkeypatch.setitem(scheduler_map, "fixed", Fixed)
    config = PackingConfig(max_seqlen_per_dp_cp_rank=8, sequence_packing_scheduler="fixed")
    assert isinstance(create_scheduler(config, PackingGroups()), Fixed)
    with pytest.raises(ConfigError, match="'dp_balanced', 'compute_balanced', 'hybrid_context_parallel'"):
        create_scheduler(PackingConfig(max_seqlen_per_dp_cp_rank=8, sequence_packing_scheduler="x"), PackingGroups())
    with pytest.raises(ConfigError, match="microbatch_group_size_per_vp_stage"):
        create_scheduler(
            PackingConfig(max_seqlen_per_dp_cp_rank=8, virtual_pipeline_model_parallel_size=2), PackingGroups()
        )
