"""The whole path in one process: no torch.distributed, no groups."""

import json
from itertools import chain

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.megatron.schedules.sequences import Sequences, samples_of, sequence
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, ConfigTypeError, DataError
from torch_dataloader_utils.megatron.schedules import (
    ComputeBalancedScheduler,
    DpBalancedScheduler,
    HybridContextParallelScheduler,
    PackedLoader,
    PackingConfig,
    PackingGroups,
    PlannedPackedLoader,
    broadcast_to_pp_group,
    create_data_iterator,
    create_packing_groups,
    get_batch_on_this_rank_for_sequence_packing,
    pad_sample,
    wrap_data_iterator,
)

CONFIG = PackingConfig(max_seqlen_per_dp_cp_rank=8)
LENGTHS = [3, 4, 5, 2, 6, 1, 7]


def microbatches_of(batch):
    return [get_batch_on_this_rank_for_sequence_packing(batch.data_iterator) for _ in range(batch.num_microbatches)]


def test_a_global_batch_comes_back_packed():
    batch = wrap_data_iterator(samples_of(LENGTHS), CONFIG, len(LENGTHS))
    assert batch[1:] == (4, 28, 140)
    tokens, labels, loss_mask, attention_mask, position_ids, params, padding_mask = (
        get_batch_on_this_rank_for_sequence_packing(batch.data_iterator)
    )
    assert tokens.tolist() == [[0, 1, 2, 1000, 1001, 1002, 1003]]
    assert labels.tolist() == [[1, 2, 3, 1001, 1002, 1003, 1004]]
    assert loss_mask.dtype == torch.float32
    assert attention_mask is None
    assert position_ids.tolist() == [[0, 1, 2, 0, 1, 2, 3]]
    assert params.cu_seqlens_q.tolist() == params.cu_seqlens_kv_padded.tolist() == [0, 3, 7]
    assert params.cu_seqlens_q.dtype == torch.int32
    assert (params.max_seqlen_q, params.qkv_format, params.local_cp_size) == (4, "thd", None)
    assert padding_mask.tolist() == [[False] * 7]


def test_padding_stays_where_the_data_set_put_it():
    samples = iter([pad_sample(sequence(0, 3), multiple=4), pad_sample(sequence(1, 4), multiple=4)])
    batch = wrap_data_iterator(samples, CONFIG, 2)
    (only,) = microbatches_of(batch)
    assert only.tokens.tolist() == [[0, 1, 2, 0, 1000, 1001, 1002, 1003]]
    assert only.loss_mask.tolist() == [[1, 1, 1, 0, 1, 1, 1, 1]]
    assert only.packed_seq_params.cu_seqlens_q.tolist() == [0, 3, 7]
    assert only.packed_seq_params.cu_seqlens_q_padded.tolist() == [0, 4, 8]
    assert only.padding_mask.tolist() == [[False] * 3 + [True] + [False] * 4]
    assert batch.seqlen_sum == 8


def test_what_a_data_set_pads_with_is_no_token():
    sample = pad_sample(sequence(0, 3), multiple=4)
    sample["labels"][3], sample["loss_mask"][3] = -100, 1
    (only,) = microbatches_of(wrap_data_iterator(iter([sample]), CONFIG, 1))
    assert only.labels.tolist() == [[1, 2, 3, 0]]
    assert only.loss_mask.tolist() == [[1, 1, 1, 0]]


def test_items_may_be_lists_or_packed_rows_with_a_batch_dimension():
    rows = {key: torch.cat([sequence(0, 3)[key], sequence(1, 4)[key]])[None] for key in sequence(0, 1)}
    packed = rows | {"cu_seqlens": torch.tensor([[0, 3, 3, 7]])}
    listed = [pad_sample(sequence(2, 1)), pad_sample(sequence(3, 2))]
    batch = wrap_data_iterator(iter([packed, listed]), CONFIG, 2)
    found = torch.cat([each.tokens for each in microbatches_of(batch)], dim=1)
    assert found.tolist() == [[0, 1, 2, 1000, 1001, 1002, 1003, 2000, 3000, 3001]]


def test_what_is_left_at_the_end_is_a_global_batch():
    samples = samples_of(LENGTHS)
    sizes = [wrap_data_iterator(samples, CONFIG, 4).seqlen_sum for _ in range(2)]
    assert sizes == [14, 14]
    with pytest.raises(StopIteration):
        wrap_data_iterator(samples, CONFIG, 4)


@pytest.mark.parametrize("empty", [[], sequence(0, 0) | {"cu_seqlens": torch.tensor([0, 0])}], ids=["list", "row"])
def test_items_without_a_sequence_do_not_end_the_data(empty):
    items = [pad_sample(sequence(0, 3)), empty, empty, pad_sample(sequence(1, 4)), empty]
    assert [batch.seqlen_sum for batch in PackedLoader(items, CONFIG, 1)] == [3, 4]
    assert [batch.seqlen_sum for batch in PackedLoader(items, CONFIG, 2)] == [3, 4]
    assert list(PackedLoader([empty], CONFIG, 1)) == []


def test_an_empty_pack_becomes_a_padding_sequence_without_loss():
    scheduler = DpBalancedScheduler(8, microbatch_group_size_per_vp_stage=2, missing_packs="fill")
    batch = wrap_data_iterator(samples_of([3]), CONFIG, 1, scheduler=scheduler)
    _, padding = microbatches_of(batch)
    assert padding.tokens.shape == (1, 2)
    assert padding.loss_mask.sum() == 0
    assert padding.packed_seq_params.cu_seqlens_q.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"labels": None}, ConfigError, "misses"),
        ({"weight": torch.ones(3)}, ConfigError, r"unknown keys \['weight'\]"),
        ({"tokens": torch.ones(3)}, ConfigTypeError, "whole numbers"),
        ({"tokens": [1, 2, 3]}, ConfigTypeError, "is a list"),
        ({"tokens": torch.ones(2, 3, dtype=torch.int64)}, ConfigError, r"shape \[2, 3\]"),
        (
            {"original_seq_len": torch.tensor([4])},
            ConfigError,
            "original_seq_len is 4 in a sample with padded_seq_len 3",
        ),
        ({"loss_mask": torch.ones(2)}, ConfigError, "loss_mask has 2 values in a sample with padded_seq_len 3"),
    ],
)
def test_a_wrong_sample_is_named(change, error, message):
    sample = {key: value for key, value in (pad_sample(sequence(0, 3)) | change).items() if value is not None}
    with pytest.raises(error, match=message):
        wrap_data_iterator(iter([sample]), CONFIG, 1)


def test_a_wrong_packed_row_is_named():
    row = sequence(0, 3) | {"cu_seqlens": torch.tensor([0, 3])}
    with pytest.raises(ConfigError, match=r"unknown keys \['weight'\]"):
        wrap_data_iterator(iter([row | {"weight": torch.ones(3)}]), CONFIG, 1)
    row.pop("labels")
    with pytest.raises(ConfigError, match=r"misses \['labels'\]"):
        wrap_data_iterator(iter([row]), CONFIG, 1)


@pytest.mark.parametrize(
    "borders",
    [
        {"cu_seqlens": [0, 3]},
        {"cu_seqlens": [1, 5]},
        {"cu_seqlens": [0, 4, 2, 5]},
        {"cu_seqlens": [0, 4, 6]},
        {"cu_seqlens": []},
        {"cu_seqlens": [0, 2, 4], "cu_seqlens_padded": [0, 5]},
    ],
    ids=str,
)
def test_a_packed_row_whose_borders_lose_or_repeat_tokens_is_refused(borders):
    row = sequence(0, 5) | {key: torch.tensor(values, dtype=torch.int64) for key, values in borders.items()}
    with pytest.raises(ConfigError, match="item 0 of the data iterator has 5 tokens and"):
        wrap_data_iterator(iter([row]), CONFIG, 1)


def test_padding_behind_the_last_sequence_of_a_packed_row_is_left_out():
    row = sequence(0, 5) | {"loss_mask": torch.tensor([1.0, 1, 1, 0, 0]), "cu_seqlens": torch.tensor([0, 3])}
    assert wrap_data_iterator(iter([row]), CONFIG, 1).seqlen_sum == 3


def test_a_packed_row_has_fields_of_one_length_and_borders_in_a_tensor():
    row = sequence(0, 5) | {"cu_seqlens": torch.tensor([0, 5])}
    with pytest.raises(ConfigError, match=r"item 0 of the data iterator has \{'tokens': 9, 'labels': 5"):
        wrap_data_iterator(iter([row | {"tokens": torch.arange(9)}]), CONFIG, 1)
    with pytest.raises(ConfigTypeError, match="cu_seqlens of item 0 of the data iterator is a list"):
        wrap_data_iterator(iter([row | {"cu_seqlens": [0, 5]}]), CONFIG, 1)


@pytest.mark.parametrize("multiple", [0, -4, 2.5])
def test_a_sample_is_padded_to_a_multiple_from_one(multiple):
    with pytest.raises(ConfigError, match=f"multiple={multiple}"):
        pad_sample(sequence(0, 5), multiple=multiple)


@pytest.mark.parametrize(
    ("item", "kind"),
    [(torch.ones(3), "a Tensor"), ([[1, 2]], "a list"), ("tokens", "a str"), (5, "an int"), (None, "a NoneType")],
)
def test_items_that_are_no_samples_are_named(item, kind):
    with pytest.raises(ConfigTypeError, match=f"item 0 of the data iterator has {kind}"):
        wrap_data_iterator(iter([item]), CONFIG, 1)


def test_a_global_batch_of_no_items_is_refused():
    with pytest.raises(ConfigError, match="num_microbatches=0"):
        wrap_data_iterator(samples_of(LENGTHS), CONFIG, 0)


def test_an_error_of_the_data_set_comes_through_as_it_is():
    def failing():
        yield pad_sample(sequence(0, 3))
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        wrap_data_iterator(failing(), CONFIG, 2)


def test_virtual_stages_get_tokens_at_both_ends_and_metadata_between():
    config = PackingConfig(
        max_seqlen_per_dp_cp_rank=8, virtual_pipeline_model_parallel_size=3, microbatch_group_size_per_vp_stage=1
    )
    batch = wrap_data_iterator([None, samples_of([3, 4]), None], config, 2)
    first, middle, last = (next(iterator) for iterator in batch.data_iterator)
    assert first.keys() == last.keys()
    assert middle.keys() == {"cu_seqlens", "cu_seqlens_padded", "max_seqlen"}
    with pytest.raises(ConfigError, match="2 data iterators for 3"):
        wrap_data_iterator([None, samples_of([3, 4])], config, 2)


def test_virtual_stage_gives_only_what_it_computes_on():
    batch = wrap_data_iterator(samples_of([3]), CONFIG, 1)
    facts = next(batch.data_iterator)
    embed, middle, loss = (
        get_batch_on_this_rank_for_sequence_packing(iter([facts]), vpp_size=3, vp_stage=stage) for stage in range(3)
    )
    assert embed.tokens is not None
    assert embed.labels is None
    assert middle.tokens is None
    assert middle.labels is None
    assert middle.packed_seq_params.cu_seqlens_q.tolist() == [0, 3]
    assert loss.labels is not None
    assert loss.tokens is None
    only = get_batch_on_this_rank_for_sequence_packing(iter([facts]), vp_stage=0)
    assert only.tokens is not None
    assert only.labels is not None
    several = get_batch_on_this_rank_for_sequence_packing(iter([facts]), 3, True, 1)
    assert several.tokens is not None
    assert several.labels is not None


def test_iterators_in_the_wrong_place_are_errors():
    with pytest.raises(ConfigError, match="no data iterator"):
        wrap_data_iterator(None, CONFIG, 1)
    with pytest.raises(ConfigError, match="no data iterator"):
        get_batch_on_this_rank_for_sequence_packing(None)
    with pytest.raises(ConfigError, match="misses"):
        get_batch_on_this_rank_for_sequence_packing(
            iter([{"cu_seqlens": torch.tensor([0, 2]), "cu_seqlens_padded": torch.tensor([0, 2])}])
        )
    with pytest.raises(ConfigError, match="no batch to share"):
        broadcast_to_pp_group(None, PackingGroups())


def test_groups_and_scheduler_must_fit():
    with pytest.raises(ConfigError, match="not the number of processes, 1"):
        create_packing_groups(dp_size=2)
    with pytest.raises(ConfigError, match=r"\(1, 1, 1\) ranks, the scheduler is for \(2, 1, 2\)"):
        wrap_data_iterator(samples_of([3]), CONFIG, 1, scheduler=DpBalancedScheduler(8, dp_size=2))


def test_create_data_iterator_is_plain_without_virtual_stages():
    assert list(create_data_iterator([{}, {}], PackingGroups())) == [{}, {}]


@pytest.mark.parametrize(
    "scheduler", [DpBalancedScheduler(8), ComputeBalancedScheduler(8), HybridContextParallelScheduler(8)]
)
def test_planned_loader_gives_what_the_communicating_path_gives(scheduler):
    wrapped = wrap_data_iterator(samples_of(LENGTHS), CONFIG, len(LENGTHS), scheduler=scheduler)
    (planned,) = PlannedPackedLoader(Sequences(LENGTHS), LENGTHS, scheduler, global_batch_size=len(LENGTHS))
    assert planned[1:] == wrapped[1:]
    for ours, theirs in zip(planned.data_iterator, wrapped.data_iterator, strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            assert value.dtype == theirs[key].dtype
            assert torch.equal(value, theirs[key])


def epochs(loader, count):
    return [[[each.tokens.tolist() for each in microbatches_of(batch)] for batch in loader] for _ in range(count)]


def planned(**options):
    arguments = {"global_batch_size": 3, "shuffle": True, "seed": 7} | options
    return PlannedPackedLoader(Sequences(LENGTHS), LENGTHS, DpBalancedScheduler(8), **arguments)


def test_planned_loader_reads_every_sequence_once_per_epoch_in_another_order():
    source = Sequences(LENGTHS)
    loader = PlannedPackedLoader(source, LENGTHS, DpBalancedScheduler(8), global_batch_size=3, shuffle=True)
    first, second = epochs(loader, 2)
    assert first != second
    assert sorted(source.read) == sorted(2 * list(range(7)))
    assert (len(loader), len(planned(drop_last=True))) == (3, 2)


@pytest.mark.parametrize(
    ("lengths", "scheduler", "says"),
    [
        ([[3, 4]], DpBalancedScheduler(8), r"lengths have the shape \(1, 2\): pass one number"),
        ([3, 4], "dp_balanced", "scheduler='dp_balanced': pass a scheduler, such as"),
    ],
)
def test_planned_loader_says_what_it_takes(lengths, scheduler, says):
    with pytest.raises(ConfigTypeError, match=says):
        PlannedPackedLoader(Sequences([3, 4]), lengths, scheduler, global_batch_size=2)


def test_planned_loader_resumes_from_every_step():
    straight = list(chain(*epochs(planned(), 2)))
    for steps in range(6):
        loader = planned()
        given = []
        while len(given) < steps:
            for batch in loader:
                given.append([each.tokens.tolist() for each in microbatches_of(batch)])
                if len(given) == steps:
                    break
        state = json.loads(json.dumps(loader.state_dict()))
        resumed = planned()
        resumed.load_state_dict(state)
        resumed.set_epoch(state["epoch"])
        given += chain(*epochs(resumed, 2))
        assert given[:6] == straight


def test_set_epoch_starts_that_epoch():
    loader = planned()
    next(iter(loader))
    loader.set_epoch(1)
    assert epochs(loader, 1)[0] == epochs(planned(), 2)[1]


def test_numbers_of_numpy_are_those_of_python():
    loader = planned(global_batch_size=np.int64(3), seed=np.int32(7), shuffle=np.True_)
    loader.set_epoch(np.int64(2))
    plain = planned()
    plain.set_epoch(2)
    assert json.dumps(loader.state_dict()) == json.dumps(plain.state_dict())


@pytest.mark.parametrize(
    "options", [{"global_batch_size": 1.5}, {"global_batch_size": True}, {"seed": "7"}, {"shuffle": "false"}]
)
def test_options_of_other_types_are_refused(options):
    with pytest.raises(ConfigTypeError, match=f"{next(iter(options))}="):
        planned(**options)


def test_ranks_and_epochs_are_whole_numbers():
    for options in ({"cp_size": 0}, {"dp_size": "2"}, {"microbatch_group_size_per_vp_stage": 0}):
        with pytest.raises(ConfigError, match=f"{next(iter(options))}=.*whole number of at least 1"):
            DpBalancedScheduler(8, **options)
    for epoch in (-1, "1", 1.0):
        with pytest.raises(ConfigError, match=r"epoch=.*whole number of at least 0"):
            planned().set_epoch(epoch)


def test_state_of_other_data_is_refused():
    for other in (planned(seed=8), planned(global_batch_size=4), planned(shuffle=False)):
        with pytest.raises(CheckpointMismatchError, match="fingerprint is that of lengths, global_batch_size, shuffle"):
            planned().load_state_dict(other.state_dict())


@pytest.mark.parametrize(
    "changed",
    [{"global_batches": 3}, {"global_batches": -1}, {"global_batches": None}, {"epoch": -1}, {"epoch": "a"}],
    ids=str,
)
def test_state_of_no_place_in_an_epoch_is_refused(changed):
    with pytest.raises(CheckpointMismatchError, match=f"{next(iter(changed))}="):
        planned().load_state_dict(planned().state_dict() | changed)


@pytest.mark.parametrize("lengths", [[5.5, 3], [float("nan")], [True, False], ["5"]], ids=repr)
def test_lengths_are_whole_numbers(lengths):
    with pytest.raises(ConfigTypeError, match="pass whole numbers of tokens"):
        PlannedPackedLoader(Sequences(LENGTHS), lengths, DpBalancedScheduler(8), global_batch_size=1)
    with pytest.raises(ConfigTypeError, match="pass whole numbers of tokens"):
        DpBalancedScheduler(8).schedule(lengths)


@pytest.mark.parametrize("state", [None, [], "x", {}], ids=repr)
def test_what_is_no_state_is_refused(state):
    for loader in (planned(), PackedLoader(Counting(), CONFIG, 3)):
        with pytest.raises(CheckpointMismatchError, match="The state does not fit"):
            loader.load_state_dict(state)


def test_planned_loader_asks_once_where_the_source_can_answer_many():
    class Batched(Sequences):
        calls = 0

        def __getitems__(self, indices):
            self.calls += 1
            return [self[index] for index in indices]

    source = Batched(LENGTHS)
    list(PlannedPackedLoader(source, LENGTHS, DpBalancedScheduler(8), global_batch_size=7))
    assert source.calls == 1


def test_planned_loader_says_when_lengths_are_wrong():
    wrong = [3, 4, 5, 3, 6, 1, 7]
    with pytest.raises(DataError, match="sequence 3 of the source has"):
        list(PlannedPackedLoader(Sequences(LENGTHS), wrong, DpBalancedScheduler(8), global_batch_size=7))
    with pytest.raises(ConfigError, match="global_batch_size=0"):
        planned(global_batch_size=0)


def test_planned_loader_names_fields_that_the_source_does_not_have():
    part = {key: value for key, value in sequence(0, 3).items() if key != "loss_mask"}
    with pytest.raises(DataError, match=r"sequence 0 of the source has no \['loss_mask'\]; use a dict of"):
        list(PlannedPackedLoader([part], [3], DpBalancedScheduler(8), global_batch_size=1))


def test_planned_loader_says_when_the_source_leaves_sequences_out():
    class Forgetful(Sequences):
        def __getitems__(self, indices):
            return [self[index] for index in indices[1:]]

    with pytest.raises(DataError, match="the source gave 6 of 7 sequences"):
        list(PlannedPackedLoader(Forgetful(LENGTHS), LENGTHS, DpBalancedScheduler(8), global_batch_size=7))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (torch.arange(3), "is a Tensor; use a dict"),
        (sequence(0, 3) | {"tokens": [0, 1, 2]}, "tokens of sequence 0 of the source is a list"),
        (sequence(0, 3) | {"tokens": torch.tensor([0.5, 1, 2])}, "use whole numbers"),
    ],
)
def test_planned_loader_checks_samples_as_the_communicating_path_does(found, message):
    with pytest.raises(ConfigTypeError, match=message):
        list(PlannedPackedLoader([found], [3], DpBalancedScheduler(8), global_batch_size=1))


def test_planned_loader_says_at_once_that_the_last_global_batch_is_too_small():
    scheduler = DpBalancedScheduler(8, microbatch_group_size_per_vp_stage=2)
    arguments = {"global_batch_size": 3, "source": Sequences(LENGTHS), "lengths": LENGTHS, "scheduler": scheduler}
    with pytest.raises(ConfigError, match="has 1 of 3 sequences"):
        PlannedPackedLoader(**arguments)
    assert len(PlannedPackedLoader(drop_last=True, **arguments)) == 2


class Counting:
    """A loader with state: how many samples it has given."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self):
        for sample in list(samples_of(LENGTHS))[self.given :]:
            self.given += 1
            yield sample

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


def test_packed_loader_resumes_through_the_wrapped_loader():
    straight = epochs(PackedLoader(Counting(), CONFIG, 3), 1)[0]
    loader = PackedLoader(Counting(), CONFIG, 3)
    next(iter(loader))
    resumed = PackedLoader(Counting(), CONFIG, 3)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert epochs(resumed, 1)[0] == straight[1:]


def test_packed_loader_says_what_it_cannot_save_or_load():
    with pytest.raises(ConfigError, match="list has no state_dict"):
        PackedLoader([], CONFIG, 3).state_dict()
    with pytest.raises(CheckpointMismatchError, match="no loader"):
        PackedLoader(Counting(), CONFIG, 3).load_state_dict(PackedLoader(None, CONFIG, 3).state_dict())


@pytest.fixture
def nccl_of_one(tmp_path):
    """Groups of NCCL with this process alone, on its GPU; create_packing_groups has none for one process."""
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    everywhere = dist.group.WORLD
    yield PackingGroups(dp=everywhere, cp=everywhere, tp=everywhere, pp=everywhere, dp_cp=everywhere)
    dist.destroy_process_group()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_nccl_takes_what_is_communicated(nccl_of_one):
    alone = wrap_data_iterator(samples_of(LENGTHS), CONFIG, len(LENGTHS))
    together = wrap_data_iterator(samples_of(LENGTHS), CONFIG, len(LENGTHS), nccl_of_one)
    assert together[1:] == alone[1:]
    for expected in microbatches_of(alone):
        batch = get_batch_on_this_rank_for_sequence_packing(together.data_iterator, groups=nccl_of_one)
        assert batch.tokens.is_cuda
        for key in ("tokens", "labels", "loss_mask", "position_ids", "padding_mask"):
            assert getattr(batch, key).tolist() == getattr(expected, key).tolist()
        given, wanted = batch.packed_seq_params, expected.packed_seq_params
        assert given.cu_seqlens_q.tolist() == wanted.cu_seqlens_q.tolist()
        assert given.max_seqlen_q == wanted.max_seqlen_q
