"""What only Linux has: without it every module imports, and epochs come with threads and with worker processes."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

SOURCE = Path(__file__).parents[2] / "src"

# Run by every interpreter at its start, so in worker processes too. What other libraries need on Linux stays.
TAKE_AWAY = """
import errno, os, resource, signal

for module, names in (
    (os, "memfd_create sched_getaffinity sched_setaffinity posix_fadvise posix_fallocate eventfd pidfd_open splice "
         "copy_file_range fdatasync getrandom setns unshare getxattr setxattr listxattr O_TMPFILE O_DIRECT O_PATH"),
    (errno, "EREMOTEIO ENOMEDIUM EKEYEXPIRED"),
    (resource, "prlimit"),
    (signal, "SIGRTMIN SIGRTMAX SIGPWR SIGSTKFLT SIGPOLL"),
):
    for name in names.split():
        vars(module).pop(name, None)

def hiding(call):
    def refuse_or_call(path=".", *arguments, **options):
        if not isinstance(path, int) and os.fsdecode(path).startswith(("/proc/", "/dev/shm")):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return call(path, *arguments, **options)

    return refuse_or_call

def refusing_2_gib(read, num_bytes):
    def refuse_or_read(descriptor, wanted, *arguments):
        if num_bytes(wanted) >= 1 << 31:  # macOS
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return read(descriptor, wanted, *arguments)

    return refuse_or_read

os.stat, os.scandir, os.listdir = hiding(os.stat), hiding(os.scandir), hiding(os.listdir)
os.pread = refusing_2_gib(os.pread, int)
os.preadv = refusing_2_gib(os.preadv, lambda buffers: sum(map(len, buffers)))
"""

IMPORT_ALL = """
import os
import pkgutil
from importlib import import_module

import torch_dataloader_utils

assert not hasattr(os, "memfd_create")
for found in pkgutil.walk_packages(torch_dataloader_utils.__path__, "torch_dataloader_utils."):
    if found.name.endswith(".__main__"):
        continue
    try:
        import_module(found.name)
    except ModuleNotFoundError as error:  # an extra that is not installed
        if error.name.partition(".")[0] == "torch_dataloader_utils":
            raise
print("imported")
"""

EPOCHS = """
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from torch_dataloader_utils import StructuredDataset

torch.multiprocessing.set_sharing_strategy("file_system")  # the only one on macOS; here, so in worker processes too


def main():
    path = sys.argv[1]
    pq.write_table(pa.table({"x": np.arange(100_000)}), path, row_group_size=10_000)
    for num_workers in (0, 2):
        options = {"multiprocessing_context": "spawn"} if num_workers else {}
        loader, _ = StructuredDataset.create_dataloader(path, batch_size=999, num_workers=num_workers, **options)
        rows = np.concatenate([batch["x"].numpy() for batch in loader])
        assert np.array_equal(np.sort(rows), np.arange(100_000)), num_workers
    print("read")


if __name__ == "__main__":
    main()
"""

LARGE_READS = """
import os
import sys
from functools import partial

from torch_dataloader_utils._store import LocalStore
from torch_dataloader_utils.megatron.corpora.ranges import PlainFile

path, size = sys.argv[1], (2 << 30) + 9
with open(path, "wb") as file:
    file.truncate(size - 3)  # takes no room on the disk
    file.seek(0, os.SEEK_END)
    file.write(b"end")
for read_ranges in (partial(LocalStore().ranges, path), PlainFile(path).read):
    (read,) = read_ranges([(0, size)])
    assert len(read) == size
    assert bytes(read[-4:]) == b"\\0end"
    del read
print("read")
"""


@pytest.fixture
def run_without_linux(tmp_path: Path) -> Callable[..., str]:
    """Runs a program in an interpreter that lacks what only Linux has; gives what it printed."""
    (tmp_path / "sitecustomize.py").write_text(TAKE_AWAY)

    def run(program: str, *arguments: str) -> str:
        script = tmp_path / "program.py"
        script.write_text(program)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(SOURCE)])}
        done = subprocess.run(
            [sys.executable, script, *arguments], env=environment, timeout=300, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_every_module_imports_without_what_only_linux_has(run_without_linux: Callable[..., str]) -> None:
    assert run_without_linux(IMPORT_ALL) == "imported\n"


def test_epochs_come_whole_without_what_only_linux_has(run_without_linux: Callable[..., str], tmp_path: Path) -> None:
    assert run_without_linux(EPOCHS, str(tmp_path / "x.parquet")) == "read\n"


def test_more_is_read_than_one_call_of_the_system_gives(run_without_linux: Callable[..., str], tmp_path: Path) -> None:
    assert run_without_linux(LARGE_READS, str(tmp_path / "large")) == "read\n"
