"""Workers in actors of Ray give the batches of worker processes, whatever happens to their actors."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from tests.on_ray.cluster import Counting, Gate, Once, doubled, fails_at_50, ray_workers, running_cluster, wait_until
from tests.stream.tables import TABLE, TOTAL, check_batch, write_table
from torch_dataloader_utils import (
    ConfigError,
    RayWorkers,
    StructuredDataset,
    TokenBatches,
    pack_tokens,
)
from torch_dataloader_utils.cli.job_audit import audit_job
from torch_dataloader_utils.errors import ConfigTypeError, TransformError, WorkerDiedError
from torch_dataloader_utils.stream.transport import ray_workers as transport
from torch_dataloader_utils.stream.transport.ray_pool import ActorPool, _kill_all, _sign_of, ray_session

pytest.importorskip("ray")

ROW_GROUPS = TABLE * 3
ROWS = TOTAL * 3

# Ray leaves sockets and files to the interpreter.
pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


@pytest.fixture(scope="module")
def cluster():
    """Two nodes."""
    with running_cluster(2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def pools(cluster):
    """Pools of two actors, by session and most restarts: actors take seconds to start, so tests share them."""
    pools = {}
    yield lambda workers: pools.setdefault((ray_session(), workers.max_restarts), ActorPool(workers))
    for pool in pools.values():
        _kill_all(pool._actors, pool.session)


@pytest.fixture
def shared_actors(pools, monkeypatch):
    """Loaders use the shared actors."""
    monkeypatch.setattr(transport, "ActorPool", pools)


@pytest.fixture
def folder(tmp_path):
    """Nine small files."""
    folder = tmp_path / "data"
    folder.mkdir()
    assert write_table(folder, ROW_GROUPS) == ROWS
    return folder


def loader_of(folder, **options):
    """A loader of batches of 10."""
    return StructuredDataset.create_dataloader(folder, batch_size=10, **options)[0]


def plain(batch):
    """A batch as values that compare."""
    if isinstance(batch, pa.RecordBatch):
        return batch.schema, batch.to_pydict()
    return {name: column.tolist() if hasattr(column, "tolist") else list(column) for name, column in batch.items()}


OPTIONS = {
    "in order": {},
    "shuffled chunks": {"shuffle": True, "split_rows": 20},
    "shuffled rows": {"shuffle": True, "split_rows": 20, "shuffle_rows": 60},
    "rank of three": {"shuffle": True, "split_rows": 20, "num_ranks": 3, "rank": 1, "check_ranks": False},
    "lanes": {"lanes": 6, "shuffle": True, "split_rows": 20},
    "stacked": {"stack": {"matrix": ["row", "payload"]}},
    "numpy": {"output_format": "numpy"},
    "arrow": {"output_format": "arrow"},
    "dict": {"output_format": "dict"},
    "transform": {"transform": doubled},
    "lambda": {"transform": lambda batch: {"row": batch["row"].float()}},
    "filter": {"filters": pc.field("row") > 99},
    "not counted": {"filters": pc.field("row") > 99, "count_rows": False},
    "by length": {"shuffle": True, "shuffle_rows": 60, "token_batches": TokenBatches("name", max_tokens=70)},
}


def test_origins_come_with_the_batches_of_actors(shared_actors, folder, tmp_path):
    for _ in loader_of(folder, workers=ray_workers(3), shuffle=True, shuffle_rows=60, audit=tmp_path / "audits"):
        pass
    audit = audit_job(tmp_path / "audits")
    assert audit.is_exact
    assert audit.epochs[0].once == ROWS


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_batches_and_states_are_those_of_worker_processes(shared_actors, folder, options):
    ours = loader_of(folder, workers=ray_workers(3), **options)
    processes = loader_of(folder, num_workers=3, multiprocessing_context="fork", **options)
    states = []
    for batch, alone in zip(ours, processes, strict=True):
        assert plain(batch) == plain(alone)
        states.append(ours.state_dict())
        assert json.dumps(states[-1]) == json.dumps(processes.state_dict())
    # From the middle on, with another number of workers.
    middle = states[len(states) // 2]
    rest, rest_alone = loader_of(folder, workers=ray_workers(2), **options), loader_of(folder, num_workers=2, **options)
    if options.get("lanes") is None and options.get("count_rows", True) is not False:
        for loader in (rest, rest_alone):
            loader.load_state_dict(middle)
        assert list(map(plain, rest)) == list(map(plain, rest_alone))
    assert ours.metrics().rows == processes.metrics().rows


def test_packed_samples(shared_actors, tmp_path):
    lists = [
        list(range(start, start + length))
        for start, length in zip(range(0, 9000, 90), [3, 90, 17, 40] * 25, strict=True)
    ]
    pq.write_table(pa.table({"tokens": lists}), tmp_path / "a.parquet", row_group_size=9)
    options = {"pack": pack_tokens("tokens", 64), "batch_size": 2, "shuffle": True}
    ours = StructuredDataset.create_dataloader(tmp_path, workers=ray_workers(3), **options)[0]
    alone = StructuredDataset.create_dataloader(tmp_path, num_workers=3, **options)[0]
    pairs = list(zip(ours, alone, strict=True))
    assert len(pairs) > 10
    for batch, other in pairs:
        assert all(torch.equal(batch[name], other[name]) for name in other if isinstance(other[name], torch.Tensor))


def test_a_lost_actor_costs_no_row(shared_actors, folder, tmp_path):
    loader = loader_of(folder, workers=ray_workers(4), transform=Once(207, tmp_path))
    rows = [row for batch in loader for row in check_batch(batch)]
    expected = [row for batch in loader_of(folder, num_workers=4) for row in check_batch(batch)]
    assert rows == expected
    assert (tmp_path / "ended").exists()
    assert loader.metrics().rows == ROWS


@pytest.mark.parametrize(
    "options", [{}, {"count_rows": False, "filters": pc.field("row") >= 0}], ids=["counted", "not"]
)
def test_actors_are_killed_all_at_once_and_one_by_one(shared_actors, folder, options):
    loader = loader_of(folder, workers=ray_workers(3, prefetch=1, max_restarts=1), **options)
    rows = []
    for number, batch in enumerate(loader):
        rows += check_batch(batch)
        import ray

        for actor in loader._workers._pool._actors[: {3: 2, 30: 1}.get(number, 0)]:
            ray.kill(actor.handle)
    assert number > 30
    assert rows == [row for batch in loader_of(folder, num_workers=3, **options) for row in check_batch(batch)]


def test_an_actor_that_is_stopped_counts_as_lost(shared_actors, folder):
    loader = loader_of(folder, workers=ray_workers(3, max_restarts=20, silence_seconds=30))
    rows = []
    for number, batch in enumerate(loader):
        rows += check_batch(batch)
        if number == 3:
            (pid, *_) = [int(actor.place.split("pid ")[1]) for actor in loader._workers._pool._actors if actor.is_ready]
            os.kill(pid, signal.SIGSTOP)
    assert rows == [row for batch in loader_of(folder, num_workers=3) for row in check_batch(batch)]
    wait_until(lambda: not psutil.pid_exists(pid))


def test_an_actor_gives_signs_of_life_while_a_transform_runs(shared_actors, folder, tmp_path):
    gate = Gate(tmp_path)
    loader = loader_of(folder, workers=ray_workers(1, actors=1), transform=gate)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(next, iter(loader))
        wait_until((tmp_path / "begun").exists, limit_sec=300)
        for actor in loader._workers._pool._actors:
            _sign_of(actor).result()
        assert not first.done()
        (tmp_path / "open").touch()
        assert check_batch(first.result()) == list(range(10))


def test_too_many_losses_name_the_row_group(shared_actors, folder, tmp_path):
    loader = loader_of(folder, workers=ray_workers(2, max_restarts=1), transform=Once(207, tmp_path, always=True))
    with pytest.raises(WorkerDiedError, match=r"lost 2 times in a row, last on host .*which begins in .*parquet"):
        list(loader)


def test_an_error_of_a_transform_is_the_same(shared_actors, folder):
    ours = loader_of(folder, workers=ray_workers(2), transform=fails_at_50)
    with pytest.raises(TransformError, match="row 50 is bad") as raised:
        list(ours)
    with pytest.raises(TransformError) as alone:
        list(loader_of(folder, num_workers=2, transform=fails_at_50))
    assert str(raised.value) == str(alone.value)
    # The actors go on.
    assert len(list(loader_of(folder, workers=ray_workers(2)))) == len(ours)


def test_batches_of_a_class_that_no_module_has(shared_actors, folder):
    @dataclass
    class Batch:
        row: torch.Tensor

    loader = loader_of(folder, workers=ray_workers(2), transform=lambda batch: Batch(batch["row"]))
    batches = list(loader)
    assert {type(batch) for batch in batches} == {Batch}
    assert sorted(row for batch in batches for row in batch.row.tolist()) == list(range(ROWS))
    loader = loader_of(folder, workers=ray_workers(2), transform=lambda batch: [batch["row"], Lock()])
    with pytest.raises(TransformError, match=r"a lock at \[1\], which cannot be sent"):
        list(loader)


def test_responses_on_their_way_are_limited(shared_actors, folder, tmp_path):
    warm = loader_of(folder, workers=ray_workers(2))
    next(iter(warm))
    wait_until(lambda: all(actor.is_ready for actor in warm._workers._pool._actors))
    made = tmp_path / "made"
    loader = loader_of(folder, workers=ray_workers(2, prefetch=3), transform=Counting(made), output_format="numpy")
    batches = iter(loader)
    next(batches)
    for number in range(2, 12):
        wait_until(lambda least=number + 2: made.stat().st_size >= least)
        assert made.stat().st_size <= number - 1 + 2 * 3
        next(batches)
    batches.close()


def test_a_batch_may_be_kept_and_written_to(shared_actors, folder):
    loader = loader_of(folder, workers=ray_workers(2))
    kept = list(loader)
    del loader
    for batch in kept:
        rows = batch["row"].clone()
        batch["row"] += 1
        assert torch.equal(batch["row"], rows + 1)


def test_a_pass_that_was_left_begins_again(shared_actors, folder):
    loader = loader_of(folder, workers=ray_workers(3))
    first = [check_batch(batch) for _, batch in zip(range(7), loader, strict=False)]
    assert [check_batch(batch) for batch in loader][:7] == first


def test_passes_side_by_side(shared_actors, folder):
    loader = loader_of(folder, workers=ray_workers(3))
    alone = list(map(check_batch, loader_of(folder, num_workers=3)))
    first, second = iter(loader), iter(loader)
    for expected in alone[:7]:
        assert check_batch(next(first)) == check_batch(next(second)) == expected
    first.close()
    assert list(map(check_batch, second)) == alone[7:]


def test_credentials_stay_out_of_the_object_store(shared_actors, folder):
    loader = loader_of(folder, workers=ray_workers(2), storage_options={"key": "AKIA", "secret": "hidden"})
    with pytest.raises(ConfigError, match="credentials key, secret would be written into Ray's object store"):
        next(iter(loader))
    assert list(loader_of(folder, workers=ray_workers(2), credentials=lambda: {"key": "AKIA", "secret": "hidden"}))


def test_options_that_do_not_fit(folder):
    for options, message in [
        ({"num_workers": 3}, "leave num_workers out"),
        ({"prefetch_factor": 2}, "prefetch_factor=2 is for worker processes"),
        ({"in_order": False}, "in_order=False is for worker processes"),
        ({"persistent_workers": True}, "persistent_workers=True is for worker processes"),
    ]:
        with pytest.raises(ConfigError, match=message):
            loader_of(folder, workers=ray_workers(2), **options)
    for wrong in (
        {"num": 0},
        {"num": 2, "prefetch": 0},
        {"num": 2, "max_restarts": -1},
        {"num": 2, "silence_seconds": 0},
    ):
        with pytest.raises(ConfigError):
            RayWorkers(**wrong)
    for wrong in ({"num": "two"}, {"num": 2, "resources": 3}, {"num": 2, "resources": {1: 2}}):
        with pytest.raises(ConfigTypeError):
            RayWorkers(**wrong)
    with pytest.raises(match="pass RayWorkers"):
        loader_of(folder, workers=4)
    assert "3 Ray workers" in repr(loader_of(folder, workers=ray_workers(3)))


TRAINER = """
import os, sys, time, ray
from torch_dataloader_utils import StructuredDataset
from tests.on_ray.cluster import ray_workers
if __name__ == "__main__":
    ray.init(address=sys.argv[2], log_to_driver=False, logging_level="ERROR")
    loader, _ = StructuredDataset.create_dataloader(sys.argv[1], batch_size=10, workers=ray_workers(2))
    next(iter(loader))
    places = [ray.get(actor.handle.place.remote()) for actor in loader._workers._pool._actors]
    print(*[place.split("pid ")[1] for place in places], flush=True)
    time.sleep(600)
"""


def test_a_trainer_that_dies_leaves_no_actors(cluster, folder):
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(folder), cluster.address], stdout=subprocess.PIPE, text=True
    )
    try:
        pids = list(map(int, trainer.stdout.readline().split()))
        assert len(pids) == 2
    finally:
        os.kill(trainer.pid, signal.SIGKILL)
        trainer.wait()
        trainer.stdout.close()
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_a_loader_outlives_a_session_of_ray(shared_actors, cluster, folder, monkeypatch):
    import ray

    loader = loader_of(folder, workers=ray_workers(3, actors=1))
    expected = list(map(check_batch, loader))
    left = iter(loader)
    next(left)
    ray.shutdown()
    left.close()
    assert not ray.is_initialized()
    monkeypatch.undo()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    assert list(map(check_batch, loader)) == expected


def test_actors_that_do_not_start_say_why(cluster, folder, tmp_path):
    import ray

    (tmp_path / "torch_dataloader_utils.py").write_text("raise ImportError('another version')")
    ray.shutdown()
    ray.init(
        address=cluster.address,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": str(tmp_path)}},
    )
    loader = loader_of(folder, workers=ray_workers(3, actors=1, max_restarts=0))
    with pytest.raises(WorkerDiedError, match=r"do not start \(ImportError: another version\)\. This package"):
        next(iter(loader))
