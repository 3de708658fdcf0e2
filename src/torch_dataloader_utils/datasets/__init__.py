"""Data sets of tables. Begin with `build` in `build.py`, which wires the stages in five steps.

    inventory  →  rows  →  planner  →  stream  →  loader

In: paths or a table, and options. Out: `StructuredDataset` (files), `IcebergDataset` and `DeltaDataset` (tables) with
their loaders, and `RowDataset` (rows by number); `open_loader` (`open.py`) chooses by looking. Each has a thin module
with its `Door` (`door.py`), the place of its data (`files.py`, `iceberg_source.py`, `delta_source.py`) and a stub for
type checkers. `options.py` defines the options of all tables; `source.py` finds one inventory for all ranks;
`row_counts.py` counts and measures rows before the plan; `rank_agreement.py` divides work among ranks and compares
their options; `built_dataset.py` adds `refresh` and `pack_tokens` to the data sets of batches.
"""
