"""Hypothesis without a deadline and, in CI, without chance; signals as at a terminal; `--quick`."""

import gc
import multiprocessing
import os
import signal
import subprocess
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from torch.utils.data import DataLoader

from tests.effort import EFFORT

# Footers of remote files are not kept on the host that runs the tests.
os.environ.setdefault("TORCH_DATALOADER_UTILS_CACHE", "off")
# gcsfs decides when it is imported whether it asks for a bucket's layout, by a protocol that no server of ours speaks.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")

# A shell starts background jobs with SIGINT ignored, and children inherit that: `nohup make test &`. What is handled
# here is at its default in the programs that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)

# Workers and ranks that a forkserver makes find these imported, which takes each four seconds otherwise.
multiprocessing.set_forkserver_preload(
    ["torch_dataloader_utils.datasets.build", "torch._dynamo", "tests.packing.ranks", "tests.refresh.job"]
)

settings.register_profile(
    "dev", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.register_profile("quick", settings.get_profile("dev"), max_examples=10)
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=100 * EFFORT)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

_in_quick_test = False


def pytest_addoption(parser: pytest.Parser) -> None:
    """See pytest."""
    parser.addoption("--quick", action="store_true", help="skip each test where it begins to start a process")


def pytest_configure(config: pytest.Config) -> None:
    """See pytest."""
    if config.getoption("--quick"):
        # Where nothing is half begun: an iterator of DataLoader without workers, say, complains when it is collected.
        for owner, name in ((subprocess.Popen, "__init__"), (BaseProcess, "start"), (os, "fork")):
            setattr(owner, name, _skipping(getattr(owner, name)))
        make_iterator = DataLoader._get_iterator
        starting = _skipping(make_iterator)
        DataLoader._get_iterator = lambda loader: (starting if loader.num_workers else make_iterator)(loader)


def pytest_collection_finish() -> None:
    """See pytest. What the test modules have imported stays: no collection of garbage needs to look at it, least of all
    in a process that is forked, which would copy its pages for that.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[Any]:
    """Within a test, fixtures included; pytest-xdist starts its processes outside."""
    global _in_quick_test
    _in_quick_test = True
    try:
        return (yield)
    finally:
        _in_quick_test = False


def pytest_runtest_setup(item: pytest.Item) -> None:
    """See pytest."""
    if item.config.getoption("--quick") and item.get_closest_marker("waits"):
        pytest.skip("waits")


def _skipping(start: Any) -> Any:
    """What starts a process, and within a test of `--quick` skips that test instead."""

    def skip_or_start(*arguments: Any, **options: Any) -> Any:
        # An error in another thread than the test's: a fixture that starts one there asks for the option itself.
        if _in_quick_test:
            pytest.skip("starts a process")
        return start(*arguments, **options)

    return skip_or_start
