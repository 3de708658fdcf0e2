"""The batches and states of an undisturbed job, over simulated threads, processes and actors that die and hang.

A job is a chain of passes: each runs over a transport of its own and stops anywhere, or at an error that says which
worker died; the next one goes on from the last state. No pass may wait for what never happens.
"""

import json
import random
from collections import Counter

import pyarrow.compute as pc
import pytest

from tests.effort import TIER
from tests.promises.jobs import STREAMS, Rank
from tests.promises.sources import Source, rows_of
from tests.simulation.transports import PROCESSES, RAY, THREADS, Transport
from tests.simulation.world import World
from tests.stream.tables import TABLE, TOTAL, write_table
from torch_dataloader_utils import Decoding, StructuredDataset
from torch_dataloader_utils._arrow.process_memory import RECYCLED
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils.errors import WorkerDiedError

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

EPOCHS = 2
JOBS = 300 if TIER == "full" else 2


@pytest.fixture(autouse=True)
def private_memory():
    """Simulated workers leave this process with memory that is shared with a trainer; later tests have their own."""
    yield
    RECYCLED.begin_anew()


def unchanged(batch):
    """A transform."""
    return batch


NUMBERS = {"columns": ["row", "payload"]}
SHUFFLED = {"shuffle": True, "split_rows": 20}
ORDERS = {
    "in order": NUMBERS,
    "shuffled chunks": SHUFFLED,
    "shuffled rows": {**NUMBERS, **SHUFFLED, "shuffle_rows": 30},
    "lanes": {**NUMBERS, **SHUFFLED, "lanes": 6},
    "transformed": {**NUMBERS, **SHUFFLED, "transform": unchanged},
    "not counted": {"filters": pc.field("row") != 17, "count_rows": False},
    "one of two ranks": {**NUMBERS, **SHUFFLED, "num_ranks": 2, "rank": 1, "check_ranks": False},
}


class Job:
    """A job over one data set. expected: rows and state of each step of an undisturbed run, epoch after epoch."""

    def __init__(self, folder, order, num_workers):
        self.folder, self.order, self.num_workers = folder, order, num_workers
        order = dict(order)
        ranks, number = order.pop("num_ranks", 1), order.pop("rank", 0)
        topology = Topology(num_ranks=ranks, num_workers=num_workers, batch_size=8, drop_last=False)
        source = Source(
            lambda **options: StructuredDataset(folder, **options),
            Counter(),
            rows_of,
            is_counted=order.get("count_rows", True),
        )
        self.expected, state = [], None
        for _ in range(EPOCHS):
            rank, steps = Rank(source, order, topology, number, state, STREAMS), 0
            while len(rank.take(1)) > steps:
                steps, state = len(rank.received), rank.state()
                self.expected.append((rank.received[-1], state))
            state = rank.state()

    def run(self, transport, step, most):
        """Run passes over a transport from a step on, and check each step. Returns the last step, of `most` at most."""
        with transport.running():
            loader, _ = StructuredDataset.create_dataloader(
                self.folder,
                batch_size=8,
                decoding=Decoding(threads=transport.world.random.randint(1, 3)),
                **self.order,
                **transport.options(),
            )
            is_resumed = step > 0
            while step < most:
                if is_resumed:
                    loader.load_state_dict(self.expected[step - 1][1])
                loader.set_epoch(loader.state_dict()["epoch"])
                batches, is_resumed = iter(loader), False
                try:
                    for batch in batches:
                        state = json.loads(json.dumps(loader.state_dict()))
                        assert (rows_of(batch), state) == self.expected[step]
                        step += 1
                        if step == most:
                            break
                except WorkerDiedError:
                    assert transport.faults > (transport.max_restarts if transport.kind == RAY else 0)
                    is_resumed = step > 0
                    if transport.world.random.random() < 0.5:
                        break
                finally:
                    batches.close()
            assert transport.faults or transport.cluster.num_started in (0, transport.actors)
        return step


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Seven row groups in three files."""
    folder = tmp_path_factory.mktemp("data")
    assert write_table(folder, TABLE) == TOTAL
    return folder


@pytest.fixture(scope="module")
def jobs(folder):
    """Return the job of an order and a number of workers."""
    made = {}

    def job(order, num_workers):
        if (order, num_workers) not in made:
            made[order, num_workers] = Job(folder, ORDERS[order], num_workers)
        return made[order, num_workers]

    return job


@pytest.mark.parametrize("order", ORDERS)
def test_batches_and_states_are_those_of_an_undisturbed_job(jobs, order):
    begin = random.randrange(1 << 30) if TIER == "full" else 0
    for seed in range(begin, begin + JOBS):
        chance = random.Random(seed)
        job = jobs(order, chance.randint(1, 3))
        kinds = [PROCESSES, RAY] if job.num_workers > 1 else [THREADS, PROCESSES, RAY]
        step, passes = 0, 0
        while step < len(job.expected):
            rate = chance.choice([0, 0.01, 0.05]) if passes < 20 else 0
            transport = Transport(chance.choice(kinds), World(seed + passes), job.num_workers, rate)
            step = job.run(transport, step, chance.choice([len(job.expected), chance.randint(step, len(job.expected))]))
            passes += 1


def over_ray(num_workers, **fixed):
    """A transport of Ray without faults of its own."""
    transport = Transport(RAY, World(3), num_workers, rate=0)
    for name, value in fixed.items():
        setattr(transport, name, value)
    return transport


def loader_over(transport, folder):
    """A loader of batches of eight."""
    return StructuredDataset.create_dataloader(folder, batch_size=8, **NUMBERS, **transport.options())[0]


def test_an_actor_that_is_stopped_counts_as_lost(folder, jobs):
    transport = over_ray(2, actors=2, max_restarts=1)
    with transport.running():
        rows = []
        for number, batch in enumerate(loader_over(transport, folder)):
            rows.append(rows_of(batch))
            if number == 3:
                transport.cluster.living[0].process.is_stopped = True
    assert rows == [rows for rows, state in jobs("in order", 2).expected[: len(rows)]]
    assert sum(map(len, rows)) == TOTAL
    assert transport.cluster.num_started == 3


def test_actors_that_stop_again_and_again_end_the_pass(folder):
    transport = over_ray(1, actors=1, max_restarts=2)

    def stop():
        for actor in transport.cluster.living:
            actor.process.is_stopped = actor.process.is_stopped or actor.has_answered

    transport.world.chaos = stop
    message = r"lost 3 times in a row.* Its process gave no sign of life for 60 s \(RayWorkers.silence_seconds\)"
    with transport.running(), pytest.raises(WorkerDiedError, match=message):
        next(iter(loader_over(transport, folder)))


def test_a_node_that_is_lost_with_actors_that_are_starting_counts_once(folder):
    transport = over_ray(3, actors=3, max_restarts=1)

    def lose_all_once():
        if transport.cluster.num_started == 3 and not any(actor.has_answered for actor in transport.cluster.living):
            for actor in transport.cluster.living:
                actor.die()

    transport.world.chaos = lose_all_once
    with transport.running():
        assert sum(map(len, map(rows_of, loader_over(transport, folder)))) == TOTAL
    assert transport.cluster.num_started == 6


def test_losses_with_batches_in_between_may_be_any_number(folder):
    transport = over_ray(1, actors=1, max_restarts=1, prefetch=1)
    with transport.running():
        rows = []
        for batch in loader_over(transport, folder):
            rows += rows_of(batch)
            for actor in transport.cluster.living:
                actor.die()
    assert rows == list(range(TOTAL))
    assert transport.cluster.num_started > 3
