"""Delta Lake tables: from the log of a table to an inventory.

    _delta_log/ → the files of one version → actions → data files and their deletion vectors → row groups

In: the place of a table. Out: an `Inventory` of the files of one version, sorted by path. Files that store what the
table says, column by column, are plain files; the others have `extras` (`IcebergFile`) that say how columns are found
and which rows are deleted. Values of partition columns come from the log.

The log is read here, through `_store`, and by no other library: see docs/design/0018-delta.md. Source: the Delta
transaction log protocol (PROTOCOL.md of delta-io/delta).
"""
