"""The sentence that says why a trainer waits, alone and over ranks; tests/faults/test_metrics.py has real causes."""

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.ranks import RANKS, run_ranks
from tests.stream.tables import write_table
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._observe import counters, meter
from torch_dataloader_utils._observe.counters import KINDS, Counts, count_thread_in, count_times
from torch_dataloader_utils._observe.metrics import GAUGES, Metrics
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.metrics import GatheredMetrics, gather_metrics

BUSY = Metrics(seconds=100.0, wait_seconds=2.0, stall_seconds=2.0)
SLOW_STORE = Metrics(seconds=100.0, wait_seconds=60.0, stall_seconds=60.0, fetch_seconds=50.0, decode_seconds=10.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "60% of its time, mostly for the storage (0 of 0 requests took more than 0.1 s): use more Decoding"),
        (
            {"requests": 7, "requests_by_time.to_1s": 4, "requests_by_time.over_10s": 1},
            "(5 of 7 requests took more than 0.1 s)",
        ),
        ({"request_errors.throttled": 3}, "3 throttled errors): it throttles requests"),
        ({"decode_seconds": 51.0}, "mostly for decoding"),
        ({"stall_seconds": 10.0, "transform_seconds": 50.0}, "mostly for transform and collate_fn"),
        ({"stall_seconds": 10.0, "handover_seconds": 50.0}, "mostly for cutting"),
        ({"stall_seconds": 20.0}, "but little of it for making batches"),
    ],
)
def test_one_sentence_names_the_cause_and_what_to_do(changes, words):
    diagnosis = Metrics.from_dict(SLOW_STORE.to_dict() | changes).diagnosis
    assert diagnosis.startswith("The trainer waits 60% of its time, ")
    assert words in diagnosis
    assert diagnosis.endswith(".")


def test_nothing_is_said_where_the_trainer_does_not_wait():
    assert Metrics().diagnosis is None
    assert BUSY.diagnosis is None
    assert (SLOW_STORE - SLOW_STORE).diagnosis is None


@given(st.lists(st.floats(0, 1e4), max_size=20))
def test_each_request_is_in_one_part_of_the_histogram(seconds):
    counts = Counts()
    before = count_thread_in(counts)
    count_times(seconds)
    count_thread_in(before)
    limits = [0, 0.01, 0.1, 1, 10, float("inf")]
    for number, kind in enumerate(KINDS["requests_by_time"]):
        low, high = limits[number : number + 2]
        assert getattr(counts, f"requests_by_time.{kind}") == sum(
            low < each <= high or each == number == 0 for each in seconds
        )


def test_the_age_of_the_last_batch_grows_while_the_trainer_works_and_is_0_between_passes(tmp_path):
    write_table(tmp_path, [[40]])
    loader = StructuredDataset.create_dataloader(str(tmp_path), batch_size=16, num_workers=0)[0]
    batches = iter(loader)
    next(batches)
    first = loader.metrics().batch_age_seconds
    assert 0 < first < loader.metrics().batch_age_seconds <= loader.metrics().seconds
    list(batches)
    assert loader.metrics().batch_age_seconds == 0


def test_a_slow_rank_is_named_with_its_cause():
    gathered = GatheredMetrics((BUSY, BUSY, SLOW_STORE, BUSY))
    assert gathered.diagnosis.startswith("Rank 2 holds up the others (which wait 2% for data in the median")
    assert "mostly for the storage" in gathered.diagnosis
    assert GatheredMetrics((BUSY, BUSY)).diagnosis is None
    assert GatheredMetrics((SLOW_STORE,)).diagnosis == SLOW_STORE.diagnosis
    assert GatheredMetrics((SLOW_STORE,) * 3).diagnosis.startswith(
        "All ranks wait about as long (60% to 60%); rank 2: The trainer"
    )


def test_a_spread_takes_the_names_of_kinds():
    metrics = [Metrics.from_dict(Metrics().to_dict() | {"request_errors.throttled": number}) for number in (1, 5)]
    assert GatheredMetrics(tuple(metrics)).spread("request_errors.throttled").maximum_rank == 1


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=9))
def test_a_spread_names_ranks_that_have_its_numbers(rows):
    spread = GatheredMetrics(tuple(Metrics(rows=each) for each in rows)).spread("rows")
    assert spread.minimum == rows[spread.minimum_rank] == min(rows)
    assert spread.maximum == rows[spread.maximum_rank] == max(rows)
    assert spread.median == rows[spread.median_rank] == sorted(rows)[(len(rows) - 1) // 2]


def test_what_has_no_metrics_and_names_of_none_are_refused():
    with pytest.raises(ConfigTypeError, match=r"gather_metrics got .*: pass a loader"):
        gather_metrics([1])
    with pytest.raises(ConfigError, match=r"no number called 'speed'\. Take one of passes, "):
        GatheredMetrics((BUSY,)).spread("speed")


def metrics_of(rank):
    """Other numbers for each field and rank, with whole nanoseconds."""
    numbers = {name: 1 + number + 100 * rank for number, name in enumerate(Metrics().to_dict())}
    return Metrics.from_dict({name: each / 1e9 if name.endswith("seconds") else each for name, each in numbers.items()})


def _rank(rank, meeting, folder, answer):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    now_ns = 0

    def take_second():
        nonlocal now_ns
        now_ns += 1_000_000_000

    for module in (counters, meter):  # of this process, which ends with the test
        module.perf_counter_ns = lambda: now_ns

    def slow(batch):
        if rank == 1:
            take_second()
        return batch

    loader = StructuredDataset.create_dataloader(
        folder, batch_size=16, num_workers=0, num_ranks="auto", transform=slow, check_ranks=False
    )[0]
    for _ in loader:
        dist.barrier()  # as gradients are added up
        if rank == 0:
            take_second()
    gathered = gather_metrics(loader)
    own = gather_metrics(metrics_of(rank))
    answer.send((loader.metrics(), gathered, own))
    dist.destroy_process_group()


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_every_rank_gets_the_metrics_of_all(tmp_path):
    (tmp_path / "table").mkdir()
    write_table(tmp_path / "table", [[40, 30], [35]])
    answers = run_ranks(_rank, tmp_path / "meeting", str(tmp_path / "table"))
    loaders = tuple(metrics for metrics, _, _ in answers)
    for _, gathered, own in answers:
        assert own.ranks == tuple(map(metrics_of, range(RANKS)))
        assert [each.rows for each in gathered.ranks] == [each.rows for each in loaders]
        assert gathered.spread("passes").minimum == 1
        assert gathered.diagnosis.startswith("Rank 1 holds up the others")
        assert "mostly for transform" in gathered.diagnosis
    assert set(GAUGES) <= set(Metrics().to_dict())
