"""Arrow values that several stages need: schemas, record batches, row filters, lists of documents, reused memory.

In and out: pyarrow objects. Promises: correct rows, also where pyarrow's own functions give wrong rows; nothing is
copied without need; no file is opened. Not for reading files (`formats/`), nor for tensors (`shape/`).
"""
