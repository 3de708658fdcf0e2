"""Plans as users have them: what is asked of `plan/`, and what is said of its answer.

In: an inventory, options, a position. Out: `EpochPlan`s (`plan_epoch`, `loader.plan`) that one can look at, and the
`Planner` that loaders ask for one pass after the other; split strategies by name; warnings of what a trainer must know.

Promises: nothing is read, and the same question has the same answer in every process.
"""
