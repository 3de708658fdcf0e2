"""A shuffle of all rows whose jobs run on a Ray cluster, with the executor of docs/how-to/rewrite.md."""

import pytest

from tests.on_ray.cluster import running_cluster
from tests.rewrite.tables import contents, write_files
from torch_dataloader_utils import shuffle_table

ray = pytest.importorskip("ray")

# Ray leaves sockets and files to the interpreter.
pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SIZES = {"file_bytes": 6_000, "row_group_bytes": 1_500}


class RayExecutor:
    """An executor of tasks of Ray."""

    def submit(self, function, /, *arguments):
        """See Executor."""
        return ray.remote(function).remote(*arguments).future()


class StoppedError(Exception):
    """The call has ended early."""


def test_tasks_of_ray_write_the_same_files_and_go_on_after_a_stop(tmp_path):
    write_files(tmp_path / "source", [[60, 1, 0, 40], [0], [30, 39]])
    shuffle_table(tmp_path / "source", tmp_path / "here", memory="1GiB", **SIZES)

    def stop(done, total):
        if done == 2:
            raise StoppedError

    with running_cluster(2):
        with pytest.raises(StoppedError):
            shuffle_table(
                tmp_path / "source",
                tmp_path / "there",
                memory=9_000,
                executor=RayExecutor(),
                on_progress=stop,
                **SIZES,
            )
        report = shuffle_table(tmp_path / "source", tmp_path / "there", memory=9_000, executor=RayExecutor(), **SIZES)
    assert report.reused_jobs >= 2
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
