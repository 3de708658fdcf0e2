"""Explain a plan in text: rows and bytes of ranks x workers, how well the order mixes, what a host's cache gives."""

from typing import TYPE_CHECKING

import numpy as np

from torch_dataloader_utils._core.arguments import check_integer, format_bytes, parse_bytes
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.options import PlanOptions
from torch_dataloader_utils._core.program import WorkerProgram, touched_groups
from torch_dataloader_utils._core.units import RowSpace, Units
from torch_dataloader_utils.errors import ConfigError, LoaderError, plural
from torch_dataloader_utils.plan.upcoming import EPOCHS_AHEAD, CacheForecast, GroupReads

if TYPE_CHECKING:
    from torch_dataloader_utils.plan.epoch_plan import EpochPlan


def explain_plan(plan: "EpochPlan", max_ranks: int, cache: str) -> str:
    """Return a summary of the data, the options and the balancing, and a table of ranks × workers."""
    inventory, topology, options, space = plan.inventory, plan.topology, plan.inputs.options, plan.inputs.space
    lines = [
        f"{plural(inventory.num_files, 'file')}, {plural(inventory.num_groups, 'row group')}, "
        f"{_rows(inventory.num_rows)}, {format_bytes(int(space.byte_start[-1]))} projected; "
        f"{plural(len(plan.inputs.chunks), 'chunk')}",
        *inventory.notes,
        f"epoch {plan.epoch}, {_order(options)}",
        f"{plural(topology.num_ranks, 'rank')} × {plural(topology.num_workers, 'worker')}, "
        f'batch {topology.batch_size}, rank_sharding="{options.rank_sharding}"',
        *(f"{name}: {text}" for name, text in [("mixing", describe_mixing(plan)), ("cache", cache)] if text),
        _counts(plan) + ("; EVERY rank reads all rows: the strategy takes no ranks" if plan.is_shared else ""),
        "",
        f"{'rank':>6} {'worker':>6} {'rows':>12} {'batches':>8} {'bytes':>10} {'row groups':>10}",
    ]
    shown = min(max_ranks, topology.num_ranks)
    loads: list[int] = []
    for rank in range(shown):
        for worker, program in enumerate(plan.programs(rank)):
            groups = sum(len(inventory.with_members(touched_groups(lane, space))) for lane in program.lanes)
            load = _bytes_of(program, space)
            loads.append(load)
            lines.append(
                f"{rank:>6} {worker:>6} {program.num_rows:>12,} {_batches(program):>8} {format_bytes(load):>10} "
                f"{groups:>10}"
            )
    if shown < topology.num_ranks:
        lines.append(f"   ... and {plural(topology.num_ranks - shown, 'more rank')}")
    if sum(loads):
        imbalance = max(loads) * len(loads) / sum(loads)
        lines += ["", f"heaviest worker: {imbalance:.2f} × the mean (bytes, ranks shown)"]
    return "\n".join(lines)


FEW_CHUNKS = 8
"""Chunks a worker; with fewer chunks, epochs and the batches of one epoch are much alike."""


def describe_mixing(plan: "EpochPlan") -> str:
    """Return one line that says how well `shuffle` mixes the rows; "" if the plan does not shuffle chunks.

    24 chunks, 3.0 per worker (few: 8 or more mix well); a batch of 100 rows draws from about 2 chunks
    """
    options, topology, chunks = plan.inputs.options, plan.topology, plan.inputs.chunks
    num_chunks = len(chunks)
    if not options.shuffle or options.strategy or num_chunks == 0:
        return ""
    of_worker = num_chunks / (topology.num_ranks * topology.num_workers)
    batch_rows, chunk_rows = topology.batch_size, chunks.num_rows / num_chunks
    mixed = batch_rows / chunk_rows
    if options.shuffle_rows:
        # A row of the batch comes from each chunk of its window with the same probability.
        held = max(1, options.interleave, options.shuffle_rows / chunk_rows)
        mixed = max(mixed, held * (1 - (1 - 1 / held) ** batch_rows))
    if options.lane_rows:
        mixed = max(mixed, batch_rows / options.lane_rows)
    mixed = max(1, min(mixed, of_worker))
    own = ""
    if (groups := options.rank_groups(topology.num_ranks)) > 1:
        ranks = plural(topology.num_ranks // groups, "rank")
        own = f"; every {ranks} draw from the same {plural(num_chunks // groups, 'chunk')} in all epochs"
    few = f" (few: {FEW_CHUNKS} or more mix well)" if of_worker < FEW_CHUNKS else ""
    each = f"{of_worker:,.1f}" if of_worker < 10 else f"{of_worker:,.0f}"
    return (
        f"{plural(num_chunks, 'chunk')}, {each} per worker{few}; a batch of {plural(batch_rows, 'row')} draws from "
        f"about {plural(round(mixed), 'chunk')}{own}"
    )


_FORECAST_EPOCHS = 5


def describe_cache(plan: "EpochPlan", cache_bytes: int | str | None, host_ranks: int | None) -> str:
    """Return one line that says what a cache of this size on the first host would give; "" without a size.

    16.6 GiB for 8 ranks, which read 50 GiB an epoch: 2 % of it from the cache in epoch 0, then 7 %, 13 %, 17 %, 23 %
    """
    if cache_bytes is None:
        return ""
    most_bytes, num_ranks = parse_bytes("cache_bytes", cache_bytes), plan.topology.num_ranks
    keeping_a_share = num_ranks // plan.inputs.options.rank_groups(num_ranks)  # without shares: all ranks
    ranks = keeping_a_share if host_ranks is None else check_integer("host_ranks", host_ranks, least=1)
    if ranks > num_ranks:
        raise ConfigError(f"host_ranks={ranks}: the plan has {plural(num_ranks, 'rank')}. Pass the ranks of one host.")
    groups, epochs = plan.inventory.groups, host_reads(plan, ranks, _FORECAST_EPOCHS + EPOCHS_AHEAD)
    # An inventory has the stored bytes of all columns, and the decoded bytes of the projected columns.
    stored = np.where(groups.byte_length > 0, groups.byte_length, groups.projected_bytes)
    # The first row group of a packing window has the projected bytes of all.
    sizes = np.where(groups.projected_bytes > 0, np.minimum(groups.projected_bytes, stored), stored)
    parts = CacheForecast(epochs, sizes, most_bytes).parts()
    first, *later = [f"{100 * part.cached_bytes / max(1, part.read_bytes):.0f} %" for part in parts] or ["0 %"]
    read_bytes = sum(part.read_bytes for part in parts) / max(1, len(parts))
    return (
        f"{format_bytes(most_bytes)} for {plural(ranks, 'rank')}, which read {format_bytes(read_bytes)} an epoch: "
        f"{first} of it from the cache in epoch {plan.epoch}{', then ' if later else ''}{', '.join(later)}"
    )


def host_reads(plan: "EpochPlan", ranks: int, most_epochs: int) -> list[Int64s]:
    """Return the row groups that the first `ranks` ranks read, in order, one array an epoch: this and the next ones.

    Returns at most `most_epochs` epochs; fewer if a later epoch cannot be planned.
    """
    epochs = []
    while True:
        reads = [GroupReads.of(plan.programs(rank), plan.inputs.space) for rank in range(ranks)]
        epochs.append(GroupReads.side_by_side(reads).with_members(plan.inventory).group)
        if len(epochs) == most_epochs:
            return epochs
        try:
            plan = plan.following()
        except LoaderError:  # a strategy failed, or the epoch is too high: its reads are not known
            return epochs


def _order(options: PlanOptions) -> str:
    """Describe the options that decide the order of rows."""
    text = f"seed {options.seed}, "
    chunks = "chunks permuted" if options.shuffle else "stored order"
    text += f"strategy {options.strategy}" if options.strategy else chunks
    if options.shuffle_rows:
        text += f", windows of {plural(options.shuffle_rows, 'row')} of {plural(options.interleave, 'chunk')}"
    if options.bucket_by:
        text += f", buckets by {options.bucket_by}"
    if options.max_tokens_per_batch:
        text += f" of at most {options.max_tokens_per_batch:,} tokens" + (
            ", padding_free" if options.padding_free else ""
        )
    if options.stop_row is not None:
        text += f", rows [{options.first_row}, {options.stop_row}) only"
    if options.num_lanes:
        text += f", {plural(options.num_lanes, 'lane')}"
    if options.host_shares:
        text += f", {plural(options.host_shares, 'host share')}"
    return text


def _counts(plan: "EpochPlan") -> str:
    counts, position = plan.assignment.counts, plan.inputs.position
    if counts is None:
        return "inexact: row counts are not known, so ranks may differ in steps and rows below are at most"
    steps = sorted(set(counts.steps.tolist()))
    text = f"{steps[0]} to {steps[-1]} steps, UNEQUAL ranks"
    if len(steps) == 1:
        text = f"{plural(steps[0], 'step')} on every rank"
    if position.done or position.history:
        text += f", {position.done} of them done"
        text += f" after {len(position.history)} other topologies" if position.history else ""
    if counts.cuts:
        text += f"; balancing moved {plural(counts.moved_rows, 'row')} in {plural(counts.cuts, 'range')}"
    if plan.dropped_rows:
        text += f"; drop_last leaves out {plural(plan.dropped_rows, 'row')}"
    if plan.repeated_rows:
        text += f"; {plural(plan.repeated_rows, 'repeated row')}, so that every rank takes the last step"
    return text


def _rows(count: int) -> str:
    return plural(count, "row") if count >= 0 else "an unknown number of rows"


def _batches(program: WorkerProgram) -> str:
    count = program.batching.num_batches
    return "?" if count is None else str(count)


def _bytes_of(program: WorkerProgram, space: RowSpace) -> int:
    total = 0.0
    for lane in program.lanes:
        plain = lane.is_plain
        total += int(space.bytes_between(lane.start[plain], lane.stop[plain]).sum())
        total += _window_bytes(lane.take(np.flatnonzero(~plain)), space)
    return round(total)


def _window_bytes(units: Units, space: RowSpace) -> float:
    """Return the projected bytes of window units: of each window the part that the unit has of its rows."""
    if len(units) == 0:
        return 0.0
    windows = units.windows.take(units.window)
    first_piece = windows.offsets[:-1]
    held_rows = np.add.reduceat(windows.piece_stop - windows.piece_start, first_piece)
    held_bytes = np.add.reduceat(space.bytes_between(windows.piece_start, windows.piece_stop), first_piece)
    return float((held_bytes * units.rows / np.maximum(held_rows, 1)).sum())
