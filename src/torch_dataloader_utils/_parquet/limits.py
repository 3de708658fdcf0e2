"""How much a Parquet footer may hold before it is refused: sizes that no table needs, and hostile files have.

Decoding a footer takes about 30 times its bytes of memory, and each column and row group some Python objects.
"""

from torch_dataloader_utils.errors import UnsupportedFeatureError

MOST_FOOTER_BYTES = 64 << 20
MOST_COLUMNS = 100_000
MOST_ROW_GROUPS = 100_000


def check_footer_size(where: str, *, footer_bytes: int = 0, num_columns: int = 0, num_row_groups: int = 0) -> None:
    """Refuse a file whose footer holds too much.

    where: what messages call the file. num_columns: leaf columns.

    Raises:
        UnsupportedFeatureError: such as "a.parquet: the file has 1,000,000 row groups, the limit is 100,000".
    """
    counts = (
        (footer_bytes, MOST_FOOTER_BYTES, "bytes of footer"),
        (num_columns, MOST_COLUMNS, "leaf columns"),
        (num_row_groups, MOST_ROW_GROUPS, "row groups"),
    )
    for count, most, what in counts:
        if count > most:
            raise UnsupportedFeatureError(
                f"{where}: the file has {count:,} {what}, the limit is {most:,}. Write the table as more files, or "
                "check this one."
            )
