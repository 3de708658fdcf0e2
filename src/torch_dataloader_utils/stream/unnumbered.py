"""The error for whoever asks a loader for a batch by its number, as a DataLoader around it does."""

from typing import NoReturn

from torch_dataloader_utils.errors import ConfigTypeError


def refuse_number(loader: object, index: object) -> NoReturn:
    """Refuses what Python answers with "not subscriptable".

    Raises:
        ConfigTypeError: always.
    """
    raise ConfigTypeError(
        f"{type(loader).__name__}[{index!r}]: its batches come in an order of their own and have no numbers. Iterate "
        "it as it is: it is a loader, with no DataLoader around it. A RowDataset gives rows by number."
    )
