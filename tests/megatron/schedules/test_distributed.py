"""1 to 8 gloo processes over data × context × tensor × pipeline shapes; one launch serves all tests."""

import multiprocessing
from collections import Counter
from itertools import chain
from multiprocessing.connection import wait

import pytest
import torch

from tests.megatron.schedules.ranks import (
    CAPACITY,
    FEW_SHAPES,
    LENGTHS,
    SHAPES,
    SHARE_OF_RANK_0,
    run_rank,
    run_rank_on_device,
)
from tests.megatron.schedules.sequences import sequence
from torch_dataloader_utils.megatron.schedules import scheduler_map

NUM_PROCESSES = 8
FACTS = (
    "tokens",
    "labels",
    "loss_mask",
    "position_ids",
    "cu_seqlens",
    "cu_seqlens_padded",
    "max_seqlen",
    "local_cp_size",
)
CASES = [(shape, name) for shapes in SHAPES.values() for shape in shapes for name in scheduler_map]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Per rank, what its process saved."""
    return run_ranks(run_rank, tmp_path_factory.mktemp("ranks"))


def run_ranks(run, folder, *arguments):
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=run, args=(rank, folder, *arguments)) for rank in range(NUM_PROCESSES)]
    try:
        for process in processes:
            process.start()
        running = {process.sentinel for process in processes}
        while running and not any(process.exitcode for process in processes):
            ended = wait(running, timeout=300)
            assert ended, "no process has ended for 300 s"
            running -= set(ended)
        assert not running, "a process failed; its traceback is above"
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(NUM_PROCESSES)]


def results_of(saved, case):
    return [each["results"][case] for each in saved if case in each["results"]]


def same(left, right) -> bool:
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


def same_batches(left, right, keys=None) -> bool:
    return len(left) == len(right) and all(
        same(a[key], b[key]) for a, b in zip(left, right, strict=True) for key in keys or a
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_all_processes_agree_on_counts_and_statistics(saved, case):
    results = results_of(saved, case)
    assert len(results) == torch.tensor(case[0]).prod()
    assert len({result.facts for result in results}) == 1
    assert results[0].facts[1:] == (sum(LENGTHS), sum(length**2 for length in LENGTHS))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_token_is_computed_once(saved, case):
    results = results_of(saved, case)
    pp_size = case[0][3]
    for stage, key in ((0, "tokens"), (pp_size - 1, "labels")):
        expected = Counter(
            value for index, length in enumerate(LENGTHS) for value in sequence(index, length)[key].tolist()
        )
        found = Counter(
            value
            for result in results
            if result.coordinates[2:] == (0, stage)
            for batch in result.batches
            if batch[key] is not None
            for value in batch[key].tolist()
        )
        # Zero is both padding and the very first token.
        del expected[0], found[0]
        assert found == expected


@pytest.mark.parametrize("case", CASES, ids=str)
def test_planned_path_gives_identical_microbatches_and_reads_only_its_own(saved, case):
    results = results_of(saved, case)
    for result in results:
        assert result.planned_facts == result.facts
        assert same_batches(result.planned_batches, result.batches)
        reads = {
            value // 1000
            for batch in result.batches
            if batch["tokens"] is not None
            for value in batch["tokens"].tolist()
        }
        if result.coordinates[2:] == (0, 0):
            assert len(result.planned_reads) == len(set(result.planned_reads))
            assert reads <= {0, *result.planned_reads}
        if result.coordinates[2] != 0:
            assert result.planned_reads == []
    if case[0][1] == 1 and not case[1].startswith("hybrid"):
        readers = [result.planned_reads for result in results if result.coordinates[2:] == (0, 0)]
        assert sorted(chain(*readers)) == list(range(len(LENGTHS)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_rank_gets_more_than_it_holds(saved, case):
    for result in results_of(saved, case):
        for batch in result.batches:
            sizes = [batch[key].numel() for key in ("tokens", "labels") if batch[key] is not None]
            assert all(size <= CAPACITY // case[0][1] for size in sizes)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_tensor_ranks_and_stages_agree(saved, case):
    metadata = ("cu_seqlens", "cu_seqlens_padded", "max_seqlen", "local_cp_size")
    by_place = {result.coordinates: result for result in results_of(saved, case)}
    for (dp, cp, tp, pp), result in by_place.items():
        assert same_batches(result.batches, by_place[dp, cp, 0, pp].batches)
        assert same_batches(result.batches, by_place[dp, cp, tp, 0].batches, metadata)
        if 0 < pp < case[0][3] - 1:
            assert all(batch["tokens"] is None and batch["labels"] is None for batch in result.batches)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_context_ranks_of_a_data_rank_share_their_packs(saved, case):
    by_place = {result.coordinates: result for result in results_of(saved, case)}
    for (dp, _, tp, pp), result in by_place.items():
        if case[1].startswith("hybrid"):
            assert all(batch["cp_group_size"] == batch["local_cp_size"] for batch in result.batches)
        else:
            assert same_batches(result.batches, by_place[dp, 0, tp, pp].batches, ("cu_seqlens", "cu_seqlens_padded"))


def test_hybrid_packs_have_different_sizes(saved):
    results = results_of(saved, ((4, 2, 1, 1), "hybrid_context_parallel"))
    assert len({batch["local_cp_size"] for result in results for batch in result.batches}) > 1


@pytest.mark.parametrize(
    ("fault", "own", "others"),
    [
        ("one_process_cannot_read", "ConfigError: item 0 of the data iterator misses", "DataError"),
        ("one_process_has_no_iterator", "ConfigError: tensor rank 0 of pipeline stage 0 has no", "DataError"),
        ("one_process_cannot_schedule", "ConfigError: cannot schedule", "DataError"),
        ("one_process_schedules_differently", "ConfigError: ranks have made different schedules", ""),
        ("a_sequence_is_over_long", "ConfigError: 2 of 2 sequences are longer", "ConfigError"),
        ("the_data_has_ended", "StopIteration", "StopIteration"),
        ("one_data_rank_has_ended", f"{SHARE_OF_RANK_0} tokens", f"{SHARE_OF_RANK_0} tokens"),
        ("items_have_no_sequence_at_first", f"{SHARE_OF_RANK_0} tokens", f"{SHARE_OF_RANK_0} tokens"),
        ("context_ranks_read_different_data", "DataError: the context-parallel ranks", "DataError"),
        (
            "context_ranks_read_sequences_of_one_length",
            "DataError: the context-parallel ranks of data-parallel rank 0 have read different sequences",
            "DataError",
        ),
        ("stages_read_different_data", "DataError: first and last pipeline stage", "DataError"),
        ("no_groups_are_given", "ConfigError: 8 processes and no groups", "ConfigError"),
    ],
)
def test_a_fault_ends_every_process(saved, fault, own, others):
    outcomes = [each["failures"][fault] for each in saved]
    assert outcomes[1].startswith(own)
    assert all(outcome.startswith(others) for rank, outcome in enumerate(outcomes) if rank != 1)


def test_tensor_rank_0_without_a_microbatch_ends_its_peers(saved):
    of_first, of_peer = (saved[rank]["microbatch_failures"] for rank in (0, 1))
    wanted = [
        "StopIteration",
        "ConfigError: tensor-parallel rank 0 has no data iterator",
        "ConfigError: the microbatch of",
    ]
    assert all(message.startswith(start) for message, start in zip(of_first, wanted, strict=True))
    assert of_peer == ["DataError: tensor-parallel rank 0 could not give this microbatch; its own error says why."] * 3


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize(
    "shapes", [FEW_SHAPES, pytest.param(SHAPES, marks=pytest.mark.full)], ids=["few shapes", "all shapes"]
)
def test_with_nccl_the_same_batches_are_on_the_device(saved, tmp_path, shapes):
    own = [case for case in CASES if case[0] in chain(*shapes.values())]
    for here, there in zip(saved, run_ranks(run_rank_on_device, tmp_path, shapes), strict=True):
        assert there["failures"] == here["failures"]
        assert list(there["results"]) == [case for case in own if case in here["results"]]
        for case, found in there["results"].items():
            expected = here["results"][case]
            assert same_batches(found.batches, expected.batches, FACTS)
            assert same_batches(found.planned_batches, expected.planned_batches, FACTS)
            assert {device for batch in found.batches for device in batch["devices"]} == {"cuda:0"}
            assert {device for batch in found.planned_batches for device in batch["devices"]} == {"cuda:0"}
