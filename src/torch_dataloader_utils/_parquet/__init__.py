"""The ends of Parquet files as bytes: where a footer begins, what it consists of, and footers that are known already.

In: the last bytes of files. Out: lengths, the bytes that files written alike share, and the numbers that differ.

Promises: a footer that is taken for a known one says, number for number, what pyarrow would read in it; any other is
left to pyarrow; sizes that no table needs are refused before anything is decoded. The standard library and numpy only.
Not for reading files: scanning and reading each have their own way to the bytes.
"""
