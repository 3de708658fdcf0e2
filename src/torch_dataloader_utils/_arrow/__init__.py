"""Functions on Arrow values that several stages use: schemas, row filters, joining record batches, IPC messages.

In and out: pyarrow objects. Promises: correct rows, also where pyarrow's own functions give wrong ones; nothing is
copied without need. Imports pyarrow and the errors only. Not for tensors (`shape/`) or files (`read/`).
"""
