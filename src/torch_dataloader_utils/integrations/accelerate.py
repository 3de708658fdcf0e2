"""Accelerate: prepares loaders, and gathers from ranks with batches of different sizes.

For training alone, `accelerator.prepare(loader)` is enough: batches arrive on the device, and Accelerate saves the
loader. But Accelerate's `gather` needs tensors of one shape on all ranks, and ends the process if shapes differ. Where
every row comes once and ranks take equal steps, the last two batches of ranks do differ, unless the rows divide evenly.
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
    """Call `accelerator.prepare`, and make the accelerator's gathering take batches of different sizes from then on.

        model, optimizer, loader = prepare(accelerator, model, optimizer, loader)
        for batch in loader:
            predictions, labels = accelerator.gather_for_metrics((model(batch["x"]), batch["label"]))

    Over an epoch the gathered rows are exactly the rows of the data set. Nothing is sharded or dispatched again.

    Args:
        accelerator: Accelerator of this process. On this object, `gather` and `gather_for_metrics` are replaced by the
            functions of this module.
        objects: Models, optimizers, schedulers and loaders, in any order.
        device_placement: Flags as in `accelerator.prepare`, one for each object. With False, a loader of this library
            leaves its batches where they are; None takes the accelerator's own flag for all.
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
    """Return the rows of all ranks in rank order, on every rank; ranks may differ in their number of rows.

        rank 0: shape [3, 7], rank 1: shape [2, 7]      gives shape [5, 7]

    Args:
        accelerator: Accelerator of this process.
        tensor: Tensor, or tuples, lists and dicts of tensors, with the same structure on every rank. All dimensions but
            the first are equal on all ranks. A scalar counts as one row.
    """
    if accelerator.num_processes == 1:
        return tensor

    def gather_one(leaf: Tensor) -> Tensor:
        return _gather_rows(partial(Accelerator.gather, accelerator), leaf)

    return recursively_apply(gather_one, tensor, error_on_other_type=True)


def gather_for_metrics(accelerator: Accelerator, input_data: Any, use_gather_object: bool = False) -> Any:
    """Return `accelerator.gather_for_metrics` for batches of different sizes, without the rows that ranks repeat.

    With batch size 1, or fewer rows than ranks, a rank may have no row left for the last step of other ranks. The rank
    then repeats a row, which is left out here.

    Args:
        accelerator: Accelerator of this process, after `prepare`.
        input_data: Tensors as in `gather`, or a list of other objects, one for each row.
        use_gather_object: Flag as in Accelerate.
    """
    record = accelerator.gradient_state.active_dataloader
    if isinstance(record, LoaderRecord) and record.end_of_dataloader and record.repeats_at_end:
        use_gather_object = use_gather_object or not _is_all_tensors(input_data)
        input_data = type(input_data)() if use_gather_object else recursively_apply(_no_rows, input_data)
    return Accelerator.gather_for_metrics(accelerator, input_data, use_gather_object)


def _is_all_tensors(data: Any) -> bool:
    try:
        recursively_apply(_no_rows, data, error_on_other_type=True)
    except TypeError:  # raised for a leaf that is not a tensor
        return False
    return True


def _no_rows(tensor: Tensor) -> Tensor:
    return (tensor.reshape(1) if tensor.ndim == 0 else tensor)[:0]


def _gather_rows(gather_equal: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """Return the rows of all ranks by `gather_equal`, which needs one shape: pad to the longest rank, then cut."""
    rows = tensor.reshape(1) if tensor.ndim == 0 else tensor
    counts = gather_equal(torch.tensor([len(rows)], device=rows.device)).tolist()
    if len(set(counts)) == 1:
        return gather_equal(rows)
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    of_ranks = torch.split(gather_equal(padded), max(counts))
    return torch.cat([of_rank[:count] for of_rank, count in zip(of_ranks, counts, strict=True)])
