"""Transformers: the loader's place in the Trainer's own checkpoints."""

from typing import Any, cast

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.stream.loader import TableDataLoader


class LoaderStateCallback(TrainerCallback, ExportableState):
    """Saves where the training loader stands in trainer_state.json, and goes on from there without replay.

        class TableTrainer(Trainer):
            def get_train_dataloader(self):
                return StructuredDataset.create_dataloader("train/", shuffle=True, num_ranks="auto")[0]

        arguments = TrainingArguments(..., ignore_data_skip=True)
        trainer = TableTrainer(model, arguments, callbacks=[LoaderStateCallback()])
        trainer.train(resume_from_checkpoint=True)

    `ignore_data_skip=True` is needed: without it the Trainer would read the rows before the checkpoint once more and
    throw them away. The Trainer sets epochs and moves batches itself. Resuming works on another number of processes as
    long as that does not change which epoch the Trainer takes its global step to be in.
    """

    def __init__(self) -> None:
        self._loader: TableDataLoader | None = None

    def state(self) -> dict[str, Any]:
        """What the Trainer writes into trainer_state.json; the same on every rank."""
        attributes = {} if self._loader is None else {"loader": self._loader.state_dict()}
        return {"args": {}, "attributes": attributes}

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002  # the protocol's signature
        **kwargs: Any,
    ) -> None:
        """Load what a checkpoint said, before the first epoch begins.

        Raises:
            ConfigError: the Trainer trains with another kind of loader, or would replay.
        """
        loader = kwargs.get("train_dataloader")
        if not isinstance(loader, TableDataLoader):
            raise ConfigError(
                f"LoaderStateCallback: the Trainer has a {type(loader).__name__} to train with. Override "
                "get_train_dataloader to return the loader of create_dataloader."
            )
        self._loader = loader
        callbacks = cast("dict[str, Any]", state.stateful_callbacks)  # a dict as soon as the state exists
        saved = callbacks.get(type(self).__name__, {}).get("attributes", {}).get("loader")
        if saved is None or state.global_step == 0:
            return
        if not args.ignore_data_skip:
            raise ConfigError(
                "LoaderStateCallback resumes without replay: pass TrainingArguments(ignore_data_skip=True)."
            )
        loader.load_state_dict(saved)
