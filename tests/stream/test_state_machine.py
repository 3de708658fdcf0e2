"""Steps, checkpoints, crashes and restarts in any order, over real files, on any topology, in one process.

Workers are plain iterators here, so that a whole job (ranks × workers) runs in one thread. A trainer steps all ranks
together; a crash drops every iterator; a restart loads any earlier checkpoint on the same topology or another one.
"""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.effort import EFFORT
from tests.stream.tables import check_batch, dataset_of_rank, files, write_table
from torch_dataloader_utils import merge_states, scan_files
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils.stream.worker import WorkerStream

# Loading a state on more ranks than rows are left warns of it; that every row still comes is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.* come a second time:UserWarning")

topologies = st.builds(
    Topology, num_ranks=st.integers(1, 4), num_workers=st.integers(1, 3), batch_size=st.integers(2, 30)
)


class Rank:
    """One rank of a job: its data set, and the round robin over its workers that a DataLoader would do."""

    def __init__(self, inventory, options, topology, rank, state):
        self.dataset = dataset_of_rank("", topology, rank, state, inventory=inventory, **options)
        self.run = self.dataset.progress.begin(topology)
        self.plan = self.dataset.planner.plan(self.run.position)
        self.done = self.run.position.segment.steps_of(rank)
        works = self.plan.worker_inputs(rank)
        decode = replace(self.dataset.stages.decode, threads=1)
        self.streams = [iter(WorkerStream(work, self.dataset.pipeline, decode)) for work in works]
        self.steps = self.plan.rank_steps[rank]

    def step(self):
        batch = next(self.streams[self.done % len(self.streams)])
        self.done += 1
        self.run.count()
        if self.done == self.steps:
            self.dataset.progress.finish(self.run)
        return check_batch(batch)

    def close(self):
        for stream in self.streams:
            stream.close()


class LoaderMachine(RuleBasedStateMachine):
    checkpoints = Bundle("checkpoints")

    @initialize(
        files=files,
        topology=topologies,
        shuffle_rows=st.one_of(st.none(), st.integers(1, 60)),
        seed=st.integers(0, 2**64 - 1),
        split_rows=st.integers(1, 60),
    )
    def begin(self, files, topology, shuffle_rows, seed, split_rows):
        self.folder = TemporaryDirectory()
        self.total = write_table(Path(self.folder.name), [[1], *files])
        self.inventory = scan_files(self.folder.name)
        self.options = {
            "shuffle": True,
            "shuffle_seed": seed,
            "shuffle_rows": shuffle_rows,
            "split_rows": split_rows,
        }
        self.ranks = []
        self.start(topology, None)
        self.received = Counter()
        self.repeats = 0

    def start(self, topology, state):
        self.close()
        self.topology = topology
        self.ranks = [Rank(self.inventory, self.options, topology, rank, state) for rank in range(topology.num_ranks)]
        self.epoch = self.ranks[0].dataset.epoch

    def close(self):
        for rank in self.ranks:
            rank.close()

    @property
    def at_end(self):
        return self.ranks[0].done >= self.ranks[0].steps

    @precondition(lambda self: not self.at_end)
    @rule(steps=st.integers(1, 5))
    def sync(self, steps):
        for _ in range(steps):
            if not self.at_end:
                for rank in self.ranks:
                    self.received.update(rank.step())
                self.repeats = self.ranks[0].plan.repeated_rows if self.at_end else 0

    @rule(target=checkpoints)
    def checkpoint(self):
        states = [rank.dataset.state_dict() for rank in self.ranks]
        assert all(state == states[0] for state in states)
        assert merge_states(states) == states[0]
        return states[0], Counter() if self.at_end else Counter(self.received)

    @rule(checkpoint=checkpoints)
    def crash_and_restart(self, checkpoint):
        state, received = checkpoint
        self.start(self.topology, state)
        self.received, self.repeats = Counter(received), 0

    @rule(checkpoint=checkpoints, topology=topologies)
    def crash_and_restart_elsewhere(self, checkpoint, topology):
        state, received = checkpoint
        self.start(topology, state)
        self.received, self.repeats = Counter(received), 0

    @precondition(lambda self: self.at_end)
    @rule()
    def next_epoch(self):
        assert set(self.received) == set(range(self.total))
        self.start(self.topology, self.ranks[0].dataset.state_dict())
        self.received, self.repeats = Counter(), 0

    @invariant()
    def nothing_comes_twice(self):
        if self.ranks:
            assert sum(self.received.values()) - len(self.received) == self.repeats

    @invariant()
    def ranks_are_in_step_and_states_small(self):
        if self.ranks:
            assert len({rank.steps for rank in self.ranks}) == 1
            assert len(json.dumps(self.ranks[0].dataset.state_dict())) < 1000

    def teardown(self):
        if not self.ranks:
            return
        while not self.at_end:
            self.sync(5)
        assert set(self.received) == set(range(self.total))
        self.close()
        self.folder.cleanup()


LoaderMachine.TestCase.settings = settings(max_examples=40 * EFFORT, stateful_step_count=30, deadline=None)
TestLoaderMachine = LoaderMachine.TestCase
