"""How long does `import torch_dataloader_utils` take? Limit: an interpreter that imports nothing.

Fresh processes in turn; the import itself must stay under 150 ms, because it loads neither torch nor pyarrow.
"""

import statistics
import subprocess
import sys
from functools import partial

from measure import alternate, report

RUNS = 5
TARGET_MILLISECONDS = 150.0
PROGRAMS = {
    "nothing": "pass",
    "torch_dataloader_utils": "import torch_dataloader_utils",
    "StructuredDataset, with torch and pyarrow": "from torch_dataloader_utils import StructuredDataset",
    "torch and pyarrow alone": "import torch, pyarrow, pyarrow.dataset",
}


def start(program: str) -> None:
    """Run a fresh process to its end."""
    subprocess.run([sys.executable, "-c", program], check=True)


def main() -> None:
    """Print the table, and the part of it that is ours."""
    times = alternate({name: partial(start, program) for name, program in PROGRAMS.items()}, runs=RUNS)
    pairs = zip(times["torch_dataloader_utils"], times["nothing"], strict=True)
    ours = 1e3 * statistics.median(ours - bare for ours, bare in pairs)
    report("import_time", times, limit="nothing", unit="processes", amount=1, import_milliseconds=ours)
    print(f"  import torch_dataloader_utils: {ours:.1f} ms (target < {TARGET_MILLISECONDS:.0f} ms)")


if __name__ == "__main__":
    main()
