"""Plan an epoch: turn an inventory's row groups into a program for every worker.

    chunk  →  order  →  slice  →  balance  →  assign  →  balance  →  windows

In: an inventory, `PlanOptions`, and a `Position` (the topologies that an epoch has seen). Out: an `EpochPlan`, which
gives every rank its `WorkerProgram`s. Begin with `planner.py`, then `epoch_plan.py`, then `assignment.py`: the
`Assignment` protocol. Plans differ only in their kind of assignment.

Promises: pure functions; every row once; equal steps on all ranks; the same result in every process, also after a
resume. Planning one rank does not cost the work of the other ranks. Imports the standard library, numpy, `_core` and
`_runtime`.

Not for: finding files, counting rows or reading rows.

A new option of planning goes into `_core/options.py` (`PlanOptions`; states are bound to these options) and into the
step that obeys the option. A new way to divide an epoch is a new kind of `Assignment`, chosen by
`planner.assign_epoch`. A new order of chunks alone is a `SplitStrategy`.
"""
