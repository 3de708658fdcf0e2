"""JAX and Grain: trains a linear model, stops in the middle of an epoch, and goes on: python -m examples.jax_train

A job of several processes passes `num_ranks=jax.process_count(), rank=jax.process_index()`.
"""

import json
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from examples.trips import FEATURES, NUM_ROWS, find_trips, find_validation

from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.integrations.grain import for_grain

STOP_STEP = 60


def open_batches(path: str, **options: Any) -> Any:
    """The batches of one epoch, as dicts of numpy arrays."""
    rows = StructuredDataset(
        path,
        columns=["row_id", *FEATURES, "fare"],
        dtypes={"*": "float32", "row_id": "int64"},
        batch_size=256,
        output_format="numpy",
        **options,
    )
    return iter(for_grain(rows, num_epochs=1))


def mean_error(weights: jax.Array, x: jax.Array, fare: jax.Array) -> jax.Array:
    """The mean absolute error of a linear model whose last weight is a constant."""
    return jnp.abs(x @ weights[:-1] + weights[-1] - fare).mean()


def features(batch: Any) -> jax.Array:
    """The matrix of a batch's features."""
    return jnp.stack([batch[name] for name in FEATURES], axis=1)


@jax.jit
def step(weights: jax.Array, x: jax.Array, fare: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The next weights, and the error before them."""
    error, slope = jax.value_and_grad(mean_error)(weights, x, fare)
    return weights - 0.02 * slope, error


def train(weights: jax.Array, batches: Iterator[Any], row_ids: list[int], most_steps: int) -> jax.Array:
    """Take steps, print some errors, and note the rows."""
    for number, batch in zip(range(most_steps), batches, strict=False):
        weights, error = step(weights, features(batch), batch["fare"])
        row_ids += batch["row_id"].tolist()
        if number % 20 == 0:
            print(f"error {error:.3f}")
    return weights


def main() -> None:
    """Train STOP_STEP steps, save the position, and finish the epoch with new objects."""
    row_ids: list[int] = []
    batches = open_batches(find_trips(), shuffle=True)
    weights = train(jnp.zeros(len(FEATURES) + 1), batches, row_ids, STOP_STEP)
    checkpoint = json.dumps(batches.get_state())

    resumed = open_batches(find_trips(), shuffle=True)
    resumed.set_state(json.loads(checkpoint))
    weights = train(weights, resumed, row_ids, NUM_ROWS)
    if sorted(row_ids) != list(range(NUM_ROWS)):
        raise RuntimeError(f"{len(row_ids)} rows received, {len(set(row_ids))} different ones of {NUM_ROWS}")
    print(f"{NUM_ROWS:,} rows, each once, in spite of a stop after step {STOP_STEP}")

    error, rows = 0.0, 0  # sums of this process's rows; a job adds the sums of all processes
    for batch in open_batches(find_validation()):
        error += float(mean_error(weights, features(batch), batch["fare"])) * len(batch["fare"])
        rows += len(batch["fare"])
    print(f"validation: mean error {error / rows:.2f} over {rows:,} rows")


if __name__ == "__main__":
    main()
