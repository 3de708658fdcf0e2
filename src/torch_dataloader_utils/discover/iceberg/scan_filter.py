"""Makes the pyiceberg expression by which data files are left out."""

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils.discover.iceberg.translate import translate
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression


def pruning_expression(filters: pc.Expression | None, scan_filter: Any, schema: pa.Schema) -> "BooleanExpression":
    """Both filters as one pyiceberg expression; data files that cannot match it are left out.

    filters: over columns of `schema`. scan_filter: a pyiceberg expression, its text, or None.

    Raises:
        ConfigError: a text that does not parse. ConfigTypeError: a scan_filter that is neither.
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
        # Its own text, pages of grammar, is left to the traceback.
        raise ConfigError(
            f"scan_filter={text!r} does not parse. Write it like \"day >= '2024-01-01' and region in (3, 4)\", or pass "
            "a pyiceberg expression."
        ) from error
