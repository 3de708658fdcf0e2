"""Facts about file formats that several stages need: Arrow schemas, batches and messages, filters, Parquet trailers.

In and out: pyarrow objects, and bytes of files that somebody else has read. Promises: correct rows, also where
pyarrow's own functions give wrong ones; nothing is copied without need; no file is opened. Not for reading files
(`discover/` finds their row groups, `read/` decodes them), nor for tensors (`shape/`).
"""
