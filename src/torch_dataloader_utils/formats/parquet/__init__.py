"""Parquet files: `scan` finds the row groups in a footer, `decode` reads one row group a few columns at a time.

`trailer` and `footer_numbers` check and read a footer without pyarrow, `sidecar` reads `_metadata`. `numbers` and
`together` call the compiled decoder: for columns of one row group, or for numbers of several row groups at once.
"""
