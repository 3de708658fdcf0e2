"""Data sets of tables, and the one place that wires the five stages: `build.py`. Begin to read there.

    discover  →  plan  →  read  →  shape  →  stream

In: paths or a table, and options. Out: `StructuredDataset` (files), `IcebergDataset` (tables), `RowDataset` (rows by
number), and loaders of the first two. `options.py` has every option that they share; `files.py` and `iceberg.py` find
the inventory; `rank_agreement.py` is how ranks agree on it.
"""
