"""A plan as text."""

import numpy as np

from torch_dataloader_utils._core.arguments import format_bytes
from torch_dataloader_utils._core.inventory import Inventory
from torch_dataloader_utils._core.options import PlanOptions
from torch_dataloader_utils._core.program import WorkerProgram, touched_groups
from torch_dataloader_utils._core.rows import RowSpace
from torch_dataloader_utils._core.strings import counted
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.plan.inexact_plan import InexactPlan
from torch_dataloader_utils.plan.kinds import PlanOfEpoch


def explain_plan(plan: PlanOfEpoch, inventory: Inventory, max_ranks: int, *, is_shared: bool = False) -> str:
    """A table of ranks × workers, under a summary of the data, the options and what levelling did.

    is_shared: every rank reads everything.
    """
    topology, options = plan.position.topology, plan.options
    lines = [
        f"{counted(inventory.num_files, 'file')}, {counted(inventory.num_groups, 'row group')}, "
        f"{_rows(inventory.num_rows)}, {format_bytes(int(plan.space.byte_start[-1]))} projected; "
        f"{counted(len(plan.chunks), 'chunk')}",
        *inventory.notes,
        f"epoch {plan.position.epoch}, {_order(options)}",
        f"{counted(topology.num_ranks, 'rank')} × {counted(topology.num_workers, 'worker')}, "
        f'batch {topology.batch_size}, rank_sharding="{options.rank_sharding}"',
        *(f"mixing: {text}" for text in [describe_mixing(plan)] if text),
        _counts(plan) + ("; EVERY rank reads all rows: the strategy takes no ranks" if is_shared else ""),
        "",
        f"{'rank':>6} {'worker':>6} {'rows':>12} {'batches':>8} {'bytes':>10} {'row groups':>10}",
    ]
    shown = min(max_ranks, topology.num_ranks)
    loads: list[int] = []
    for rank in range(shown):
        for worker, program in enumerate(plan.programs(rank)):
            groups = sum(len(touched_groups(lane, plan.space)) for lane in program.lanes)
            load = _bytes_of(program, plan.space)
            loads.append(load)
            lines.append(
                f"{rank:>6} {worker:>6} {program.num_rows:>12,} {_batches(program):>8} {format_bytes(load):>10} "
                f"{groups:>10}"
            )
    if shown < topology.num_ranks:
        lines.append(f"   ... and {counted(topology.num_ranks - shown, 'more rank')}")
    if sum(loads):
        imbalance = max(loads) * len(loads) / sum(loads)
        lines += ["", f"heaviest worker: {imbalance:.2f} × the mean (bytes, ranks shown)"]
    return "\n".join(lines)


FEW_CHUNKS = 8
"""Chunks of a worker below which epochs, and the batches of one epoch, are much alike."""


def describe_mixing(plan: PlanOfEpoch) -> str:
    """How well `shuffle` mixes the rows, in one line; "" where the plan does not shuffle chunks.

    24 chunks, 3.0 a worker, few: 8 or more are needed to mix well; a batch of 100 rows draws from about 2 chunks
    """
    options, topology, num_chunks = plan.options, plan.position.topology, len(plan.chunks)
    if not options.shuffle or options.strategy or num_chunks == 0:
        return ""
    of_worker = num_chunks / (topology.num_ranks * topology.num_workers)
    batch_rows, chunk_rows = topology.batch_size, plan.chunks.num_rows / num_chunks
    drawn = batch_rows / chunk_rows
    if options.shuffle_rows:
        # A row of the batch comes from each of the chunks in its window with the same probability.
        held = max(1, options.interleave, options.shuffle_rows / chunk_rows)
        drawn = max(drawn, held * (1 - (1 - 1 / held) ** batch_rows))
    if options.lane_rows:
        drawn = max(drawn, batch_rows / options.lane_rows)
    drawn = max(1, min(drawn, of_worker))
    few = f", few: {FEW_CHUNKS} or more are needed to mix well" if of_worker < FEW_CHUNKS else ""
    each = f"{of_worker:,.1f}" if of_worker < 10 else f"{of_worker:,.0f}"
    return (
        f"{counted(num_chunks, 'chunk')}, {each} a worker{few}; a batch of {counted(batch_rows, 'row')} draws from "
        f"about {counted(round(drawn), 'chunk')}"
    )


def _order(options: PlanOptions) -> str:
    """What decides the order of rows."""
    text = f"seed {options.seed}, "
    text += f"strategy {options.strategy}" if options.strategy else f"shuffle {'on' if options.shuffle else 'off'}"
    if options.shuffle_rows:
        text += f", windows of {counted(options.shuffle_rows, 'row')}"
    if options.bucket_by:
        text += f", buckets by {options.bucket_by}"
    if options.max_tokens_per_batch:
        text += f" of at most {options.max_tokens_per_batch:,} tokens" + (
            ", padding_free" if options.padding_free else ""
        )
    if options.stop_row is not None:
        text += f", rows [{options.first_row}, {options.stop_row}) only"
    if options.num_lanes:
        text += f", {counted(options.num_lanes, 'lane')}"
    return text


def _counts(plan: PlanOfEpoch) -> str:
    if isinstance(plan, InexactPlan):
        return "inexact: row counts are not known, so ranks may differ in steps and rows below are at most"
    steps = sorted(set(plan.rank_steps.tolist()))
    text = f"{steps[0]} to {steps[-1]} steps, UNEQUAL ranks"
    if len(steps) == 1:
        text = f"{counted(steps[0], 'step')} on every rank"
    done, earlier = plan.position.done, len(plan.position.history)
    if done or earlier:
        text += f", {done} of them done" + (f" after {earlier} other topologies" if earlier else "")
    if plan.cuts:
        text += f"; levelling moved {counted(plan.moved_rows, 'row')} in {counted(plan.cuts, 'range')}"
    if plan.dropped_rows:
        text += f"; drop_last leaves out {counted(plan.dropped_rows, 'row')}"
    if plan.repeated_rows:
        text += f"; {counted(plan.repeated_rows, 'repeated row')}, so that every rank takes the last step"
    return text


def _rows(count: int) -> str:
    return counted(count, "row") if count >= 0 else "an unknown number of rows"


def _batches(program: WorkerProgram) -> str:
    count = program.schedule.num_batches
    return "?" if count is None else str(count)


def _bytes_of(program: WorkerProgram, space: RowSpace) -> int:
    total = 0.0
    for lane in program.lanes:
        plain = lane.is_plain
        total += int(space.bytes_between(lane.start[plain], lane.stop[plain]).sum())
        total += _window_bytes(lane.take(np.flatnonzero(~plain)), space)
    return round(total)


def _window_bytes(units: Units, space: RowSpace) -> float:
    """Projected bytes of window units: of each as large a part as it has of the rows of its window."""
    if len(units) == 0:
        return 0.0
    windows = units.windows.take(units.window)
    first_piece = windows.offsets[:-1]
    held_rows = np.add.reduceat(windows.piece_stop - windows.piece_start, first_piece)
    held_bytes = np.add.reduceat(space.bytes_between(windows.piece_start, windows.piece_stop), first_piece)
    return float((held_bytes * units.rows / np.maximum(held_rows, 1)).sum())
