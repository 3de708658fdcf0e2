"""Delta Lake tables: from the log of a table to an inventory.

    _delta_log/ → the files of one version → actions → data files and their deletion vectors → row groups

In: the place of a table. Out: an `Inventory` of the files of one version, sorted by path. A file that stores the
table's columns as they are is a plain file; other files have `extras` (`TableFile`) that tell how to find columns and
which rows are deleted. Values of partition columns come from the log.

The log is read here, through `_store`, and by no other library: see docs/design/0018-delta.md. Source: the Delta
transaction log protocol (PROTOCOL.md of delta-io/delta).
"""
