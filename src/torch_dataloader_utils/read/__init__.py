"""Reads one row group at a time, to RecordBatches of its columns.

In: a `ReadSpec` (which columns and filter) and, for each call, a `RowGroupTask` (from where). Out: the live rows of
that row group in file order, with filter and deletes applied, as contiguous pyarrow.RecordBatches: of a few columns
each, as they are decoded, or of all columns.

Promises: rows are counted against the plan on every call; a file that is not the planned one is an error, never a
mixture; only the bytes of columns that are delivered or filtered on are read; every error of a decoder becomes one of
our errors, with file and row group. Readers are thread-safe and picklable. Not for: deciding which row groups to read
(planning), or making tensors (shaping).

A file format is one module (`parquet`, `orc`, `arrow`, `text`) with a function from a `TaskSource` and the wanted
fields to a RecordBatch; a new one is such a module and a line in `reader._decode`. A table format adds what its files
need beyond that, by the type of `task.extra`: `iceberg` and its `iceberg_fields` and `iceberg_deletes`. A new one is a
module beside them and a branch in `Reader._decoded` and in `deletes.group_deletes`.
"""
