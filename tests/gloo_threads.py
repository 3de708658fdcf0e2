"""Jobs on gloo that say at their end which of its threads are left."""

import os
from pathlib import Path

_AT_EXIT = Path(__file__).parent / "at_exit"


def python_path(*places: object) -> str:
    """PYTHONPATH of such a job, with these places on it."""
    return os.pathsep.join(map(str, [_AT_EXIT, *places]))


def check_ended(output: str) -> None:
    """Of what such a job wrote to stderr: one whose threads are left aborts by chance."""
    assert "leaves threads" not in output, output[-10_000:]
