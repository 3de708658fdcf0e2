"""Parquet files: `scan` finds the row groups in a footer, `decode` reads one of them a few columns at a time.

`trailer` and `footer_numbers` check and read a footer without pyarrow, `sidecar` reads `_metadata`. `numbers` and
`together` are the doors to the compiled decoder: columns of one row group, or numbers of several row groups at once.
"""
