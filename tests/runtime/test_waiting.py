"""Waits that end with the process: the hook of Python that they need."""

from torch_dataloader_utils._runtime import waiting


def test_python_still_has_the_hook_that_runs_before_it_joins_the_threads_of_pools():
    assert callable(waiting._at_exit)
