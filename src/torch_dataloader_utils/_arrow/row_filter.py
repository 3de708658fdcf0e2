"""Row filters: their text, the columns that they use, and the rows that they keep.

Shared by discovery and reading, because stages do not import each other.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import acero

from torch_dataloader_utils._arrow.expressions import with_decimals
from torch_dataloader_utils._arrow.schema import nested_path
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type, which_column

# Text of a filter that pyarrow cannot print. It looks like a function call, which such a filter has.
_NO_TEXT = "condition(binary values)"

# Types of literals that their text shows (as text shows fractions); literals of other types share texts.
_TYPES_SHOWN_BY_TEXT = frozenset([pa.bool_(), pa.int64(), pa.string(), pa.timestamp("us"), pa.date32()])

# Advice by pyarrow's reason; the first pattern that is found counts.
_ADVICE = {
    r"with timezone|tz=.*timestamp\[\w+\]|timestamp\[\w+\].*tz=": (
        "A column with a time zone is compared with datetime(2024, 1, 5, tzinfo=timezone.utc), a column without one "
        "with datetime(2024, 1, 5); in a shell write timestamp('2024-01-05T00:00:00+00:00') with a zone."
    ),
    r"(?s)(?=.*string)(?=.*(timestamp\[|date32\[|date64\[))": (
        "Compare days and times with datetime.date and datetime.datetime values, and text with text; in a shell write "
        "date('2024-01-05') or timestamp('2024-01-05T12:30')."
    ),
    r"(string|binary)(, | vs )|(, | vs )(string|binary)": (
        "Compare text with text, such as '5', and numbers with numbers, such as 5."
    ),
    r"Precision is not great enough|decimal": (
        "Compare decimals with a value, such as 3, 3.0 or Decimal('9.99') of Python's decimal. Cast columns of "
        "integers, and what is computed: pc.field(name).cast('float64')."
    ),
    r"\bbool\b": "Compare booleans with True and False, or write pc.field(name) and ~pc.field(name).",
    r"": "Compare the column with values of its type, or cast it: pc.field(name).cast(type).",
}
# "No match for FieldRef.Name(a) in ...", or FieldRef.Nested(FieldRef.Name(a) FieldRef.Name(b)) for a nested field.
_UNKNOWN = re.compile(r"No match for (?:FieldRef\.Nested\((.*)\)|(FieldRef\.Name\(.*\))) in ")
_NAME = re.compile(r"\) FieldRef\.Name\(")


def check_filters(name: str, filters: Any) -> pc.Expression | None:
    """Return the value if it is None or a pyarrow expression; otherwise raise ConfigTypeError."""
    if filters is not None and not isinstance(filters, ds.Expression):
        made = "; pyarrow.parquet.filters_to_expression(...) makes one of a list" if isinstance(filters, list) else ""
        raise ConfigTypeError(
            f"{name} is {of_type(filters)}: pass a pyarrow expression, such as pc.field('x') > 3{made}."
        )
    return filters


def shown_filter(row_filter: pc.Expression) -> str:
    """Return pyarrow's text of the filter, or a substitute: pyarrow cannot print binary values in function options."""
    try:
        return str(row_filter)
    except UnicodeDecodeError:
        return _NO_TEXT


def filter_text(row_filter: pc.Expression) -> str:
    """Return the filter as text that no other filter has; "" for None.

    The text is pyarrow's text, with a digest after it where pyarrow's text is ambiguous: pyarrow leaves out values in
    the middle of an `isin` of more than 20, and does not show types (0.1 may be a float32, 2 a float).

        field("a") > 5                        (a > 5)
        field("a").isin(range(100))           is_in(a, {value_set=int64:[0, ..., 99], ...}) #6f1c2b9e

    Raises:
        ConfigError: the filter names columns by position.
    """
    if row_filter is None:
        return ""
    text = shown_filter(row_filter)
    serialized = _serialized(row_filter)
    with pa.ipc.open_file(serialized) as file:
        literals = file.get_batch(0).columns  # and options of functions; the text of options shows their types
    if "..." not in text and text != _NO_TEXT and all(map(_shows_type, literals)):
        return text
    return f"{text} #{blake2b(serialized, digest_size=4).hexdigest()}"


def _shows_type(literal: pa.Array) -> bool:
    """Return whether the text of a literal shows its type."""
    if pa.types.is_float64(literal.type):
        return not (literal[0].as_py() or 0.0).is_integer()
    return pa.types.is_struct(literal.type) or literal.type in _TYPES_SHOWN_BY_TEXT


class FittedFilter(NamedTuple):
    """Filter for the rows of a schema, and the columns that it refers to. expression: None keeps all rows."""

    expression: pc.Expression | None
    columns: tuple[str, ...]


def fit_filter(row_filter: pc.Expression | None, schema: pa.Schema, hint: str = "") -> FittedFilter:
    """Return the filter with exact decimals (see `with_decimals`), and the names of its columns in the schema's order.

    hint: More advice for the message about a filter that does not fit.

    pyarrow cannot list the columns of a filter, but it can bind a filter: an expression binds to a schema exactly when
    every column that it names exists. A filter refers to a column if it no longer binds without the column. Halves of
    the schema that are not needed go at once: a filter over k of n columns takes about k log n binds of 10 µs.

        (field("a") > 1) & field("s", "x").is_null(),  columns a, b, s      ("a", "s")

    Raises:
        ConfigTypeError: not an expression.
        ConfigError: the filter names columns that do not exist, names columns by position, compares types that do not
            compare, or is not a condition (its values are not booleans).
    """
    if check_filters("filters", row_filter) is None:
        return FittedFilter(None, ())
    row_filter = with_decimals(row_filter, schema)
    _check_condition(row_filter, schema, hint)
    names = _needed(row_filter, schema, (), tuple(range(len(schema))))
    _check_kernels(row_filter, pa.schema([schema.field(name) for name in names]), hint)
    return FittedFilter(row_filter, names)


def keep_mask(row_filter: pc.Expression, batch: pa.RecordBatch) -> pa.BooleanArray:
    """Return a BooleanArray of the batch's rows: true to keep, false or null to drop.

    batch: Columns that the filter names, in the types of the schema that the filter was checked against.
    """
    mask = _evaluate(row_filter, pa.Table.from_batches([batch]))
    return mask.chunk(0) if mask.num_chunks == 1 else mask.combine_chunks()


def _evaluate(row_filter: pc.Expression, table: pa.Table) -> pa.ChunkedArray:
    # In this thread: a thread pool gives pieces in any order, and does not exist after a fork.
    plan = acero.Declaration.from_sequence(
        [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("project", acero.ProjectNodeOptions([row_filter], ["keep"])),
        ]
    )
    return plan.to_table(use_threads=False).column(0)


def _serialized(row_filter: pc.Expression) -> pa.Buffer:
    """Return the filter serialized by Arrow, which refuses columns by position (a projection would change them)."""
    try:
        (serialized,) = row_filter.__reduce__()[1]
    except pa.ArrowNotImplementedError as error:
        raise ConfigError(f"filters {shown_filter(row_filter)} refers to columns by position; name them.") from error
    return serialized


def _check_condition(row_filter: pc.Expression, schema: pa.Schema, hint: str) -> None:
    _serialized(row_filter)
    try:
        # `schema.empty_table()` makes no column of tensors with a permutation.
        data_type = _evaluate(row_filter, pa.Table.from_batches([], schema)).type
    except pa.ArrowException as error:
        raise _misfit(row_filter, schema, error, hint) from error
    if not pa.types.is_boolean(data_type):
        raise ConfigError(
            f"filters {shown_filter(row_filter)} gives {data_type}, not true or false; compare it to something."
        )


def _check_kernels(row_filter: pc.Expression, used: pa.Schema, hint: str) -> None:
    """Raise the errors that a filter raises on rows only: Arrow compares time zones only when it has rows."""
    try:
        row = pa.Table.from_arrays([pa.nulls(1, field.type) for field in used], schema=used)
    except pa.ArrowNotImplementedError:  # a type without an array of nulls
        return
    try:
        _evaluate(row_filter, row if len(used) else pa.table({"": [0]}))
    except pa.ArrowException as error:
        raise _misfit(row_filter, used, error, hint) from error


def _misfit(row_filter: pc.Expression, schema: pa.Schema, error: pa.ArrowException, hint: str) -> ConfigError:
    """Return the error for a filter that does not fit, with the types of the columns that it names."""
    text, reason = shown_filter(row_filter), str(error)
    if (unknown := _UNKNOWN.search(reason)) is not None:
        return ConfigError(
            f"filters {text} does not fit the data: {_no_column(_names(unknown[1] or unknown[2]), schema)}{hint}"
        )
    named = (field for field in schema if re.search(rf"(?<!\w){re.escape(field.name)}(?!\w)", text))
    types = ", ".join(f"column {field.name!r} is {field.type}" for field in named)
    advice = next(advice for pattern, advice in _ADVICE.items() if re.search(pattern, reason))
    return ConfigError(f"filters {text} does not fit the data: {reason.splitlines()[0]}; {types}. {advice}{hint}")


def _names(reference: str) -> list[str]:
    """Return the names in FieldRef.Name(a) FieldRef.Name(b); names may hold parentheses."""
    return _NAME.split(reference.removeprefix("FieldRef.Name(").removesuffix(")"))


def _no_column(path: Sequence[str], schema: pa.Schema) -> str:
    """Return the text about a column, or a field inside a column, that does not exist."""
    first = path[0]
    if first in schema.names:
        return f"column {first!r} is {schema.field(first).type}, which has no field {'.'.join(path[1:])!r}."
    if inside := nested_path(schema, first):
        return f"{first!r} is a field inside a column; write pc.field({', '.join(map(repr, inside))})."
    return f"no column is called {first!r}; {which_column(first, schema.names)}"


def _needed(
    row_filter: pc.Expression, schema: pa.Schema, kept: tuple[int, ...], suspects: tuple[int, ...]
) -> tuple[str, ...]:
    # Invariant: the filter binds to kept + suspects.
    if not suspects or _binds(row_filter, schema, kept):
        return ()
    if len(suspects) == 1:
        return (schema.field(suspects[0]).name,)
    half = len(suspects) // 2
    left, right = suspects[:half], suspects[half:]
    return _needed(row_filter, schema, kept + right, left) + _needed(row_filter, schema, kept + left, right)


def _binds(row_filter: pc.Expression, schema: pa.Schema, indices: tuple[int, ...]) -> bool:
    try:
        ds.Scanner.from_batches([], schema=pa.schema([schema.field(i) for i in indices]), filter=row_filter)
    except pa.ArrowException:
        return False
    return True
