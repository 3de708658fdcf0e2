"""How long does `import torch_dataloader_utils` take? Limit: an interpreter that imports nothing.

Fresh processes, alternating, by their processor time (user and system), which other work on the machine hardly changes.
The import itself must stay under 150 ms, because it loads neither torch nor pyarrow.
"""

import resource
import statistics
import subprocess
import sys

from measure import report

RUNS = 5
TARGET_MILLISECONDS = 150.0
PROGRAMS = {
    "nothing": "pass",
    "torch_dataloader_utils": "import torch_dataloader_utils",
    "StructuredDataset, with torch and pyarrow": "from torch_dataloader_utils import StructuredDataset",
    "torch and pyarrow alone": "import torch, pyarrow, pyarrow.dataset",
}


def processor_seconds(program: str) -> float:
    """Seconds that the processors spend on a fresh process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    """Print the table, and the part of it that is ours."""
    rounds = [{name: processor_seconds(program) for name, program in PROGRAMS.items()} for _ in range(1 + RUNS)]
    # The first round, which finds nothing in the page cache, does not count.
    times = {name: [each[name] for each in rounds[1:]] for name in PROGRAMS}
    pairs = zip(times["torch_dataloader_utils"], times["nothing"], strict=True)
    ours = 1e3 * statistics.median(ours - bare for ours, bare in pairs)
    report(
        "import_time", times, limit="nothing", unit="processes", amount=1, clock="processor", import_milliseconds=ours
    )
    print(f"  import torch_dataloader_utils: {ours:.1f} ms (target < {TARGET_MILLISECONDS:.0f} ms)")


if __name__ == "__main__":
    main()
