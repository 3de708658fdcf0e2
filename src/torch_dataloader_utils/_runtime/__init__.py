"""Threads, processors, recycled memory, small caches and warnings, for all packages.

In: functions, items, buffers. Out: results in order, and memory that comes back when nothing uses it any more.

Promises: knows nothing of tables, files or plans. Imports the standard library, numpy and `errors` only. Not for code
that only one stage needs.
"""
