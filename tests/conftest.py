"""Signals as at a terminal; Hypothesis without a deadline, and by chance only in `make full`; who starts processes."""

import gc
import multiprocessing
import os
import re
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from torch.utils.data import _utils

from tests.effort import TIER, spread
from torch_dataloader_utils import errors

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
    ["torch_dataloader_utils.datasets.build", "torch._dynamo", "tests.megatron.schedules.ranks", "tests.refresh.job"]
)

# How long torch waits for a worker whose iterator was garbage: five seconds by itself, in whichever test collects it.
_utils.MP_STATUS_CHECK_INTERVAL = 1.0

settings.register_profile(
    "test",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    # The same examples each time: what fails is what a change broke. `make full` has fresh ones.
    derandomize=True,
    print_blob=True,
)
settings.register_profile("quick", settings.get_profile("test"), max_examples=10)
settings.register_profile("full", settings.get_profile("test"), derandomize=False)
settings.load_profile(TIER)

_started: list[str] = []  # by this process since the present test began


# What platform and ctypes ask once a process, whichever test happens to be first.
_ASKED_BY_LIBRARIES = ("uname", "ldconfig", "lscpu", "file", "gcc", "cc", "ld", "objdump")


def _note_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and Path(os.fsdecode(arguments[0])).name in _ASKED_BY_LIBRARIES:
        return
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"):
        _started.append(f"{event} {arguments[:1]}")


def _note_start(process: BaseProcess) -> None:
    _started.append(repr(process))
    _start(process)


sys.addaudithook(_note_event)
_start = BaseProcess.start
BaseProcess.start = _note_start  # type: ignore[method-assign]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Do not import modules that are for `make full` as a whole: their libraries take seconds."""
    if TIER == "full" or collection_path.suffix != ".py":
        return None
    return (
        re.search(r"^pytestmark = \[?\s*pytest\.mark\.full\b", collection_path.read_text(), re.MULTILINE) is not None
        or None
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not of this tier."""
    if TIER == "full":
        return
    left_out = {"full", "processes", "slow"} if TIER == "quick" else {"full"}
    of_test: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not any(marker.name in left_out for marker in item.iter_markers()):
            of_test[item.nodeid.partition("[")[0]].append(item)
    kept = set()
    for cases in of_test.values():
        marker = cases[0].get_closest_marker("cases")
        numbers = range(len(cases)) if marker is None else spread(len(cases), *marker.args)
        kept |= {cases[number] for number in numbers}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_collection_finish() -> None:
    """See pytest. What the test modules have imported stays: no collection of garbage needs to look at it, least of all
    in a process that is forked, which would copy its pages for that.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _no_address_of_help() -> Iterator[None]:
    """A package that was built with an address says it below each message, where tests of messages expect the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(errors, "_help_page", lambda: None)
        yield


@pytest.fixture(autouse=True)
def _check_mark(request: pytest.FixtureRequest) -> Iterator[None]:
    """`make quick` leaves out what is marked; a thread of another library must not meet an exception there."""
    del _started[:]
    yield
    if _started and not any(request.node.get_closest_marker(name) for name in ("processes", "full")):
        pytest.fail(f"Starts a process ({_started[0]}): mark it with pytest.mark.processes.")
