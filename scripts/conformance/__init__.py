"""The conformance matrix: what writers write, read by this library and by other readers, compared row by row.

    matrix.py     cases, readers, verdicts, and what cases of several formats share
    parquet.py, iceberg.py, delta.py    the cases of each format
    __main__.py   runs all cases and writes docs/conformance.md

`make conformance`; nothing is on the page that was not run.
"""
