"""How good is a shuffle of chunks and windows, held against a full permutation, and what memory does it cost?

The plan alone is asked, nothing is read: 64 files of 4 row groups of 4,096 rows, chunks of one row group.

    rank correlation   |Spearman's rho| between stored and delivered position; a full permutation gives about 0
    chunk distance     mean distance in the output between neighbours of one chunk, in rows; a full permutation of N
                       rows with C chunks gives about C (each chunk is spread evenly over everything)
    distinct chunks    chunks that contribute to a batch of 256 rows, on average; a full permutation: nearly 160 of 256

The second table is about the noise of batches, for files as they are and after `shuffle_table` has written them once:

    sorted, clustered  standard deviation of the mean of a batch, as a multiple of that of independent rows; of a column
                       by which the rows are sorted, and of a column that is the same in a row group
    meet again         of two rows of one batch, how often they are in one batch in the next epoch as well
"""

import numpy as np
from measure import print_machine, save
from planning import make_inventory

from torch_dataloader_utils import Inventory, plan_epoch
from torch_dataloader_utils._core.permute import Purpose, permutation

FILES, GROUPS, ROWS, BATCH = 64, 4, 4096, 256
TOTAL = FILES * GROUPS * ROWS


def delivered(inventory: Inventory, epoch: int = 1, **options) -> np.ndarray:
    """Stored row numbers in the order in which one rank with one worker receives them."""
    plan = plan_epoch(inventory, batch_size=BATCH, split_rows=ROWS, epoch=epoch, **options)
    (lane,) = plan.programs(0)[0].lanes
    parts = []
    for start, stop, window in zip(lane.start, lane.stop, lane.window, strict=True):
        if window < 0:
            parts.append(np.arange(start, stop))
            continue
        stored = np.concatenate([np.arange(a, b) for a, b in zip(*lane.windows.pieces(window), strict=True)])
        key = int(lane.windows.keys[window])
        parts.append(
            stored[permutation(len(stored), seed=42, epoch=epoch, purpose=Purpose.WINDOW, index=key)][start:stop]
        )
    return np.concatenate(parts)


def quality(order: np.ndarray) -> dict[str, float]:
    position = np.empty(TOTAL, dtype=np.int64)
    position[order] = np.arange(TOTAL)
    correlation = abs(float(np.corrcoef(np.arange(TOTAL), position)[0, 1]))
    by_chunk = np.sort(position.reshape(-1, ROWS), axis=1)
    chunks = (order // ROWS).reshape(-1, BATCH)
    distinct = np.mean([len(np.unique(batch)) for batch in chunks])
    return {
        "rank_correlation": correlation,
        "chunk_distance": float(np.diff(by_chunk, axis=1).mean()),
        "distinct_chunks_per_batch": float(distinct),
    }


def noise(order: np.ndarray, column: np.ndarray) -> float:
    means = column[order].reshape(-1, BATCH).mean(axis=1)
    return float(means.std() / (column.std() / np.sqrt(BATCH)))


def meets_again(order: np.ndarray, following: np.ndarray) -> float:
    batch_of = np.empty(TOTAL, dtype=np.int64)
    batch_of[following] = np.arange(TOTAL) // BATCH
    batches = np.sort(batch_of[order].reshape(-1, BATCH), axis=1)
    # Runs of one number are the rows that stay together.
    edges = np.flatnonzero(np.diff(batches, axis=1, prepend=-1).ravel())
    sizes = np.diff(edges, append=TOTAL)
    return float((sizes * (sizes - 1)).sum() / (TOTAL * (BATCH - 1)))


def batches_of_shuffled_files(inventory: Inventory) -> list[dict[str, object]]:
    """The second table."""
    stored = np.arange(TOTAL)
    once = permutation(TOTAL, seed=42, epoch=0, purpose=Purpose.ROWS)
    by_group = np.repeat(np.random.default_rng(1).random(FILES * GROUPS), ROWS)
    rows: list[dict[str, object]] = []
    for files, written in (("as they are", stored), ("shuffled once", once)):
        for name, options in (("none", {}), ("chunks", {"shuffle": "chunks"}), ("True", {"shuffle": True})):
            orders = [written[delivered(inventory, epoch, **options)] for epoch in (1, 2)]
            rows.append({"files": files, "shuffle": name, **_facts(orders, by_group)})
    orders = [np.random.default_rng(epoch).permutation(TOTAL) for epoch in (1, 2)]
    return [*rows, {"files": "any", "shuffle": "full permutation", **_facts(orders, by_group)}]


def _facts(orders: list[np.ndarray], by_group: np.ndarray) -> dict[str, float]:
    return {
        "sorted": noise(orders[0], np.arange(TOTAL)),
        "clustered": noise(orders[0], by_group),
        "distinct_chunks_per_batch": quality(orders[0])["distinct_chunks_per_batch"],
        "meet_again": meets_again(*orders),
    }


def main() -> None:
    inventory = make_inventory(np.full(FILES * GROUPS, ROWS, dtype=np.int64), GROUPS)
    rows = [{"shuffle": "none", **quality(delivered(inventory))}]
    rows.append({"shuffle": "chunks", **quality(delivered(inventory, shuffle="chunks"))})
    default = plan_epoch(inventory, shuffle=True, split_rows=ROWS).inputs.options.shuffle_rows or 0
    held_mb = (default + 16 * ROWS) * 241 / 1e6
    name = f"True: {default:,} rows of 16 chunks"
    rows.append({"shuffle": name, **quality(delivered(inventory, shuffle=True)), "held_mb": held_mb})
    for window in (4096, 16_384, 65_536, 262_144):
        for interleave in (1, 4, 16, 64):
            order = delivered(inventory, shuffle=True, shuffle_rows=window, interleave=interleave)
            held_mb = (window + interleave * ROWS) * 241 / 1e6
            rows.append({"shuffle": f"{window:,} rows of {interleave} chunks", **quality(order), "held_mb": held_mb})
    full = np.random.default_rng(0).permutation(TOTAL)
    rows.append({"shuffle": "full permutation", **quality(full), "held_mb": TOTAL * 241 / 1e6})
    print_machine()
    print("| shuffle | rank correlation | distance within a chunk | chunks in a batch of 256 | MB held |")
    print("|---|---:|---:|---:|---:|")
    for row in rows:
        print(
            f"| {row['shuffle']} | {row['rank_correlation']:.3f} | {row['chunk_distance']:.1f} "
            f"| {row['distinct_chunks_per_batch']:.1f} | {row.get('held_mb', ROWS * 241 / 1e6):.0f} |"
        )
    batches = batches_of_shuffled_files(inventory)
    print("\n| files | shuffle | sorted | clustered | row groups in a batch of 256 | meet again |")
    print("|---|---|---:|---:|---:|---:|")
    for row in batches:
        print(
            f"| {row['files']} | {row['shuffle']} | {row['sorted']:.2f} | {row['clustered']:.2f} "
            f"| {row['distinct_chunks_per_batch']:.1f} | {row['meet_again']:.2%} |"
        )
    save("shuffle_quality", rows=rows, batches=batches)


if __name__ == "__main__":
    main()
