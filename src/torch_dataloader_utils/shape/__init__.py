"""Shape Arrow record batches into batches of the user's format: `TensorBatch`, dicts of arrays or lists, or Arrow.

In: the record batches of one row group, with columns of the data set's schema. Out: a `Block`, converted once; batches
are cut from the block as views. Begin with `prepare.prepared_shaper`. Users get values of `tensor_batch` and `ragged`.

Promises: a null never changes a dtype; row order is kept; numbers without nulls are not copied (except in worker
processes, into memory shared with the trainer); batches are views of their block. Each row is in one batch only, so a
user may write into a batch in place.

Not for: choosing rows (the plan does), moving batches between processes (the stream does).

A new column type goes into `arrow_types.classify`, `convert.convert_column` and, if it holds its rows in another way,
`columns.py` and `column_blocks.py`. A new output format of columns is an `Output` in `column_blocks.py`; any other
output format is a shaper beside `arrow_blocks.py`. `shapers.make_shaper` chooses both.
"""
