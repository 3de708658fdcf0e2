"""Remote files: the bytes that are needed, pinned to the planned file, in any format."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.formats.files import (
    make_spec,
    write_arrow,
    write_csv,
    write_json,
    write_orc,
    write_parquet,
    write_stream,
    write_stream_batches,
)
from torch_dataloader_utils._core.row_group_task import RowGroupTask
from torch_dataloader_utils._store import open_store
from torch_dataloader_utils.discover import scan_files
from torch_dataloader_utils.errors import CorruptFileError, FileChangedError
from torch_dataloader_utils.tables.reader import make_reader


class CountedFileSystem(MemoryFileSystem):
    """fsspec's memory store under another scheme, which notes the ranges it is asked for."""

    protocol = "counted"
    store: dict[str, Any] = {}  # noqa: RUF012 - fsspec's own way to share it between instances
    spans: list[tuple[int, int]] = []  # noqa: RUF012
    lock = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("counted://").strip("/")

    def cat_ranges(self, paths: Sequence[str], starts: Any, ends: Any, **options: Any) -> list[bytes]:
        with self.lock:
            self.spans += list(zip(starts, ends, strict=True))
        result: list[bytes] = super().cat_ranges(paths, starts, ends, **options)
        if len(self.spans) > 1:
            type(self).on_read()
        return result

    @staticmethod
    def on_read() -> None:
        """What happens to the store after the second read and each later one."""


@pytest.fixture(autouse=True)
def counted() -> Iterator[type[CountedFileSystem]]:
    fsspec.register_implementation("counted", CountedFileSystem, clobber=True)
    CountedFileSystem.store.clear()
    CountedFileSystem.spans.clear()
    do_nothing = CountedFileSystem.on_read
    yield CountedFileSystem
    CountedFileSystem.on_read = staticmethod(do_nothing)
    CountedFileSystem.store.clear()


def uploaded(tasks: list[RowGroupTask]) -> list[RowGroupTask]:
    path = Path(tasks[0].path)
    url = f"counted://bucket{path}"
    CountedFileSystem().pipe_file(CountedFileSystem._strip_protocol(url), path.read_bytes())
    identity = open_store(url).stat(url).identity
    return [replace(task, path=url, identity=identity) for task in tasks]


TABLE = pa.table(
    {
        "row": np.arange(300),
        "word": [f"w{i % 7}" for i in range(300)],
        "kind": pa.array(["a", "b", "c"] * 100).dictionary_encode(),
    }
)
PLAIN = TABLE.select(["row", "word"])


@pytest.mark.parametrize("name", ["parquet", "orc", "arrow", "stream", "csv", "json"])
def test_remote_rows_are_the_local_rows(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"a.{name}"
    tasks = {
        "parquet": lambda: write_parquet(path, TABLE, 100),
        "orc": lambda: write_orc(path, PLAIN),
        "arrow": lambda: write_arrow(path, TABLE, 100),
        "stream": lambda: write_stream(path, TABLE, 100),
        "csv": lambda: write_csv(path, PLAIN, 100),
        "json": lambda: write_json(path, PLAIN, 100),
    }[name]()
    schema = TABLE.schema if name in ("parquet", "arrow", "stream") else PLAIN.schema
    reader = make_reader(make_spec(schema))
    for local, remote in zip(tasks, uploaded(tasks), strict=True):
        assert reader.read(remote).equals(reader.read(local))


def test_only_the_column_chunks_of_the_projection_and_filter_are_fetched(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    table = pa.table({f"c{i}": random.integers(0, 1 << 62, 300_000) for i in range(8)})
    local = write_parquet(tmp_path / "a.parquet", table, 150_000, use_dictionary=False, compression="none")
    metadata = pq.read_metadata(tmp_path / "a.parquet")
    tasks = [replace(task, live_rows=-1) for task in uploaded(local)]
    reader = make_reader(make_spec(table.schema, columns=("c6",), row_filter=pc.field("c2") > 0))
    reader.read(tasks[0])
    CountedFileSystem.spans.clear()
    reader.read(tasks[1])
    chunks = [metadata.row_group(1).column(i) for i in (2, 6)]
    wanted = {(c.data_page_offset, c.data_page_offset + c.total_compressed_size) for c in chunks}
    assert set(CountedFileSystem.spans) == wanted
    CountedFileSystem.spans.clear()
    assert make_reader(make_spec(table.schema, columns=())).read(tasks[1]).num_rows == 150_000
    assert CountedFileSystem.spans == []


@pytest.mark.slow
def test_a_replaced_object_is_changed(tmp_path: Path) -> None:
    tasks = uploaded(write_parquet(tmp_path / "a.parquet", TABLE, 100))
    reader = make_reader(make_spec(TABLE.schema))
    reader.read(tasks[0])
    uploaded(write_parquet(tmp_path / "a.parquet", TABLE.slice(1), 100))
    with pytest.raises(FileChangedError, match=r"counted://bucket.*[Pp]lan the data set again"):
        reader.read(tasks[1])
    CountedFileSystem.store.clear()
    with pytest.raises(FileChangedError, match="gone"):
        reader.read(tasks[2])


def test_a_long_footer_is_fetched_whole(tmp_path: Path) -> None:
    table = pa.table({f"a_rather_long_column_name_{i}": [i] for i in range(2_000)})
    (task,) = uploaded(write_parquet(tmp_path / "a.parquet", table))
    assert make_reader(make_spec(table.schema)).read(task).to_pylist() == table.to_pylist()


def test_dictionaries_outside_the_batch_are_fetched_when_asked_for(tmp_path: Path) -> None:
    words = [f"{'w' * 1000}{i}" for i in range(500)]
    table = pa.table({"kind": pa.array(words).dictionary_encode()})
    tasks = write_arrow(tmp_path / "a.arrow", table, 100)
    reader = make_reader(make_spec(table.schema))
    # As a scan would say: only the last bytes of the file hold the batch.
    pinned = [replace(t, byte_offset=t.file_size - 1000, byte_length=1000) for t in uploaded(tasks)]
    assert [reader.read(t).column("kind").to_pylist() for t in pinned] == [
        words[i : i + 100] for i in range(0, 500, 100)
    ]


@pytest.mark.slow
def test_a_batch_of_a_stream_costs_itself_and_its_dictionaries(tmp_path: Path) -> None:
    rows, random = 100_000, np.random.default_rng(0)
    kinds = [pa.array([f"{i}-{row % 9}" for row in range(rows)]).dictionary_encode() for i in range(8)]
    batches = [pa.record_batch({"x": random.random(rows), "kind": kind}) for kind in kinds]
    tasks = uploaded(write_stream_batches(tmp_path / "a.arrows", batches, batches[0].schema))
    reader = make_reader(make_spec(batches[0].schema))
    for task, batch in zip(tasks, batches, strict=True):
        assert reader.read(task).to_pydict() == batch.to_pydict()
    # Up to each batch from the beginning of the stream, it would be 4.5 times the file.
    fetched_bytes = sum(stop - start for start, stop in CountedFileSystem.spans)
    assert fetched_bytes < 1.3 * tasks[0].file_size
    assert len(CountedFileSystem.spans) < 10 * len(tasks)


def test_small_batches_of_a_stream_are_scanned_many_a_request(tmp_path: Path) -> None:
    (first, *_) = uploaded(write_stream(tmp_path / "a.arrows", TABLE, 1))
    CountedFileSystem.spans.clear()
    assert scan_files(first.path, "arrow").num_groups == 300
    # The tail, and what is before it, 64 KiB of messages at a time.
    assert len(CountedFileSystem.spans) <= 1 + first.file_size / (60 << 10)
    assert len(set(CountedFileSystem.spans)) == len(CountedFileSystem.spans)
    (small,) = uploaded(write_stream(tmp_path / "b.arrows", TABLE, 300))
    CountedFileSystem.spans.clear()
    assert scan_files(small.path, "arrow").num_groups == 1
    assert CountedFileSystem.spans == [(0, small.file_size)]


def test_column_chunks_outside_the_file_are_refused_before_they_are_asked_for(tmp_path: Path) -> None:
    # Only the remote path follows the offsets itself; locally pyarrow does, and fails on its own.
    # Nor are the offsets of a small file followed, which comes whole.
    path, table = tmp_path / "a.parquet", pa.table({"x": np.random.default_rng(0).random(30_000)})
    (task,) = write_parquet(path, table)
    content = path.read_bytes()
    footer = int.from_bytes(content[-8:-4], "little") + 8
    cut = content[:100_000] + content[-footer:]
    (tmp_path / "b.parquet").write_bytes(cut)
    (task,) = uploaded([replace(task, path=str(tmp_path / "b.parquet"), file_size=len(cut))])
    with pytest.raises(CorruptFileError, match="the footer places column x at bytes"):
        make_reader(make_spec(table.schema)).read(task)


@pytest.mark.parametrize("write", [write_parquet, write_orc, lambda path, table: write_arrow(path, table, 1000)])
def test_a_small_file_is_one_request(tmp_path: Path, write: Callable[..., list[RowGroupTask]]) -> None:
    (task,) = uploaded(write(tmp_path / "a", PLAIN))
    make_reader(make_spec(PLAIN.schema)).read(task)
    assert CountedFileSystem.spans == [(0, task.file_size)]


def test_a_file_that_changes_between_two_reads_of_a_row_group_is_changed(tmp_path: Path) -> None:
    words = [f"{'w' * 1000}{i}" for i in range(500)]
    table = pa.table({"kind": pa.array(words).dictionary_encode()})
    (task, *_) = uploaded(write_arrow(tmp_path / "a.arrow", table, 100))
    task = replace(task, byte_offset=task.file_size - 1000, byte_length=1000)
    key = CountedFileSystem._strip_protocol(task.path)
    CountedFileSystem.on_read = staticmethod(lambda: CountedFileSystem().pipe_file(key, bytes(task.file_size)))
    with pytest.raises(FileChangedError, match="plan the data set again"):
        make_reader(make_spec(table.schema)).read(task)


@pytest.mark.slow
def test_a_stripe_is_its_bytes_and_the_tail_of_the_planned_file(tmp_path: Path) -> None:
    table = pa.table({"row": np.random.default_rng(0).random(40_000)})
    tasks = uploaded(write_orc(tmp_path / "a.orc", table, 1, batch_size=10_000, compression="uncompressed"))
    assert len(tasks) == 4
    reader = make_reader(make_spec(table.schema))
    parts = []
    for task in tasks:
        CountedFileSystem.spans.clear()
        parts.append(reader.read(task))
        assert len(CountedFileSystem.spans) <= 2
        assert sum(stop - start for start, stop in CountedFileSystem.spans) < task.file_size
    assert pa.Table.from_batches(parts).equals(table)
    uploaded(write_orc(tmp_path / "a.orc", table.slice(1), 1, batch_size=10_000, compression="uncompressed"))
    with pytest.raises(FileChangedError, match=r"counted://bucket.*[Pp]lan the data set again"):
        reader.read(tasks[2])
