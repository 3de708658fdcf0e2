"""Data sets of tables, and the one place that wires the stages: `build` in `build.py`, in five steps. Begin there.

    inventory  →  rows  →  planner  →  stream  →  loader

In: paths or a table, and options. Out: `StructuredDataset` (files), `IcebergDataset` and `DeltaDataset` (tables),
`RowDataset` (rows by number), and loaders of all but the last. `options.py` defines the options that they share,
`files.py`, `iceberg.py` and `delta.py` those of where data is, and find the inventory; `row_counts.py` counts and
measures rows before the plan; `rank_agreement.py` is how ranks agree on all of it; `built_dataset.py` has what the
three data sets of batches share: the loader around one, `refresh` and `pack_tokens`.
"""
