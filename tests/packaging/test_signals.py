"""Programs that tests start begin with default signals, however the tests were started."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]

LOOK = """
import subprocess, sys
import tests.conftest
look = "import signal; print(signal.getsignal(signal.SIGINT).__name__, signal.getsignal(signal.SIGTERM).name)"
subprocess.run([sys.executable, "-c", look], check=True)
"""


def test_children_of_tests_have_default_signals_where_this_process_was_started_without_them() -> None:
    # As a shell starts `make test &`, and with SIGTERM as well.
    command = ["sh", "-c", 'trap "" INT TERM; exec "$@"', "sh", sys.executable, "-c", LOOK]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.returncode) == ("default_int_handler SIG_DFL\n", 0), done.stderr
