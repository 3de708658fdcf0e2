"""Values that stages pass to each other, frozen, and the arithmetic on them that all stages must agree on.

In: numbers, arrays and plain text. Out: inventories, units of rows, worker programs, positions and the states made of
them, permutations, checked arguments, and the protocols of readers, shapers, slab codecs and split strategies.

Promises: values print, compare and pickle as buffers; a permutation is a pure function of (seed, epoch, purpose,
index) and never changes between releases; nothing here reads a file, a clock or the environment. Imports the standard
library, numpy, `errors` and `_runtime` only.

Not for: what one stage alone needs, which stays in its own package.

A new file format begins with `inventory.FileFormat`; what a table format must pass to readers is a value of
`FileTable.extras`, such as `iceberg.py`; an option that changes the order of rows is a field of `options.PlanOptions`.
"""
