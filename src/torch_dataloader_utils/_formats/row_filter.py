"""Row filters: their text, the columns they use, and the rows they keep.

Here, because both discovery and reading use this, and stages do not import each other.
"""

from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import acero

from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type

# The text of a filter that pyarrow cannot print. It looks like a function call, which such a filter has.
_NO_TEXT = "condition(binary values)"

# Types of literals that can be read off their text (as those of fractions can); literals of other types share texts.
_TYPES_SHOWN_BY_TEXT = frozenset([pa.bool_(), pa.int64(), pa.string(), pa.timestamp("us"), pa.date32()])

_OF_TIMES = (
    " Compare days and times with datetime.date and datetime.datetime values; in a shell write "
    "date('2024-01-05') or timestamp('2024-01-05T12:30')."
)


def check_filters(name: str, filters: Any) -> pc.Expression | None:
    """The value, if it is None or a pyarrow expression; otherwise raises ConfigTypeError."""
    if filters is not None and not isinstance(filters, ds.Expression):
        raise ConfigTypeError(f"{name} is {of_type(filters)}: pass a pyarrow expression, such as pc.field('x') > 3.")
    return filters


def shown_filter(row_filter: pc.Expression) -> str:
    """The filter as pyarrow prints it, or a substitute: it cannot print binary values in options of functions."""
    try:
        return str(row_filter)
    except UnicodeDecodeError:
        return _NO_TEXT


def filter_text(row_filter: pc.Expression) -> str:
    """The filter as text that no other filter has; "" for None.

    It is pyarrow's text, with a digest after it where that is ambiguous: pyarrow leaves out values in the middle of an
    `isin` of more than 20, and does not show types (0.1 may be a float32, 2 a float).

        field("a") > 5                        (a > 5)
        field("a").isin(range(100))           is_in(a, {value_set=int64:[0, ..., 99], ...}) #6f1c2b9e

    Raises:
        ConfigError: it names columns by position.
    """
    if row_filter is None:
        return ""
    text = shown_filter(row_filter)
    serialized = _serialized(row_filter)
    with pa.ipc.open_file(serialized) as file:
        literals = file.get_batch(0).columns  # and options of functions, whose text says their types
    if "..." not in text and text != _NO_TEXT and all(map(_shows_type, literals)):
        return text
    return f"{text} #{blake2b(serialized, digest_size=4).hexdigest()}"


def _shows_type(literal: pa.Array) -> bool:
    """Whether the type of a literal can be read from its text."""
    if pa.types.is_float64(literal.type):
        return not (literal[0].as_py() or 0.0).is_integer()
    return pa.types.is_struct(literal.type) or literal.type in _TYPES_SHOWN_BY_TEXT


def filter_columns(row_filter: pc.Expression, schema: pa.Schema, hint: str = "") -> tuple[str, ...]:
    """The names of the columns of `schema` that the filter refers to, in the schema's order.

    hint: more about what to do, for the message of a filter that does not fit.

    pyarrow cannot list them, but it can bind: an expression binds to a schema exactly when every column that
    it names is there. So a column is referred to when the filter no longer binds without it. Halves of the schema
    that are not needed go at once: a filter over k of n columns takes about k log n binds of 10 µs.

        (field("a") > 1) & field("s", "x").is_null(),  columns a, b, s      ("a", "s")

    Raises:
        ConfigTypeError: not an expression.
        ConfigError: it names columns that are not there, names them by position, compares types that do not
            compare, or is not a condition (its values are not booleans).
    """
    check_filters("filters", row_filter)
    _check_condition(row_filter, schema, hint)
    return _needed(row_filter, schema, (), tuple(range(len(schema))))


def keep_mask(row_filter: pc.Expression, batch: pa.RecordBatch) -> pa.BooleanArray:
    """A BooleanArray of the batch's rows: true to keep, false or null to drop.

    `batch` has the columns that the filter names, in the types of the schema that it was checked against.
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
    """The filter serialized by Arrow, which refuses columns by position (they would change with a projection)."""
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
        reason = str(error).splitlines()[0]  # what follows is the whole schema
        names = ", ".join(map(repr, schema.names))
        times = _OF_TIMES if "string" in reason and ("timestamp[" in reason or "date32[" in reason) else ""
        raise ConfigError(
            f"filters {shown_filter(row_filter)} does not fit the data: {reason}. Columns are {names}.{times}{hint}"
        ) from error
    if not pa.types.is_boolean(data_type):
        raise ConfigError(
            f"filters {shown_filter(row_filter)} gives {data_type}, not true or false; compare it to something."
        )


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
