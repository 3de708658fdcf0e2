"""Frozen values that stages pass to each other, and the arithmetic on these values that all stages must agree on.

In: numbers, arrays and plain text. Out: inventories, units of rows, worker programs, positions, states made of
positions, permutations, checked arguments, and the protocols of readers, shapers, slab codecs and split strategies.

Promises: values print, compare and pickle as buffers; a permutation is a pure function of (seed, epoch, purpose,
index) and never changes between releases; nothing here reads a file, a clock or the environment. Imports the standard
library, numpy, `errors` and `_runtime` only.

Not for: values that only one stage needs; these stay in the package of the stage.

A table format passes values to its readers in `FileTable.extras` (see `table_file.py`). An option that changes the
order of rows is a field of `options.PlanOptions`.
"""
