"""Judges data files by the bounds in their manifest, so that footers need not be read for the row filter."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from torch_dataloader_utils._core.iceberg import field_id
from torch_dataloader_utils.discover.file_scan import Verdict
from torch_dataloader_utils.discover.iceberg.manifests import ManifestEntry
from torch_dataloader_utils.discover.iceberg.prune import FilePruner
from torch_dataloader_utils.discover.prune import has_exact_statistics

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata


class ManifestJudge:
    """Judges files of one row group that the pruner kept; for these, manifest and footer have the same bounds.

    negation: true at least for every row for which the filter is false. used: the fields that the filter names.
    """

    def __init__(
        self, metadata: "TableMetadata", schema: "Schema", negation: "BooleanExpression", used: Sequence[pa.Field]
    ) -> None:
        self._used = tuple(field_id(field) for field in used)
        # Otherwise nothing is proven, as with footers: bounds of text may be shortened, and statistics leave out NaN.
        self._can_prove = all(has_exact_statistics(field.type) for field in used)
        self._negation = FilePruner(metadata, schema, negation)

    def verdict(self, entry: ManifestEntry) -> Verdict | None:
        """IN or MAYBE; None if the manifest lacks bounds, since the footer may have them."""
        lower, upper, nulls = entry.lower_bounds or {}, entry.upper_bounds or {}, entry.null_value_counts or {}
        if not all(number in lower and number in upper for number in self._used):
            return None
        has_no_nulls = all(nulls.get(number) == 0 for number in self._used)
        if self._can_prove and has_no_nulls and not self._negation.may_match(entry):
            return Verdict.IN
        return Verdict.MAYBE
