"""The compiled decoder: Parquet column chunks of numbers and of lists of numbers, straight into memory of the caller.

In: the pages of column chunks, and where their values shall lie. Out: values and bitmaps of nulls, or a reason why a
chunk was refused; then pyarrow decodes it, with the same rows, errors and verdicts. `gather` writes rows of decoded
columns in another order. `check_footer` refuses footers that contradict themselves. `find_news` finds lines of JSON
with keys that no earlier line had. `decoder.h` says what is where.

It is built where a compiler is at hand; where none was, `IS_BUILT` is false and all chunks are pyarrow's.
"""

try:
    from torch_dataloader_utils._decoder._numbers import (
        check_footer,
        count_values,
        decode,
        find_news,
        gather,
        has_codec,
        read_footer,
    )
except ImportError:
    IS_BUILT = False
else:
    IS_BUILT = True

__all__ = [
    "IS_BUILT",
    "check_footer",
    "count_values",
    "decode",
    "find_news",
    "gather",
    "has_codec",
    "read_footer",
]
