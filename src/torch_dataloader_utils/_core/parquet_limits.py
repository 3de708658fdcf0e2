"""How much a Parquet footer may hold before it is refused: sizes that no table needs, and hostile files have.

Decoding a footer takes about 30 times its bytes of memory, and each column and row group some Python objects.
"""

MOST_FOOTER_BYTES = 64 << 20
MOST_COLUMNS = 100_000
MOST_ROW_GROUPS = 100_000


def footer_excess(*, footer_bytes: int = 0, num_columns: int = 0, num_row_groups: int = 0) -> str | None:
    """What is too much about a footer, for a message; None if nothing is.

    num_columns: leaf columns.

        num_row_groups=1_000_000      "1,000,000 row groups, the limit is 100,000"
    """
    counts = (
        (footer_bytes, MOST_FOOTER_BYTES, "bytes of footer"),
        (num_columns, MOST_COLUMNS, "leaf columns"),
        (num_row_groups, MOST_ROW_GROUPS, "row groups"),
    )
    return next((f"{count:,} {what}, the limit is {most:,}" for count, most, what in counts if count > most), None)
