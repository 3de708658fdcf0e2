"""Rows to batches of the user's format: Arrow record batches in, `TensorBatch`, dicts of arrays, or Arrow out.

In: one pyarrow.RecordBatch a row group, columns of the data set's schema. Out: a `Block`, converted once, from
which batches are cut as views. `shapers.make_shaper` is the way in; `tensor_batch`, `ragged` and `slab` are what the
stream carries.

It promises: no value changes its dtype because of a null, row order is kept, numbers without nulls are not copied
(but in worker processes, to memory that the trainer's sees), and batches share memory with their block. Each row is
used once: whoever writes into a batch in place writes into the decoded row group, and nobody else looks at it.

It is not for choosing rows (that is the plan) or for moving batches between processes (that is the stream).
"""
