"""Nulls that metadata count: the number for each column that is surely among the delivered rows."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from torch_dataloader_utils._arrow.schema import flat_schema
from torch_dataloader_utils._core.table_file import field_id, stored_field_id
from torch_dataloader_utils.formats.file_scan import FileScan

# Returns the data set's column for each field of a file, None for a field without a column.
NamesIn = Callable[[pa.Schema], Iterable[str | None]]


def known_nulls(scans: Iterable[FileScan], columns: Iterable[str], names_in: NamesIn) -> Mapping[str, int]:
    """Return the number of nulls that each column surely has; columns without known nulls are left out.

    A column that a file lacks is null in each row of the file. Fields of structs count by their dotted names.

        5 rows with 2 nulls in `a`, and 3 rows of a file that has only `b`      {"a": 5}

    Args:
        scans: Files from which all rows that the filter keeps are delivered.
        columns: Columns that are null where a file lacks them; not columns that partitions or defaults fill.
        names_in: See `NamesIn`.
    """
    columns, totals = tuple(columns), Counter[str]()
    for run in _runs(scan for scan in scans if scan.nulls is not None):
        schema, rows = run[0].schema, sum(scan.kept_rows for scan in run)
        names = tuple(names_in(schema))
        flat = flat_schema(schema)
        inside = names if flat is schema else tuple(names_in(flat))
        nulls = sum((scan.nulls for scan in run if scan.nulls is not None), np.zeros(len(flat), dtype=np.int64))
        for place in np.flatnonzero(nulls).tolist():
            if (name := inside[place]) is not None:
                totals[name] += int(nulls[place])
        for name in set(columns).difference(names, inside).union(_empty(schema, names)):
            totals[name] += rows
    return +totals


def names_by_id(fields: pa.Schema) -> NamesIn:
    """Return a function that finds the columns of table fields in a file, by their ids."""
    names: dict[int | None, str] = {field_id(field): field.name for field in (*fields, *flat_schema(fields))}
    return lambda stored: [names.get(stored_field_id(field)) for field in stored]


def _runs(scans: Iterable[FileScan]) -> Iterator[list[FileScan]]:
    """Yield files that follow each other and have one schema: names, types, and ids of fields."""
    run: list[FileScan] = []
    for scan in scans:
        if run and not _are_equal(scan.schema, run[0].schema):
            yield run
            run = []
        run.append(scan)
    if run:
        yield run


def _are_equal(one: pa.Schema, other: pa.Schema) -> bool:
    return one is other or bool(one.remove_metadata().equals(other.remove_metadata(), check_metadata=True))


def _empty(schema: pa.Schema, names: Iterable[str | None]) -> set[str]:
    """Return the columns with a type that has nothing but nulls in the file."""
    return {name for name, field in zip(names, schema, strict=True) if name and pa.types.is_null(field.type)}
