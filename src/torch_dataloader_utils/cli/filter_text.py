"""Row filters as text: a small part of Python's expressions, parsed and never executed.

x > 3 and not (label == "a" or label in ["b", "c"]) and y is not None and col("odd name") <= 2.5
day >= date("2024-01-05") and time < timestamp("2024-01-05T12:30:00+00:00")
"""

import ast
import operator
from collections.abc import Callable
from datetime import date, datetime
from typing import Any

from torch_dataloader_utils.errors import ConfigError

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_TIMES: dict[str, Callable[[str], date]] = {"date": date.fromisoformat, "timestamp": datetime.fromisoformat}


def parse_filter(text: str) -> Any:
    """The pyarrow expression that `text` says.

    Raises:
        ConfigError: anything but comparisons of columns with values, `in [...]`, `is None`, and, or, not.
    """
    try:
        return _condition(ast.parse(text.strip(), mode="eval").body, text)
    except ConfigError:
        raise
    except SyntaxError as error:
        raise _refused(text, f"{error.msg} at character {error.offset}") from error
    except (RecursionError, MemoryError) as error:  # what Python's parser raises for either
        raise _refused(f"{text[:40]}...", "it is nested too deeply") from error
    except (ValueError, TypeError, OverflowError) as error:
        raise _refused(text, str(error)) from error


def _condition(node: ast.expr, text: str) -> Any:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return _joined(values, operator.and_, text)
        case ast.BoolOp(op=ast.Or(), values=values):
            return _joined(values, operator.or_, text)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ~_condition(operand, text)
        case ast.Compare(left=left, ops=ops, comparators=rights):
            sides = [left, *rights]
            parts = [_compared(*each, text) for each in zip(sides, ops, rights, strict=False)]
            result = parts[0]
            for part in parts[1:]:
                result &= part
            return result
        case _:
            return _column(node, text)


def _joined(values: list[ast.expr], join: Callable[[Any, Any], Any], text: str) -> Any:
    result = _condition(values[0], text)
    for value in values[1:]:
        result = join(result, _condition(value, text))
    return result


def _compared(left: ast.expr, op: ast.cmpop, right: ast.expr, text: str) -> Any:
    match op:
        case ast.Is() | ast.IsNot() if isinstance(right, ast.Constant) and right.value is None:
            column = _column(left, text)
            return column.is_null() if isinstance(op, ast.Is) else column.is_valid()
        case ast.In() | ast.NotIn():
            listed = _column(left, text).isin(_values(right, text))
            return listed if isinstance(op, ast.In) else ~listed
        case _ if type(op) in _COMPARISONS:
            return _COMPARISONS[type(op)](_side(left, text), _side(right, text))
        case _:
            raise _refused(text, f"{type(op).__name__} is not understood")


def _side(node: ast.expr, text: str) -> Any:
    import pyarrow.compute as pc

    if isinstance(node, ast.Constant) and node.value is None:
        raise _refused(text, "a comparison with None is true of no row; `is None` and `is not None` ask for it")
    try:
        return pc.scalar(_value(node))
    except ValueError:
        return _column(node, text)


def _values(node: ast.expr, text: str) -> list[Any]:
    try:
        match node:
            case ast.List(elts=listed) | ast.Tuple(elts=listed) | ast.Set(elts=listed):
                return [_value(each) for each in listed]
    except ValueError as error:
        raise _refused(text, "after `in` there must be a list of values") from error
    raise _refused(text, "after `in` there must be a list of values")


def _value(node: ast.expr) -> Any:
    """The value that an expression denotes; ValueError if it denotes none."""
    match node:
        case ast.Call(
            func=ast.Name(id="date" | "timestamp" as kind), args=[ast.Constant(value=str(time))], keywords=[]
        ):
            return _TIMES[kind](time)
        case _:
            return ast.literal_eval(node)


def _column(node: ast.expr, text: str) -> Any:
    import pyarrow.compute as pc

    match node:
        case ast.Name(id=name):
            return pc.field(name)
        case ast.Call(func=ast.Name(id="col"), args=[ast.Constant(value=str(name))], keywords=[]):
            return pc.field(name)
        case _:
            raise _refused(text, f"{ast.unparse(node)!r} is no column and no value")


def _refused(text: str, reason: str) -> ConfigError:
    return ConfigError(
        f"--filter {text!r}: {reason}. Write comparisons such as: x > 3 and label in ['a', 'b'] and y is not None and "
        "day >= date('2024-01-05')."
    )
