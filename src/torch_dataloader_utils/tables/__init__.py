"""Tables: many files together, and the rows of each file that the table has.

    iceberg/, delta/    a table                 →  an `Inventory` of one snapshot
    reader              one `RowGroupTask`      →  the live rows of a row group of any format

In: the place of a table, or a `ReadSpec` (columns and filter) and one task a call. Out: an inventory whose files carry
`extras` for the reader (`_core/table_file`), or the rows of a row group in file order, with filter and deletes applied.

Promises: rows are counted against the plan on every call; a file that is not the planned file is an error, never a
mixture; only the bytes of delivered and filtered columns are read. Readers are thread-safe and picklable. `live_rows`
and `deleted_rows` know deletes by position, `metadata_columns` the columns that no file has.

Not for: deciding which row groups are read (`plan`), or making tensors (`shape`).
"""
