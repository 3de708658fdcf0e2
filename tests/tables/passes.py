"""Passes over one table, with live rows known by their ids, for tables of every kind."""

from collections.abc import Callable
from typing import Any

OPTIONS: dict[str, Any] = {
    "columns": ["id"],
    "batch_size": 7,
    "split_rows": 20,
    "shuffle": True,
    "shuffle_rows": 30,
    "num_workers": 0,
}

Create = Callable[..., tuple[Any, Any]]
"""Function of options that returns a loader and its data set."""


def check_ranks(create: Create, live_ids: list[int]) -> None:
    """Check that three ranks take equal steps, and together every live row once."""
    steps, ids = [], []
    for rank in range(3):
        loader, dataset = create(num_ranks=3, rank=rank, **OPTIONS)
        batches = [batch["id"].tolist() for batch in loader]
        assert len(batches) == len(loader) == dataset.plan.steps
        steps.append(len(batches))
        ids += [value for batch in batches for value in batch]
    assert len(set(steps)) == 1
    assert sorted(ids) == live_ids


def check_resume(create: Create, live_ids: list[int], num_workers: int) -> None:
    """Check that a pass that goes on from a state gives the rest of the batches."""

    def loader() -> tuple[Any, Any]:
        return create(**{**OPTIONS, "num_workers": num_workers})

    first, dataset = loader()
    dataset.set_epoch(2)
    whole = [batch["id"].tolist() for batch in first]
    stopped, dataset = loader()
    dataset.set_epoch(2)
    begun = []
    for batch in stopped:
        begun.append(batch["id"].tolist())
        if len(begun) == 3:
            state = stopped.state_dict()
            break
    resumed, _ = loader()
    resumed.load_state_dict(state)
    assert begun + [batch["id"].tolist() for batch in resumed] == whole
    assert sorted(value for batch in whole for value in batch) == live_ids
