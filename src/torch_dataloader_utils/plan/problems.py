"""Warn about problems of a plan before training begins, once, when a loader is made."""

import re
from collections.abc import Iterator
from itertools import chain

from torch_dataloader_utils._core.inventory import UNKNOWN
from torch_dataloader_utils._runtime.user_warning import warn_user
from torch_dataloader_utils.errors import plural
from torch_dataloader_utils.plan.epoch_plan import EpochPlan
from torch_dataloader_utils.plan.explain import FEW_CHUNKS


def warn_about(plan: EpochPlan) -> None:
    """Warn of all `plan_problems`, and of shuffle=True and host_shares if they have little or no effect."""
    for problem in chain(_unused_shuffle(plan), _weak_shuffle(plan), _unused_shares(plan), plan_problems(plan)):
        warn_user(problem)


def plan_problems(plan: EpochPlan) -> Iterator[str]:
    """Yield the problems of a plan (shared rows, unequal steps, repeated rows, no steps), each with its remedy."""
    steps, num_ranks = plan.rank_steps, plan.topology.num_ranks
    if plan.is_shared:
        yield (
            f"Split strategy {plan.inputs.options.strategy} has no rank arguments: each of the {num_ranks} ranks "
            "reads every row. Give its generate() num_ranks and rank."
        )
    if steps is not None and len(set(steps)) > 1:
        yield (
            f'Ranks take different numbers of steps: {min(steps)} to {max(steps)} (rank_sharding="chunks"). A '
            'collective would wait for ever; use rank_sharding="rows", or join the ranks yourself.'
        )
    if plan.repeated_rows:
        why, instead = _why_rows_repeat(plan)
        yield (
            f"{plural(plan.repeated_rows, 'row')} will come a second time so that every rank takes its last step: "
            f"{why}. Use drop_last=True, or {instead}."
        )
    # No files at all means that the user passed allow_empty=True.
    if plan.inventory.num_files and steps is not None and not any(steps):
        yield _why_nothing_comes(plan)


def _why_rows_repeat(plan: EpochPlan) -> tuple[str, str]:
    """Return the reason, and a remedy other than drop_last."""
    options = plan.inputs.options
    if sum(plan.rank_rows or ()) < plan.topology.num_ranks:
        return "fewer rows are left than ranks", "fewer ranks"
    if options.num_lanes is not None or options.max_tokens_per_batch is not None:
        return "fewer rows are left for it than ranks", "batches of another size"
    return "batches of one row do not divide by the ranks", "larger batches"


def _unused_shuffle(plan: EpochPlan) -> Iterator[str]:
    options = plan.inputs.options
    if options.shuffle and options.strategy and "shuffle=True" not in options.strategy:
        name = options.strategy.partition("(")[0]
        does = 'shuffle="chunks" does nothing'
        if options.shuffle_rows:
            does = "shuffle=True only permutes rows inside windows"
        yield (
            f"{does} with a split_strategy: {name} orders files and chunks itself. Have it shuffle (the built-in ones "
            "take shuffle=True, seed=...). If it does, leave shuffle out here, and pass shuffle_rows= for windows."
        )


def _weak_shuffle(plan: EpochPlan) -> Iterator[str]:
    """Yield a warning if workers have few chunks, and windows do not shuffle rows either."""
    options, topology, num_chunks = plan.inputs.options, plan.topology, len(plan.inputs.chunks)
    workers = topology.num_ranks * topology.num_workers
    if not options.shuffle or options.strategy or options.shuffle_rows or not 0 < num_chunks < FEW_CHUNKS * workers:
        return
    smaller, sizes = "", {"split_rows": options.split_rows, "split_bytes": options.split_bytes}
    if num_chunks < plan.inventory.num_groups:
        chosen = next((f"leave out {name}=" for name, size in sizes.items() if size), "pass a smaller split_bytes=")
        smaller = f"smaller chunks ({plural(plan.inventory.num_groups, 'row group')}: {chosen}), "
    of_all = " (of all ranks)" if topology.num_ranks > 1 else ""
    yield (
        f'shuffle="chunks" mixes little: {plural(num_chunks, "chunk")}, whose rows stay in stored order, for '
        f"{plural(workers, 'worker')}{of_all}. With fewer than {FEW_CHUNKS} each, epochs and batches are much alike. "
        f"Pass shuffle=True, which permutes rows too, {smaller}or write smaller row groups."
    )


def _unused_shares(plan: EpochPlan) -> Iterator[str]:
    """Yield a warning if no group of ranks keeps a share. No warning for a single rank: it reads everything anyway."""
    shares, num_ranks = plan.inputs.options.host_shares or 1, plan.topology.num_ranks
    if shares > 1 and num_ranks > 1 and plan.inputs.options.rank_groups(num_ranks) == 1:
        yield (
            f"host_shares={shares} keeps no chunks on their hosts: {shares} shares and {num_ranks} ranks have no "
            "common divisor. Pass the number of hosts, or a multiple of it."
        )


def _why_nothing_comes(plan: EpochPlan) -> str:
    inventory, topology = plan.inventory, plan.topology
    if inventory.num_rows not in (0, UNKNOWN):
        return (
            f"The epoch has no steps: drop_last=True leaves out all {inventory.num_rows:,} rows, because "
            f"{topology.num_ranks} ranks times batch_size={topology.batch_size} need "
            f"{topology.num_ranks * topology.batch_size:,}. Take smaller batches, fewer ranks, or drop_last=False."
        )
    if inventory.holdout:
        passing = " that passes the filter" if inventory.row_filter else ""
        return (
            f"The epoch has no steps: no row of {inventory.source}{passing} is in the part {inventory.holdout}. Hold "
            "out a larger fraction, or with by= choose another seed."
        )
    if inventory.row_filter:
        # pyarrow writes `pc.field("a") == None` so.
        compares_null = re.search(r"[=!<>]=? null\[", inventory.row_filter)
        advice = (
            "A comparison with None is never true: write pc.field(name).is_null() or .is_valid()."
            if compares_null
            else "Look at the values of the columns (tdu head) and correct the filter."
        )
        return (
            f"The epoch has no steps: no row of {inventory.source} is left by filters={inventory.row_filter}. {advice}"
        )
    return f"The epoch has no steps: {inventory.source} has no rows. List its files: tdu scan."
