"""Transformers: keeps the loader's state in the Trainer's checkpoints."""

from typing import Any, cast

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from torch_dataloader_utils._runtime.user_warning import warn_user
from torch_dataloader_utils.errors import CheckpointMismatchError, ConfigError, of_type
from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.stream.trainer_hooks import warn_of_lost_places


class LoaderStateCallback(TrainerCallback, ExportableState):
    """TrainerCallback that saves the training loader's state in trainer_state.json and resumes without replay.

        class TableTrainer(Trainer):
            def get_train_dataloader(self):
                return StructuredDataset.create_dataloader("train/", shuffle=True, num_ranks="auto")[0]

        arguments = TrainingArguments(..., ignore_data_skip=True)
        trainer = TableTrainer(model, arguments, callbacks=[LoaderStateCallback()])
        trainer.train(resume_from_checkpoint=True)

    Pass `ignore_data_skip=True`: otherwise the Trainer would read the rows before the checkpoint again and throw the
    rows away. The Trainer sets epochs and moves batches itself.

    The Trainer computes the epoch from the global step and the present number of steps of an epoch. On another number
    of processes the result may differ from the loader's epoch: then the first step raises an error. If the epochs
    agree, the Trainer's end (num_train_epochs times the present steps) may still not be the end of an epoch: a warning
    names the right `max_steps`. In the resumed epoch the Trainer does not step the optimizer after a last accumulation
    that is shorter than the others, and adds its gradients to the next step.
    """

    def __init__(self) -> None:
        self._loader: TableDataLoader | None = None
        self._resumed_epoch: int | None = None

    def state(self) -> dict[str, Any]:
        """Return the entry for trainer_state.json; it is the same on every rank, or a warning says that it differs."""
        if self._loader is None:
            return {"args": {}, "attributes": {}}
        warn_of_lost_places(self._loader.dataset)
        return {"args": {}, "attributes": {"loader": self._loader.state_dict()}}

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002  # the protocol's signature
        **kwargs: Any,
    ) -> None:
        """Load the state of the checkpoint, if there is a checkpoint, before the first epoch begins.

        Raises:
            ConfigError: the Trainer trains with another kind of loader, or would replay.
        """
        loader = kwargs.get("train_dataloader")
        if not isinstance(loader, TableDataLoader):
            raise ConfigError(
                f"LoaderStateCallback: the Trainer has {of_type(loader)} to train with. Override "
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
        counts_epochs = args.max_steps <= 0 and args.num_train_epochs == state.num_train_epochs
        epoch_steps = len(loader) if counts_epochs else None
        loader.load_state_dict(saved)
        self._resumed_epoch = loader.epoch
        if epoch_steps is not None:
            _warn_of_another_end(args, state, loader, epoch_steps)

    def on_step_begin(
        self,
        args: TrainingArguments,  # noqa: ARG002  # the protocol's signature
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002  # the protocol's signature
        **kwargs: Any,  # noqa: ARG002  # the protocol's signature
    ) -> None:
        """Check at the first step after a resume that Trainer and loader are in the same epoch.

        Raises:
            CheckpointMismatchError: the Trainer is in another epoch; by setting it, the loader lost its position.
        """
        resumed, self._resumed_epoch = self._resumed_epoch, None
        if resumed is not None and self._loader is not None and self._loader.epoch != resumed:
            raise CheckpointMismatchError(
                f"The checkpoint is in epoch {resumed} of the loader, but the Trainer takes its global step "
                f"{state.global_step} to be in epoch {self._loader.epoch}. Resume with the number of processes, batch "
                "size and accumulation steps of the checkpoint, or train on in a new run from the model alone."
            )


def _warn_of_another_end(
    args: TrainingArguments, state: TrainerState, loader: TableDataLoader, epoch_steps: int
) -> None:
    """Warn if the Trainer, which counts `epoch_steps` batches for every epoch, will not end with the last epoch."""
    position = loader.progress.position
    received = sum(segment.steps_of(loader.dataset.rank) for segment in position.segments)
    later_epochs = state.num_train_epochs - position.epoch - 1
    left = [len(loader) - received] + later_epochs * [epoch_steps]
    end = state.global_step + sum(-(-batches // args.gradient_accumulation_steps) for batches in left)
    if end != state.max_steps:
        warn_user(
            f"The checkpoint is of epochs with other numbers of steps, so the Trainer will end at global step "
            f"{state.max_steps}, and epoch {state.num_train_epochs - 1} ends at {end}. Pass max_steps={end} to train "
            f"num_train_epochs={state.num_train_epochs} whole epochs."
        )
