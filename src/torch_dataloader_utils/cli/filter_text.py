"""Row filters as text: a small part of Python's expressions, parsed and never executed.

x > 3 and not (label == "a" or label in ["b", "c"]) and y is not None and col("odd name") <= 2.5 and user.age >= 18
day >= date("2024-01-05") and time < timestamp("2024-01-05T12:30:00+00:00")
"""

import ast
import operator
from datetime import date, datetime
from functools import reduce
from typing import Any

from torch_dataloader_utils.errors import ConfigError

_OPERATORS: dict[type[ast.AST], Any] = {
    ast.And: operator.and_,
    ast.Or: operator.or_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda column, values: column.isin(values),
    ast.NotIn: lambda column, values: ~column.isin(values),
}
_TIMES: dict[str, Any] = {"date": date.fromisoformat, "timestamp": datetime.fromisoformat}


def parse_filter(text: str) -> Any:
    """Return the pyarrow expression of a text.

    Raises:
        ConfigError: anything but comparisons of columns with values, `in [...]`, `is None`, and, or, not.
    """
    try:
        return _condition(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError as error:
        raise _refused(text, f"{error.msg} at character {error.offset}") from error
    except (RecursionError, MemoryError) as error:  # Python's parser raises either
        raise _refused(f"{text[:40]}...", "it is nested too deeply") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise _refused(text, str(error)) from error


def _condition(node: ast.expr) -> Any:
    match node:
        case ast.BoolOp(op=op, values=values):
            return reduce(_OPERATORS[type(op)], map(_condition, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ~_condition(operand)
        case ast.Compare(left=left, ops=ops, comparators=rights):
            return reduce(operator.and_, map(_comparison, [left, *rights], ops, rights))
        case _:
            return _column(node)


def _comparison(left: ast.expr, op: ast.cmpop, right: ast.expr) -> Any:
    match op, right:
        case (ast.Is(), ast.Constant(value=None)):
            return _column(left).is_null()
        case (ast.IsNot(), ast.Constant(value=None)):
            return _column(left).is_valid()
        case (ast.In() | ast.NotIn(), ast.List(elts=values) | ast.Tuple(elts=values) | ast.Set(elts=values)):
            return _OPERATORS[type(op)](_column(left), list(map(_value, values)))
        case (ast.In() | ast.NotIn() | ast.Is() | ast.IsNot(), _):
            raise ValueError("`in` takes a list of values, and `is` only None")
        case _:
            return _OPERATORS[type(op)](_side(left), _side(right))


def _side(node: ast.expr) -> Any:
    import pyarrow.compute as pc

    if isinstance(node, ast.Constant) and node.value is None:
        raise ValueError("a comparison with None is true for no row; write `is None` or `is not None`")
    try:
        return pc.scalar(_value(node))
    except ValueError:
        return _column(node)


def _value(node: ast.expr) -> Any:
    """Return the value of a literal, a date or a timestamp; ValueError for all else."""
    match node:
        case ast.Call(
            func=ast.Name(id="date" | "timestamp" as kind), args=[ast.Constant(value=str(time))], keywords=[]
        ):
            return _TIMES[kind](time)
        case _:
            try:
                return ast.literal_eval(node)
            except ValueError as error:
                raise ValueError(f"{ast.unparse(node)!r} is no value") from error


def _column(node: ast.expr) -> Any:
    import pyarrow.compute as pc

    match node:
        case ast.Name(id=name) | ast.Call(func=ast.Name(id="col"), args=[ast.Constant(value=str(name))], keywords=[]):
            return pc.field(name)
        case ast.Attribute():
            return pc.field(*_path(node))
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is no column and no value")


def _path(node: ast.expr) -> tuple[str, ...]:
    match node:
        case ast.Attribute(value=above, attr=name):
            return (*_path(above), name)
        case ast.Name(id=name):
            return (name,)
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is no field of a column")


def _refused(text: str, reason: str) -> ConfigError:
    return ConfigError(
        f"--filter {text!r}: {reason}. Write comparisons such as: x > 3 and label in ['a', 'b'] and y is not None and "
        "day >= date('2024-01-05')."
    )
