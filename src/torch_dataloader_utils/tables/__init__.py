"""The composition root: puts data sets of tables together from stages that do not know each other.

In: the options of `StructuredDataset`, `IcebergDataset` and `RowDataset` (the modules `datasets`, `iceberg` and
`row_dataset` beside this package). Out: what these run: an inventory, a planner, a reader and a shaper, wired up.

Promises: every option is checked once, before anything is opened.
"""
