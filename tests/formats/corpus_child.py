"""Reads every Parquet file of a folder in a process with little memory and time; prints one JSON verdict a file.

    python -m tests.formats.corpus_child FOLDER      {"file": ..., "seen": [...], "error": ..., "rows_are_exact": ...}

"together": whether the numbers of all its row groups came by one call. What is read together is the same. "chunks": how
many were decoded by whom (see `Counts`). A file at which this process dies has no line.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.formats.files import make_spec, make_task, parquet_tasks
from tests.process_limits import limit_process
from torch_dataloader_utils._arrow.batches import side_by_side
from torch_dataloader_utils._core.inventory import UNKNOWN, FileFormat
from torch_dataloader_utils._observe.counters import KINDS, Counts, count_thread_in
from torch_dataloader_utils.errors import LoaderError
from torch_dataloader_utils.tables.reader import make_reader

CPU_SECONDS = 60
ANY_SCHEMA = pa.schema([("x", pa.int64())])


def verdict(path: Path) -> dict[str, Any]:
    """What our reader says of one file; against pyarrow's whole-file read where both can read it."""
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError):
        # No scan would get this far; the reader must still answer in kind.
        return read([make_task(path, FileFormat.PARQUET, 0, UNKNOWN)], ANY_SCHEMA) | {"rows_are_exact": True}
    tasks = parquet_tasks(path)
    result = read(tasks, schema)
    batches = result.pop("batches")
    together, result["together"] = read_together(tasks, schema)
    if together is not None and (
        result["error"] or not all(map(same, together.columns, pa.Table.from_batches(batches).columns))
    ):
        result["error"] = ["AssertionError", f"{path.name}: other rows together than row group by row group"]
    if result["error"] is None:
        whole = pq.ParquetFile(path, page_checksum_verification=True).read(use_threads=False)
        seen = pa.Table.from_batches(batches)
        result["rows_are_exact"] = seen.num_rows == whole.num_rows and all(map(same, seen.columns, whole.columns))
    return result


def read(tasks: list[Any], schema: pa.Schema) -> dict[str, Any]:
    """Rows of each row group up to the first error."""
    batches: list[pa.RecordBatch] = []
    error, counts = None, Counts()
    before = count_thread_in(counts)
    try:
        reader = make_reader(make_spec(schema))
        batches.extend(map(reader.read, tasks))
    except LoaderError as caught:
        error = [type(caught).__name__, str(caught)]
    finally:
        count_thread_in(before)
    chunks = {kind: getattr(counts, f"column_chunks.{kind}") for kind in KINDS["column_chunks"]}
    return {"seen": [batch.num_rows for batch in batches], "error": error, "batches": batches, "chunks": chunks}


def read_together(tasks: list[Any], schema: pa.Schema) -> tuple[pa.Table | None, bool]:
    """All rows of the file together, if they can be read so, and whether its numbers came by one call."""
    reader = make_reader(make_spec(schema))
    try:
        together = reader.read_together(tasks) if tasks else None
        by_one_call = bool(tasks) and reader.numbers_of(tasks) is not None
    except (LoaderError, pa.ArrowException, OSError):
        return None, False
    return together and pa.Table.from_batches([side_by_side(together.parts)]).select(schema.names), by_one_call


def same(seen: pa.ChunkedArray, wanted: pa.ChunkedArray) -> bool:
    """Whether these are the same values; NaN is itself, and dates that Python cannot say are compared as text."""
    one, other = seen.combine_chunks(), wanted.combine_chunks()
    if len(one) != len(other):
        return False
    return bool(one.equals(other)) or one.to_string(window=len(one)) == other.to_string(window=len(other))


def main() -> None:
    """One line a file."""
    limit_process(CPU_SECONDS)
    for path in sorted(Path(sys.argv[1]).glob("*.parquet")):
        answer = verdict(path)
        answer.pop("batches", None)
        print(json.dumps({"file": path.name} | answer), flush=True)


if __name__ == "__main__":
    main()
