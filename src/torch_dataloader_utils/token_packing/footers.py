"""Counts samples by Parquet footers, without reading data."""

import numpy as np

from torch_dataloader_utils._core.inventory import FileFormat, Int64s
from torch_dataloader_utils.token_packing.layout import count_greedy
from torch_dataloader_utils.token_packing.options import TokenPacking


def footer_counts(file_format: int, packing: TokenPacking) -> bool:
    """Whether row groups of this format can be counted by the footer."""
    return file_format == FileFormat.PARQUET and packing.fill == "greedy" and packing.counts == "footers"


def count_from_footer(items: Int64s, packing: TokenPacking) -> int:
    """Samples of one row group: exact where the footer counts nulls, else an upper bound.

    items: (rows, level entries, entries that hold no value) of the column, see `Reader.list_items`. An empty or null
    list is one entry without a value, so that

        [7, 8] [] [9]      rows 3, entries 4, without value 1: 3 tokens in 2 documents
    """
    rows, entries, without_value = np.asarray(items).tolist()
    num_tokens = entries - without_value
    num_documents = max(0, rows - without_value)
    return count_greedy(num_tokens + (num_documents if packing.eod is not None else 0), packing)
