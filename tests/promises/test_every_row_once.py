"""The promise: every row once, equal steps on all ranks, and any chain of resumes on any topologies.

One property for all kinds of readers, assignments of rows to ranks, transports and outputs. A job is a chain of links:
each runs on a topology of its own, stops anywhere, loses what it did after its last checkpoint, and goes on from there.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.promises.jobs import PROCESSES, STREAMS, THREADS, Rank
from tests.promises.sources import SOURCES, Source
from torch_dataloader_utils import RoundRobinSplitStrategy, merge_states
from torch_dataloader_utils._core.options import Topology

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* come a second time:UserWarning"),
    pytest.mark.filterwarnings("ignore:Ranks take different numbers of steps:UserWarning"),
    pytest.mark.filterwarnings("ignore:The epoch has no steps:UserWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),  # more workers than cores, on purpose
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

TOKEN_BATCHES = ("buckets", "token_budget", "padding_free")
PACKS = ("packed", "packed_best_fit")
ENDLESS = 10_000


@dataclass(frozen=True)
class Link:
    """A part of a job: it stops after so many batches on each rank, and loses some more."""

    topology: Topology | None  # None: the same as in the link before
    stops: tuple[int, ...]
    lost: int
    transport: str


topologies = st.builds(
    Topology,
    num_ranks=st.integers(1, 4),
    num_workers=st.integers(1, 3),
    batch_size=st.integers(1, 30),
    drop_last=st.booleans(),
)
stops = st.one_of(st.integers(0, 6), st.just(ENDLESS))
links = st.builds(
    Link,
    topology=st.one_of(st.none(), topologies),
    stops=st.tuples(stops, stops, stops, stops),
    lost=st.integers(0, 2),
    transport=st.sampled_from([STREAMS, STREAMS, THREADS]),
)
assignments = st.sampled_from(
    [{}, {}, {"rank_sharding": "chunks"}, {"split_strategy": RoundRobinSplitStrategy(), "rank_sharding": "chunks"}]
)


@st.composite
def orders(draw: st.DrawFn) -> dict[str, Any]:
    """Options that say which rank reads what, and in which order."""
    return {
        **draw(assignments),
        "shuffle": draw(st.booleans()),
        "shuffle_seed": draw(st.integers(0, 2**64 - 1)),
        "shuffle_rows": draw(st.one_of(st.none(), st.integers(1, 60))),
        "split_rows": draw(st.integers(1, 60)),
    }


def under_one_topology(first: Topology, chain: list[Link]) -> list[Link]:
    """Return the links with the topology of each, and one more that goes to the end of the epoch."""
    found, topology = [], first
    for link in [*chain, Link(None, (ENDLESS,) * 4, 0, STREAMS)]:
        topology = link.topology or topology
        transport = STREAMS if topology.num_workers > 1 and link.transport == THREADS else link.transport
        found.append(Link(topology, link.stops, link.lost, transport))
    return found


def run_job(source: Source, options: dict[str, Any], chain: list[Link]) -> None:
    """Run the links one after the other, and check what all ranks of all links received."""
    has_equal_steps = source.is_counted and "rank_sharding" not in options
    received, repeats, state, plan = Counter(), 0, None, None
    in_order: dict[int, list[list[Any]]] = {}
    for link in chain:
        numbers = range(link.topology.num_ranks)
        ranks = [Rank(source, options, link.topology, number, state, link.transport) for number in numbers]
        plan = ranks[0].plan
        states = []
        for rank in ranks:
            rank.take(link.stops[0 if has_equal_steps else rank.rank])
            states.append(rank.state())
            in_order.setdefault(rank.rank, []).extend(rank.received)
            received.update(row for batch in rank.received for row in batch)
            if source.is_counted and rank.received and states[-1]["epoch"] == 1:
                repeats += rank.plan.padding_rows(rank.rank)
        if has_equal_steps:
            assert len({rank.length for rank in ranks}) == 1
            assert all(each == states[0] for each in states)
        merged = json.loads(json.dumps(merge_states(states)))
        assert len(json.dumps(merged)) < 1000 or not has_equal_steps
        assert merged["epoch"] == min(each["epoch"] for each in states)
        for rank in ranks:
            rank.take(link.lost)
            rank.close()
        state = merged
        if state["epoch"] == 1:
            break
    assert state["epoch"] == 1
    assert (received - source.rows).total() == repeats
    missing = source.rows - received
    assert missing.total() == (plan.dropped_rows if source.is_counted else 0)
    # Where ranks differ in steps, the rest is dealt out anew.
    if len({link.topology for link in chain}) == 1 and (has_equal_steps or chain[0].topology.num_ranks == 1):
        check_same_as_whole(source, options, chain[0].topology, in_order)


def check_same_as_whole(
    source: Source, options: dict[str, Any], topology: Topology, in_order: dict[int, list[list[Any]]]
) -> None:
    """A job that goes on as it was gets the batches of one that never stopped."""
    for number in range(topology.num_ranks):
        whole = Rank(source, options, topology, number, None, STREAMS)
        whole.take(ENDLESS)
        assert in_order.get(number, []) == whole.received


@pytest.mark.parametrize("kind", SOURCES)
@given(
    files=st.lists(st.lists(st.integers(0, 40), max_size=4), max_size=4),
    order=orders(),
    topology=topologies,
    chain=st.lists(links, max_size=4),
    output_format=st.sampled_from(["torch", "numpy", "arrow", "dict"]),
)
@settings(max_examples=effort(60), deadline=None, suppress_health_check=list(HealthCheck))
def test_every_row_once_whatever_stops_and_goes_on_elsewhere(kind, files, order, topology, chain, output_format):
    assume(sum(map(sum, files)))
    with TemporaryDirectory() as folder:
        source = SOURCES[kind](Path(folder), files)
        assume(source.rows)
        if kind in TOKEN_BATCHES:  # need windows, and equal steps
            order["shuffle_rows"] = order["shuffle_rows"] or 16
            order = {name: value for name, value in order.items() if name not in ("rank_sharding", "split_strategy")}
        elif kind not in PACKS:
            order["output_format"] = output_format
        run_job(source, order, under_one_topology(topology, chain))


@pytest.mark.processes
@pytest.mark.cases(5)
@pytest.mark.parametrize("kind", SOURCES)
def test_worker_processes_deliver_every_row_once_too(kind, tmp_path):
    source = SOURCES[kind](tmp_path, [[13, 40, 7], [22], [1, 30, 30]])
    topology, other = (
        Topology(num_ranks=ranks, num_workers=workers, batch_size=8, drop_last=False)
        for ranks, workers in ((2, 2), (1, 3))
    )
    chain = [
        Link(None, (2,) * 4, 1, PROCESSES),
        Link(other, (3,) * 4, 1, PROCESSES),
        Link(other, (0,) * 4, 0, PROCESSES),
    ]
    run_job(source, {"shuffle": True, "shuffle_rows": 20, "split_rows": 10}, under_one_topology(topology, chain))
