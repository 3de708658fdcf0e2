"""Build corpora from a column of tables or files: plan parts, build the parts on any executor, join them in order.

In: Parquet and ORC files, or a data set, and one column of token lists or text. Out: one corpus or several in
Megatron's format, and a report of the counts.

Promises: documents keep the order of files and rows; a repeated call after a failure reuses the finished parts; a
corpus appears when it is complete, on a local disk or in a store. Not for: packing documents while training
(`samples`).
"""
