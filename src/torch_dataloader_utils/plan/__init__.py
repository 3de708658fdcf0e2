"""Plans: from an inventory's row groups to the program of every worker.

    chunk  →  order  →  slice  →  balance  →  assign  →  balance  →  windows

In: an inventory, `PlanOptions`, and a `Position` (the topologies that an epoch has seen). Out: an `EpochPlan`, which
gives every rank its `WorkerProgram`s. Begin with `planner.py`; then `epoch_plan.py`, and `assignment.py`, the protocol
whose kinds are all that differs between plans.

Promises: pure functions; every row once, equal steps on all ranks, the same result in every process, also after a
resume. To plan one rank does not cost the work of the others. Imports the standard library, numpy and what
`_core` stands on.

Not for: finding files, counting rows or reading any.

A new option of planning goes into `_core/options.py` (`PlanOptions`, which states are bound to) and the step that obeys
it; a new way to divide an epoch is one more kind of `Assignment`, chosen by `planner.assign_epoch`; a new order of
chunks without either is a `SplitStrategy`.
"""
