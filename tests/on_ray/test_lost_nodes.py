"""Two trainers, on a cluster whose nodes come and go, get the batches that worker processes give, row by row."""

import itertools
import random

import pytest

from tests.on_ray.cluster import add_node, ray_workers, running_cluster
from tests.stream.tables import TABLE, TOTAL, check_batch, write_table
from torch_dataloader_utils import StructuredDataset

pytest.importorskip("ray")

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

EPOCHS = 10
ROWS = 4 * TOTAL


def loaders_of(folder, num_ranks, **options):
    """The loaders of all ranks."""
    return [
        StructuredDataset.create_dataloader(
            folder,
            batch_size=4,
            num_ranks=num_ranks,
            rank=rank,
            check_ranks=False,
            shuffle=True,
            split_rows=20,
            shuffle_rows=60,
            **options,
        )[0]
        for rank in range(num_ranks)
    ]


def steps_of(loaders):
    """Step after step, the rows of each rank."""
    for batches in itertools.zip_longest(*loaders):
        yield [check_batch(batch) for batch in batches if batch is not None]


def test_nodes_are_killed_and_added_in_every_epoch(tmp_path):
    assert write_table(tmp_path, TABLE * 4) == ROWS
    chance = random.Random(1)
    with running_cluster(3) as cluster:
        nodes = [node for node in cluster.list_all_nodes() if not node.head]
        loaders = loaders_of(tmp_path, 2, workers=ray_workers(4, actors=3))
        alone = loaders_of(tmp_path, 2, num_workers=4)
        for epoch in range(EPOCHS):
            for loader in (*loaders, *alone):
                loader.set_epoch(epoch)
            kill_at, resume_at = chance.randrange(1, 30), 40 if epoch == EPOCHS // 2 else None
            expected = steps_of(alone)
            seen = []
            for number, step in enumerate(steps_of(loaders)):
                assert step == next(expected)
                seen += itertools.chain(*step)
                if number == kill_at:
                    cluster.remove_node(nodes.pop(chance.randrange(len(nodes))), allow_graceful=False)
                    nodes.append(add_node(cluster))
                if number == resume_at:
                    break
            if resume_at is not None:
                state = loaders[0].state_dict()
                loaders = loaders_of(tmp_path, 3, workers=ray_workers(4, actors=3))
                for loader in loaders:
                    loader.load_state_dict(state)
                seen += itertools.chain(*itertools.chain(*steps_of(loaders)))
                alone = loaders_of(tmp_path, 3, num_workers=4)
            assert set(seen) == set(range(ROWS))
            assert len(seen) - ROWS < 4 * len(loaders)  # the last step repeats rows, so that all ranks take it
