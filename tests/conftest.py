"""Hypothesis without a deadline and, in CI, without chance; signals as at a terminal; `--quick`."""

import multiprocessing.util
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.effort import EFFORT

# Footers of remote files are not kept on the host that runs the tests.
os.environ.setdefault("TORCH_DATALOADER_UTILS_CACHE", "off")

# A shell starts background jobs with SIGINT ignored, and children inherit that: `nohup make test &`. What is handled
# here is at its default in the programs that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)

settings.register_profile(
    "dev", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.register_profile("quick", settings.get_profile("dev"), max_examples=10)
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=100 * EFFORT)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"})
_in_quick_test = False


def pytest_addoption(parser: pytest.Parser) -> None:
    """See pytest."""
    parser.addoption("--quick", action="store_true", help="skip each test where it begins to start a process")


def pytest_configure(config: pytest.Config) -> None:
    """See pytest."""
    if config.getoption("--quick"):
        sys.addaudithook(lambda event, _: _skip() if event in _STARTS else None)
        # The start methods spawn and forkserver are not audited.
        spawn = multiprocessing.util.spawnv_passfds
        multiprocessing.util.spawnv_passfds = lambda *arguments: _skip() or spawn(*arguments)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[Any]:
    """Within a test, fixtures included; pytest-xdist starts its processes outside."""
    global _in_quick_test
    _in_quick_test = True
    try:
        return (yield)
    finally:
        _in_quick_test = False


def _skip() -> None:
    # In another thread than that of the test this is an error: a fixture which does that asks for the option itself.
    if _in_quick_test:
        pytest.skip("starts a process")
