"""The compiled decoder: Parquet column chunks of numbers, decimals and lists of both, in the memory of the caller.

In: the pages of column chunks, or the path of their file, and addresses for their values. Out: values and bitmaps of
nulls, or the reason for which a chunk was refused; pyarrow then decodes the chunk, with the same rows, errors and
verdicts. `gather` writes rows of decoded columns in another order, `permute` makes random orders, `pick` the order of
blends. `check_footer` refuses footers that contradict themselves. `crc32` is zlib's, by the processor's instruction.
`find_news` finds lines of JSON with keys that no earlier line had. `engine.h` lists the C files.

The decoder is built where a compiler exists; otherwise `IS_BUILT` is false and pyarrow decodes all chunks.
"""

try:
    from torch_dataloader_utils._engine._numbers import (
        check_footer,
        count_values,
        crc32,
        decode,
        find_news,
        gather,
        has_codec,
        permute,
        pick,
        read_footer,
    )
except ImportError:
    from zlib import crc32

    IS_BUILT = False
else:
    IS_BUILT = True

__all__ = [
    "IS_BUILT",
    "check_footer",
    "count_values",
    "crc32",
    "decode",
    "find_news",
    "gather",
    "has_codec",
    "permute",
    "pick",
    "read_footer",
]
