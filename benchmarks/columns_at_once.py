"""How many columns should one call of pyarrow decode, of 51?

python benchmarks/columns_at_once.py [GiB] [runs]

The limit asks for all columns of a row group at once. The others ask for a few at a time, from the same open file, and
keep them as they come, or copy each into a matrix of all columns of its type while a core has it in its cache. Footers
are known.
"""

import sys
from functools import partial

import numpy as np
import pyarrow.parquet as pq
from bare import Group, groups_of, in_threads, read_few, read_group
from data import tabular
from measure import alternate, report

from torch_dataloader_utils._arrow.process_memory import RECYCLED


def read_stacked(columns: int, task: Group) -> int:
    """One row group, `columns` columns a call, to a matrix for each type."""
    path, group, footer = task
    file = pq.ParquetFile(path, metadata=footer, pre_buffer=False)
    names, rows = file.schema_arrow.names, footer.row_group(group).num_rows
    matrices = {}
    for first in range(0, len(names), columns):
        table = file.read_row_group(group, names[first : first + columns], use_threads=False)
        for column, field in zip(table.columns, table.schema, strict=True):
            array = np.from_dlpack(column.chunk(0))
            if field.type not in matrices:
                matrices[field.type] = iter(new_matrix(file.schema_arrow.types.count(field.type), rows, array.dtype))
            next(matrices[field.type])[:] = array
    return rows


def new_matrix(columns: int, rows: int, dtype: np.dtype) -> np.ndarray:
    """Memory for so many columns, which is used again."""
    num_bytes = columns * rows * dtype.itemsize
    return RECYCLED.take(num_bytes)[:num_bytes].view(dtype).reshape(columns, rows)


def main() -> None:
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    groups = groups_of(tabular(gib))
    rows = in_threads(read_group, groups)
    cases = {"limit: pyarrow, all columns": partial(in_threads, read_group, groups)}
    for columns in (1, 2, 4, 8, 17, 51):
        cases[f"{columns} columns a call"] = partial(in_threads, partial(read_few, columns), groups)
        cases[f"{columns} columns a call, stacked"] = partial(in_threads, partial(read_stacked, columns), groups)
    times = alternate(cases, runs=runs)
    report("columns_at_once", times, limit=next(iter(cases)), unit="rows", amount=rows, gib=gib, page_cache="warm")


if __name__ == "__main__":
    main()
