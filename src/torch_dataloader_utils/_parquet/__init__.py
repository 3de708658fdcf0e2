"""Footers of Parquet files as bytes: where they begin, their parts, and footers that are matched instead of parsed.

In: the last bytes of files. Out: lengths; the bytes that files from one writer share, and the numbers that differ.

Promises: a matched footer gives the same numbers as pyarrow would; any other is left to pyarrow; sizes that no table
needs are refused before anything is decoded. Imports the standard library and numpy only. Not for reading files:
scanning and reading get the bytes in their own ways.
"""
