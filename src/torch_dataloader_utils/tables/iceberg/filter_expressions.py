"""Row filters on Iceberg tables: pyarrow's expression becomes pyiceberg's, by which data files are left out."""

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._arrow.expressions import Call, FieldRef, Literal, Node, UnknownForm, parse_expression
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression


_SWAPPED = {
    "equal": "equal",
    "not_equal": "not_equal",
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}
_NEGATED = {
    "equal": "not_equal",
    "not_equal": "equal",
    "less": "greater_equal",
    "less_equal": "greater",
    "greater": "less_equal",
    "greater_equal": "less",
}
_AND = ("and", "and_kleene")
_OR = ("or", "or_kleene")


def translate(row_filter: pc.Expression, schema: pa.Schema) -> "BooleanExpression":
    """Return the pyiceberg expression, over the columns of `schema` by name.

    Every row that the filter keeps, the expression keeps too: parts that cannot be translated become AlwaysTrue.

        (pc.field("id") > 5) & (pc.add(pc.field("x"), 1) > 2)      GreaterThan("id", 5)
    """
    tree: Node
    try:
        tree = parse_expression(row_filter)
    except UnknownForm:
        tree = Literal(value=pa.scalar(True))
    expression: BooleanExpression = _Translator(schema).walk(tree, negated=False)
    return expression


class _Translator:
    def __init__(self, schema: pa.Schema) -> None:
        counts = Counter(schema.names)
        self._fields = {field.name: field for field in schema if counts[field.name] == 1}

    def walk(self, node: Node, *, negated: bool) -> Any:
        iceberg = _expressions()

        match node:
            case Literal(value=value) if pa.types.is_boolean(value.type) and value.is_valid:
                return iceberg.AlwaysTrue() if value.as_py() != negated else iceberg.AlwaysFalse()
            case Call(function="invert", arguments=(argument,)):
                return self.walk(argument, negated=not negated)
            case Call(function=function, arguments=(left, right)) if function in _AND + _OR:
                # De Morgan. Each side keeps at least its rows, so both together keep at least theirs.
                combine = iceberg.And if (function in _AND) != negated else iceberg.Or
                return combine(self.walk(left, negated=negated), self.walk(right, negated=negated))
            case Call(function=function, arguments=(FieldRef() as ref, Literal() as literal)) if function in _SWAPPED:
                return self._comparison(function, ref, literal, negated=negated)
            case Call(function=function, arguments=(Literal() as literal, FieldRef() as ref)) if function in _SWAPPED:
                return self._comparison(_SWAPPED[function], ref, literal, negated=negated)
            case Call(arguments=(FieldRef(path=(name,)),)) if name in self._fields:
                return self._unary(node, self._fields[name], negated=negated)
            case _:
                return iceberg.AlwaysTrue()

    def _comparison(self, function: str, ref: FieldRef, literal: Literal, *, negated: bool) -> Any:
        iceberg = _expressions()

        field = self._fields.get(ref.path[0]) if len(ref.path) == 1 else None
        if field is None or (negated and pa.types.is_floating(field.type)):
            return iceberg.AlwaysTrue()
        value = _exact_value(literal.value, field.type)
        if value is None:
            return iceberg.AlwaysTrue()
        predicates = {
            "equal": iceberg.EqualTo,
            "not_equal": iceberg.NotEqualTo,
            "less": iceberg.LessThan,
            "less_equal": iceberg.LessThanOrEqual,
            "greater": iceberg.GreaterThan,
            "greater_equal": iceberg.GreaterThanOrEqual,
        }
        return predicates[_NEGATED[function] if negated else function](field.name, value)

    def _unary(self, call: Call, field: pa.Field, *, negated: bool) -> Any:
        iceberg = _expressions()

        match call.function:
            case "is_null" if not _flag(call, "nan_is_null"):
                return iceberg.NotNull(field.name) if negated else iceberg.IsNull(field.name)
            case "is_valid":
                return iceberg.IsNull(field.name) if negated else iceberg.NotNull(field.name)
            case "is_nan" if not negated and pa.types.is_floating(field.type):
                return iceberg.IsNaN(field.name)
            case "starts_with" if not negated and not _flag(call, "ignore_case") and pa.types.is_string(field.type):
                return iceberg.StartsWith(field.name, call.options["pattern"].as_py())
            case "is_in" if not negated:
                values = [_exact_value(value, field.type) for value in call.options["value_set"].values]
                # A null or an inexact value in the set is left to the reader.
                return iceberg.AlwaysTrue() if None in values else iceberg.In(field.name, values)
            case _:
                return iceberg.AlwaysTrue()


def _expressions() -> Any:
    # Any: the constructors are pydantic's, and type checkers see their signatures without aliases.
    from pyiceberg import expressions

    return expressions


def _flag(call: Call, name: str) -> bool:
    # A missing option has another release's default: True is the careful answer.
    return bool(call.options[name].as_py()) if name in call.options else True


def _exact_value(scalar: Any, data_type: pa.DataType) -> Any:
    """Return the literal as pyiceberg takes it for this type; None if the type cannot hold it or it is not finite."""
    types = pa.types
    if not scalar.is_valid or not _is_comparable(data_type):
        return None
    try:
        exact = scalar.cast(data_type)
        if exact.cast(scalar.type) != scalar:
            return None
    except pa.ArrowException:
        return None
    if types.is_temporal(data_type):
        # pyiceberg takes days or microseconds for every type of time.
        return exact.cast(pa.int32() if types.is_date32(data_type) else pa.int64()).as_py()
    value = exact.as_py()
    # pyiceberg takes an infinite value for a value beyond a float's range, and no row equals it. NaN equals no value.
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_comparable(data_type: pa.DataType) -> bool:
    types = pa.types
    if types.is_timestamp(data_type):
        return bool(data_type.unit == "us")
    return any(
        is_kind(data_type)
        for is_kind in (
            types.is_boolean,
            types.is_int32,
            types.is_int64,
            types.is_float32,
            types.is_float64,
            types.is_date32,
            types.is_time64,
            types.is_string,
            types.is_decimal128,
        )
    )


def pruning_expression(filters: pc.Expression | None, scan_filter: Any, schema: pa.Schema) -> "BooleanExpression":
    """Return both filters as one pyiceberg expression. Data files that cannot match it are left out.

    filters: Expression over columns of `schema`. scan_filter: A pyiceberg expression, its text, or None.

    Raises:
        ConfigError: a text that does not parse. ConfigTypeError: scan_filter is neither an expression nor a text.
    """
    from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression

    if isinstance(scan_filter, str):
        scan_filter = _parsed(scan_filter)
    if scan_filter is not None and not isinstance(scan_filter, BooleanExpression):
        raise ConfigTypeError(
            f"scan_filter is {of_type(scan_filter)}: pass a pyiceberg expression, such as "
            "pyiceberg.expressions.EqualTo('x', 3), or its text."
        )
    by_filters = AlwaysTrue() if filters is None else translate(filters, schema)
    return And(by_filters, AlwaysTrue() if scan_filter is None else scan_filter)


def _parsed(text: str) -> "BooleanExpression":
    from pyiceberg.expressions import parser
    from pyparsing import ParseException

    try:
        return parser.parse(text)
    except (ParseException, ValueError) as error:
        # The error's own text, pages of grammar, is left to the traceback.
        raise ConfigError(
            f"scan_filter={text!r} does not parse. Write it like \"day >= '2024-01-01' and region in (3, 4)\", or pass "
            "a pyiceberg expression."
        ) from error
