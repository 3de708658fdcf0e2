"""Accelerate: `prepare` a loader, and gather from ranks whose batches differ in size.

accelerator.prepare(loader) alone is enough for training: batches arrive on the device, `accelerate` steps and saves
with the loader. Its `gather` wants tensors of one shape on all ranks, though, and ends the process where they differ.
With every row once and equal steps the last two batches of ranks do differ, unless the rows divide evenly.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.utils import recursively_apply  # type: ignore[import-untyped]
from torch import Tensor

from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.stream.trainer_hooks import LoaderRecord


def prepare(accelerator: Accelerator, *objects: Any, device_placement: Sequence[bool] | None = None) -> Any:
    """As `accelerator.prepare`; from then on its `gather` and `gather_for_metrics` take batches of different sizes.

        model, optimizer, loader = prepare(accelerator, model, optimizer, loader)
        for batch in loader:
            predictions, labels = accelerator.gather_for_metrics((model(batch["x"]), batch["label"]))

    Over an epoch the gathered rows are exactly the rows of the data set. Nothing is sharded or dispatched again.

    Args:
        accelerator: its `gather` and `gather_for_metrics` are replaced on this one object by those of this module.
        objects: models, optimizers, schedulers and loaders, in any order.
        device_placement: as in `accelerator.prepare`, one for each object. Loaders of this library whose entry is False
            (or all of them, if the accelerator says so) leave their batches where they are.
    """
    prepared = accelerator.prepare(*objects, device_placement=device_placement)
    for index, item in enumerate(objects):
        if isinstance(item, TableDataLoader):
            is_placed = accelerator.device_placement if device_placement is None else device_placement[index]
            item.place(accelerator.device if is_placed else None, accelerator.non_blocking or item.pin_memory)
    accelerator.gather = partial(gather, accelerator)
    accelerator.gather_for_metrics = partial(gather_for_metrics, accelerator)
    return prepared


def gather(accelerator: Accelerator, tensor: Any) -> Any:
    """The rows of all ranks in rank order, on every rank; ranks may differ in their number of rows.

        rank 0: shape [3, 7], rank 1: shape [2, 7]      gives shape [5, 7]

    Args:
        accelerator: one process of the job.
        tensor: a tensor, or tuples, lists and dicts of them; the same structure on every rank, all but the first
            dimension equal. Scalars count as one row.
    """
    if accelerator.num_processes == 1:
        return tensor

    def gather_one(leaf: Tensor) -> Tensor:
        return _gather_rows(partial(Accelerator.gather, accelerator), leaf)

    return recursively_apply(gather_one, tensor, error_on_other_type=True)


def gather_for_metrics(accelerator: Accelerator, input_data: Any, use_gather_object: bool = False) -> Any:
    """`accelerator.gather_for_metrics` for batches of different sizes, without the rows that ranks repeat.

    A rank repeats a row where it has none left for the last step of the others: with batch size 1, or fewer rows than
    ranks. In that step it gives nothing.

    Args:
        accelerator: one process of the job; `prepare` has replaced its `gather`.
        input_data: tensors as in `gather`, or a list of other objects, one for each row.
        use_gather_object: as in Accelerate.
    """
    record = accelerator.gradient_state.active_dataloader
    if isinstance(record, LoaderRecord) and record.end_of_dataloader and record.repeats_at_end:
        use_gather_object = use_gather_object or not _is_all_tensors(input_data)
        input_data = type(input_data)() if use_gather_object else recursively_apply(_no_rows, input_data)
    return Accelerator.gather_for_metrics(accelerator, input_data, use_gather_object)


def _is_all_tensors(data: Any) -> bool:
    try:
        recursively_apply(_no_rows, data, error_on_other_type=True)
    except TypeError:  # how it says that there is another leaf
        return False
    return True


def _no_rows(tensor: Tensor) -> Tensor:
    return (tensor.reshape(1) if tensor.ndim == 0 else tensor)[:0]


def _gather_rows(gather_equal: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """`gather_equal`, which wants one shape on all ranks, made to work with different first dimensions."""
    rows = tensor.reshape(1) if tensor.ndim == 0 else tensor
    counts = gather_equal(torch.tensor([len(rows)], device=rows.device)).tolist()
    if len(set(counts)) == 1:
        return gather_equal(rows)
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    of_ranks = torch.split(gather_equal(padded), max(counts))
    return torch.cat([of_rank[:count] for of_rank, count in zip(of_ranks, counts, strict=True)])
