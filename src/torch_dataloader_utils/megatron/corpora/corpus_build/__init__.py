"""Corpora from columns of tables or files: a plan of parts, parts built by any executor, parts joined in order.

In: Parquet and ORC files, or a data set, and one column of token lists or text. Out: one corpus or several in
Megatron's format, and a report of what they hold.

Promises: documents keep the order of files and rows; a build that failed goes on with the parts that are done; a corpus
appears when it is complete, on a local disk or in a store. Not for: packing documents while training (`samples`).
"""
