"""Limits of a child process that opens files which may ask for any memory and any time."""

import resource
from pathlib import Path

# More than any good file of the tests takes, and less than what the hostile ones ask for.
MORE_BYTES = 3 << 30


def limit_process(cpu_seconds: int) -> None:
    """So much processor time, and 3 GiB beside what is mapped by now: torch for CUDA maps as much by itself."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MORE_BYTES, mapped + MORE_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
