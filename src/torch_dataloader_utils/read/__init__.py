"""Reads one row group at a time, to RecordBatches of its columns.

In: a `ReadSpec` (what to deliver) and, for each call, a `RowGroupTask` (from where). Out: the live rows of that row
group in file order, with filter and deletes applied, as contiguous pyarrow.RecordBatches: of a few columns each, as
they are decoded, or of all columns.

Promises: rows are counted against the plan on every call; a file that is not the planned one is an error, never a
mixture; only the bytes of columns that are delivered or filtered on are read; every error of a decoder becomes one of
our errors, with file and row group. Readers are thread-safe and picklable.

Not for: deciding which row groups to read (planning), or making tensors (shaping).
"""
