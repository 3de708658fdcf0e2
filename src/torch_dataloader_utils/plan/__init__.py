"""Who reads what: from an inventory's row groups to the program of every worker.

    chunk  →  order  →  slice  →  level  →  assign  →  level  →  windows

In: plan rows (`RowSpace`), `PlanOptions`, and the topologies that an epoch has seen. Out: a plan of one of the
kinds in `kinds.py`, which gives each rank its `WorkerProgram`s.

Promises: pure functions; every row once, equal steps on all ranks, the same result in every process, also after a
resume. To plan one rank does not cost the work of the others. Imports the standard library, numpy and `_core` only.
Not for: finding files, counting rows or reading any.
"""
