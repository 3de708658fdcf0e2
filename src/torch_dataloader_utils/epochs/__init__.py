"""Plans as users see them: asks `plan/` for plans, and explains, tabulates and warns about them.

In: an inventory, options, a position. Out: `EpochPlan`s (`plan_epoch`, `loader.plan`) that one can look at, and the
`Planner` that a loader asks at each pass; split strategies by name; warnings that a trainer must see.

Promises: nothing is read, and the same arguments give the same plan in every process.
"""
