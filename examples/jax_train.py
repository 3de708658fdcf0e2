"""JAX and Grain: trains a linear model, stops in the middle of an epoch, and goes on: python -m examples.jax_train

A job of several processes passes `num_ranks=jax.process_count(), rank=jax.process_index()`.
"""

import json
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from examples.trips import FEATURES, NUM_ROWS, find_trips

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.integrations.grain import for_grain

STOP_STEP = 60


def open_batches() -> Any:
    """The batches of one epoch, as dicts of numpy arrays."""
    rows = StructuredDataset(
        find_trips(),
        columns=["row_id", *FEATURES, "fare"],
        dtypes={"*": "float32", "row_id": "int64"},
        batch_size=256,
        shuffle=True,
        output_format="numpy",
    )
    return iter(for_grain(rows, num_epochs=1))


def mean_error(weights: jax.Array, x: jax.Array, fare: jax.Array) -> jax.Array:
    """The mean absolute error of a linear model whose last weight is a constant."""
    return jnp.abs(x @ weights[:-1] + weights[-1] - fare).mean()


@jax.jit
def step(weights: jax.Array, x: jax.Array, fare: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The next weights, and the error before them."""
    error, slope = jax.value_and_grad(mean_error)(weights, x, fare)
    return weights - 0.02 * slope, error


def train(weights: jax.Array, batches: Iterator[Any], row_ids: list[int], most_steps: int) -> jax.Array:
    """Take steps, print some errors, and note the rows."""
    for number, batch in zip(range(most_steps), batches, strict=False):
        x = jnp.stack([batch[name] for name in FEATURES], axis=1)
        weights, error = step(weights, x, batch["fare"])
        row_ids += batch["row_id"].tolist()
        if number % 20 == 0:
            print(f"error {error:.3f}")
    return weights


def main() -> None:
    """Train STOP_STEP steps, save the position, and finish the epoch with new objects."""
    row_ids: list[int] = []
    batches = open_batches()
    weights = train(jnp.zeros(len(FEATURES) + 1), batches, row_ids, STOP_STEP)
    checkpoint = json.dumps(batches.get_state())

    resumed = open_batches()
    resumed.set_state(json.loads(checkpoint))
    train(weights, resumed, row_ids, NUM_ROWS)
    if sorted(row_ids) != list(range(NUM_ROWS)):
        raise RuntimeError(f"{len(row_ids)} rows received, {len(set(row_ids))} different ones of {NUM_ROWS}")
    print(f"{NUM_ROWS:,} rows, each once, in spite of a stop after step {STOP_STEP}")


if __name__ == "__main__":
    main()
