"""Reading: one row group to RecordBatches of its columns, exactly.

In: a `ReadSpec` (what to deliver) and, a call, a `RowGroupTask` (from where). Out: the live rows of that row
group, projected, filtered, deletes applied, in file order, as contiguous pyarrow.RecordBatches: of a few columns each,
as they are decoded, or all of them in one.

Promises: rows are counted against the plan on every call; a file that is not the one planned is an error, never
a mixture; only the bytes of the columns that are delivered or filtered on are read; whatever a decoder raises
leaves as one of our errors with file and row group. Readers are thread-safe and picklable.

Not for: deciding which row groups to read (planning), or making tensors (shaping).
"""
