"""Arrow values as all stages handle them: schemas, filters on rows, record batches put together, IPC messages.

In and out: what pyarrow makes of files. Promises: the rows that are asked for, also where pyarrow's own functions give
others; nothing is copied that need not be. pyarrow and the errors only. Not for tensors (`shape/`) or files (`read/`).
"""
