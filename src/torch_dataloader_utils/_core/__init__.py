"""What stages pass to each other: frozen values, and the arithmetic on them that all stages must agree on.

In: numbers, arrays and plain text. Out: inventories, units of rows, worker programs, positions and the states made of
them, permutations, the protocols of readers, shapers, slab codecs and split strategies.

Promises: values print, compare and pickle as buffers; a permutation is a pure function of (seed, epoch, purpose,
index) and never changes between releases; nothing here reads a file, a clock or the environment. The standard library
and numpy only. Not for what one stage alone needs: that stays in its own package.
"""
