"""Directory of an unfinished shuffle: its jobs' files and receipts, and the one rename that publishes the table.

TARGET.shuffling/job.json, spill files, receipts     what is done; the same shuffle continues with it
TARGET.shuffling/table/                              the output files
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch_dataloader_utils._runtime.file_locks import try_lock
from torch_dataloader_utils._runtime.publish import sync_directory, write_atomically
from torch_dataloader_utils.errors import ConfigError

_TABLE = "table"
_RECORD = "_shuffle.json"  # names that begin with an underscore are no data files


class PendingTable:
    """Target of a shuffle and the directory beside it in which the shuffle works.

    target: Directory that will hold the table. job: What is shuffled and how, as JSON values; two shuffles with the
        same job write the same rows in the same order.
    """

    def __init__(self, target: Path, job: Mapping[str, Any]) -> None:
        self.target, self.directory = target, target.with_name(f"{target.name}.shuffling")
        self._job = dict(job)

    def finished(self) -> dict[str, Any] | None:
        """Return the record of a target that this job has written, None if the target does not exist or is empty.

        What is left of the work is removed.

        Raises:
            ConfigError: the target exists with other content.
        """
        if not self.target.exists() or (self.target.is_dir() and not any(self.target.iterdir())):
            return None
        record = read_json(self.target / _RECORD) or {}
        if record.get("job") != self._job:
            raise ConfigError(
                f"{self.target} exists, and is not the result of this shuffle. Pass another target, or remove it."
            )
        for name, size in record["files"].items():
            file = self.target / name
            if size_of(file) != size:
                raise ConfigError(
                    f"{file} is not the file that the shuffle wrote. Remove {self.target}, or pass another."
                )
        shutil.rmtree(self.directory, ignore_errors=True)
        return record

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make the directory, or continue with it, and hold its lock in the block.

        Raises:
            ConfigError: the directory is of another shuffle, or another process works in it.
        """
        (self.directory / _TABLE).mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("w") as lock:
            is_alone = True
            with suppress(OSError):  # a file system without locks
                is_alone = try_lock(lock.fileno())
            if not is_alone:
                raise ConfigError(f"Another process is writing {self.target}. Wait until it is done.")
            job = read_json(self.directory / "job.json")
            if job is not None and job != self._job:
                raise ConfigError(
                    f"{self.directory} has the work of another shuffle (other data, seed, columns or sizes). Finish "
                    "that shuffle, remove the directory, or pass another target."
                )
            self._sweep()
            write_json(self.directory / "job.json", self._job)
            yield

    def _sweep(self) -> None:
        """Remove files that killed jobs have begun: spill files that no receipt names, and files without a name."""
        receipts = filter(None, map(read_json, self.directory.glob("spill-*.json")))
        known = {receipt["file"] for receipt in receipts}
        begun = [path for path in self.directory.glob("spill-*.arrow") if path.name not in known]
        for left in [*begun, *self.directory.glob(".*"), *(self.directory / _TABLE).glob(".*")]:
            left.unlink(missing_ok=True)

    def output(self, number: int) -> Path:
        """Return the path of an output file until the table is published."""
        return self.directory / _TABLE / f"part-{number:05d}.parquet"

    def receipt(self, name: str) -> Path:
        """Return the path of the receipt of a job."""
        return self.directory / f"{name}.json"

    def publish(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Rename the table to its target and remove everything else. Return the record, with these facts."""
        table = self.directory / _TABLE
        files = {path.name: path.stat().st_size for path in sorted(table.glob("*.parquet"))}
        record = {"job": self._job, "files": files, **facts}
        write_json(table / _RECORD, record)
        table.replace(self.target)
        sync_directory(self.target.parent)
        shutil.rmtree(self.directory, ignore_errors=True)
        return record


def size_of(path: Path) -> int:
    """Return the size of a file in bytes, -1 if there is none."""
    return path.stat().st_size if path.is_file() else -1


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a receipt, None if there is none."""
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a receipt, whole or not at all."""
    with write_atomically(path) as file:
        file.write(json.dumps(content).encode())
