"""Pruning of manifests and data files by a row filter, with partition values and column bounds.

pyiceberg does the transforms and comparisons. The file stays if statistics cannot be evaluated (such as bounds written
before a type was widened) or contradict themselves. Partition values that have wrapped are not evaluated either:

    truncate[3] of the int -2147483648     -2147483649 by the specification; writers store 2147483647
"""

import logging
import struct
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from torch_dataloader_utils._core.table_file import field_id
from torch_dataloader_utils._store import redact
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.formats.file_scan import Verdict
from torch_dataloader_utils.formats.statistics import counts_contradict, has_exact_statistics
from torch_dataloader_utils.tables.iceberg.manifests import Manifest, ManifestEntry

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import NestedField


_log = logging.getLogger(__name__)

# Greatest int and long. A long column may have partition values from the time when it was an int.
_GREATEST = (2**31 - 1, 2**63 - 1)

# Errors of evaluating statistics of other writers.
_UNEVALUABLE = (ValueError, TypeError, ArithmeticError, struct.error, AttributeError, LookupError, NotImplementedError)


class FilePruner:
    """Pruner of the manifests and data files of one scan; `expression` is over the columns of `schema`.

    Raises:
        ConfigError: the expression does not fit the schema.
    """

    def __init__(self, metadata: "TableMetadata", schema: "Schema", expression: "BooleanExpression") -> None:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.expressions.visitors import bind, extract_field_ids
        from pyiceberg.schema import Schema

        schema = Schema(*_all_optional(schema.fields))
        try:
            used = extract_field_ids(bind(schema, expression, case_sensitive=True))
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"scan_filter {expression} does not fit the table's columns ({error}). Check names and types."
            ) from error
        self._specs = metadata.specs()
        self._schema = schema
        self._expression = expression
        self._used = tuple(schema.find_field(number) for number in used)
        self._columns = {field.field_id for field in schema.fields}
        self.keeps_all = isinstance(expression, AlwaysTrue)
        self._manifest_test = cache(self._make_manifest_test)
        self._partition_test = cache(self._make_partition_test)
        self._statistics_test = cache(self._make_statistics_test)
        self._kinds = cache(self._partition_kinds)
        self._widths = cache(self._truncated_widths)

    def may_hold(self, manifest: Manifest) -> bool:
        """Return whether some data file of the manifest may hold a row that the expression keeps."""
        if self.keeps_all or manifest.partitions is None:
            return True
        if _unless_no(lambda: self._may_have_wrapped(manifest) or self._manifest_test(manifest.spec_id)(manifest)):
            return True
        return _logged(_unless_no(lambda: self._summaries_contradict(manifest)), manifest.manifest_path)

    def may_match(self, entry: ManifestEntry) -> bool:
        """Return whether the data file may hold a row that the expression keeps."""
        if self.keeps_all:
            return True
        if not _unless_no(lambda: self._partition_test(entry.spec_id)(entry)):
            return False
        if _unless_no(lambda: self._statistics_test()(entry)):
            return True
        return _logged(self.contradicts(entry), entry.path)

    def contradicts(self, entry: ManifestEntry) -> bool:
        """Return whether statistics of a data file cannot be right, for a field that the expression names."""
        return any(_unless_no(partial(self._is_contradicted, entry, field)) for field in self._used)

    def _is_contradicted(self, entry: ManifestEntry, field: "NestedField") -> bool:
        number = field.field_id
        values, nulls, nans = (
            (counts or {}).get(number)
            for counts in (entry.value_counts, entry.null_value_counts, entry.nan_value_counts)
        )
        lower, upper = ((bounds or {}).get(number) for bounds in (entry.lower_bounds, entry.upper_bounds))
        if number in self._columns and values not in (None, entry.record_count):
            return True
        known = entry.record_count if values is None else values
        has_bounds = nulls is not None and (lower is not None or upper is not None)
        if counts_contradict(known, nulls or 0, has_bounds=has_bounds) or not 0 <= (nans or 0) <= known - (nulls or 0):
            return True
        return lower is not None and upper is not None and not _is_range(field.field_type, lower, upper)

    def _summaries_contradict(self, manifest: Manifest) -> bool:
        return any(
            each.lower_bound is not None
            and each.upper_bound is not None
            and not _is_range(kind, each.lower_bound, each.upper_bound)
            for each, kind in zip(manifest.partitions or (), self._kinds(manifest.spec_id), strict=True)
        )

    def _partition_kinds(self, spec_id: int) -> list[Any]:
        return [field.field_type for field in self._specs[spec_id].partition_type(self._schema).fields]

    def _truncated_widths(self, spec_id: int) -> list[int]:
        """Return W for each field of the spec that truncates integers to multiples of W, 0 for other fields."""
        from pyiceberg.transforms import TruncateTransform
        from pyiceberg.types import IntegerType, LongType

        spec, kinds = self._specs[spec_id], self._kinds(spec_id)
        return [
            part.transform.width
            if isinstance(part.transform, TruncateTransform) and isinstance(kind, (IntegerType, LongType))
            else 0
            for part, kind in zip(spec.fields, kinds, strict=True)
        ]

    def _may_have_wrapped(self, manifest: Manifest) -> bool:
        summaries = manifest.partitions or ()
        return any(
            _holds_wrapped(_integer(summary.lower_bound), _integer(summary.upper_bound), width)
            for summary, width in zip(summaries, self._widths(manifest.spec_id), strict=True)
            if width and summary.lower_bound is not None
        )

    def _projected(self, spec_id: int) -> "BooleanExpression":
        from pyiceberg.expressions.visitors import inclusive_projection

        return inclusive_projection(self._schema, self._specs[spec_id], True)(self._expression)

    def _make_manifest_test(self, spec_id: int) -> Callable[[Any], bool]:
        from pyiceberg.expressions.visitors import manifest_evaluator

        return manifest_evaluator(self._specs[spec_id], self._schema, self._projected(spec_id), True)

    def _make_partition_test(self, spec_id: int) -> Callable[[ManifestEntry], bool]:
        from pyiceberg.expressions.visitors import expression_evaluator
        from pyiceberg.schema import Schema
        from pyiceberg.typedef import Record

        fields = self._specs[spec_id].partition_type(self._schema).fields
        widths = {field.field_id: width for field, width in zip(fields, self._widths(spec_id), strict=True) if width}
        evaluate = expression_evaluator(Schema(*fields), self._projected(spec_id), True)

        def test(entry: ManifestEntry) -> bool:
            values = dict(entry.partition)
            truncated = [(values[number], width) for number, width in widths.items() if values[number] is not None]
            if any(_holds_wrapped(value, value, width) for value, width in truncated):
                return True
            return evaluate(Record(*(values[field.field_id] for field in fields)))

        return test

    def _make_statistics_test(self) -> Callable[[ManifestEntry], bool]:
        # The one private name: pyiceberg has no public way to test a file's statistics.
        from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator

        evaluator = _InclusiveMetricsEvaluator(self._schema, self._expression, True, True)
        test: Callable[[Any], bool] = evaluator.eval
        return test


def _logged(is_contradicted: bool, path: str) -> bool:
    if is_contradicted:
        _log.warning("%s: its statistics in the manifest contradict themselves and are not used", redact(path))
    return is_contradicted


def _is_range(kind: Any, lower: bytes, upper: bytes) -> bool:
    """Return whether the bounds of a field of this type are in order; NaN is not."""
    from pyiceberg.conversions import from_bytes

    return bool(from_bytes(kind, lower) <= from_bytes(kind, upper))


def _holds_wrapped(lower: int, upper: int, width: int) -> bool:
    """Return whether [lower, upper] may hold the wrapped truncation of a value near the minimum of its type."""
    return any(lower <= greatest and upper > greatest - width for greatest in _GREATEST)


def _integer(bound: bytes) -> int:
    return int.from_bytes(bound, "little", signed=True)


def _all_optional(fields: "Sequence[NestedField]") -> "list[NestedField]":
    """Return the fields, fields inside structs too, without the promise that they are never null.

    pyiceberg assumes that a required field is never null. But older files may have nulls in it, and a required field
    inside a null struct is null too.
    """
    from pyiceberg.types import StructType

    optional = []
    for field in fields:
        kind = field.field_type
        kind = StructType(*_all_optional(kind.fields)) if isinstance(kind, StructType) else kind
        optional.append(field.model_copy(update={"field_type": kind, "required": False}))
    return optional


def _unless_no(test: Callable[[], bool]) -> bool:
    try:
        return test()
    except _UNEVALUABLE:
        return True


class ManifestJudge:
    """Judge of files of one row group that the pruner kept. Their manifest and footer have the same bounds.

    negation: Expression that is true at least for every row for which the filter is false. used: Fields that the filter
    names.
    """

    def __init__(
        self, metadata: "TableMetadata", schema: "Schema", negation: "BooleanExpression", used: Sequence[pa.Field]
    ) -> None:
        self._used = tuple(field_id(field) for field in used)
        # Other types prove nothing, as with footers: bounds of text may be shortened, and statistics leave out NaN.
        self._can_prove = all(has_exact_statistics(field.type) for field in used)
        self._negation = FilePruner(metadata, schema, negation)

    def verdict(self, entry: ManifestEntry) -> Verdict | None:
        """Return IN or MAYBE; None if the manifest lacks bounds or contradicts itself. The footer may have bounds."""
        lower, upper, nulls = entry.lower_bounds or {}, entry.upper_bounds or {}, entry.null_value_counts or {}
        if not all(number in lower and number in upper for number in self._used):
            return None
        if self._negation.contradicts(entry):
            return None
        has_no_nulls = all(nulls.get(number) == 0 for number in self._used)
        if self._can_prove and has_no_nulls and not self._negation.may_match(entry):
            return Verdict.IN
        return Verdict.MAYBE
