"""Lightning: builds loaders once the ranks are known, and resumes them from Lightning's checkpoints."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import LightningDataModule
from torch.distributed.checkpoint.stateful import Stateful

from torch_dataloader_utils.stream.loader import TableDataLoader
from torch_dataloader_utils.stream.trainer_hooks import warn_of_lost_places

LoaderFactory = Callable[[], TableDataLoader]


class TableDataModule(LightningDataModule):
    """Loaders of this library for a Trainer of Lightning 2.

        def make_loader(path):
            return StructuredDataset.create_dataloader(path, shuffle=True, num_ranks="auto")[0]

        data = TableDataModule(partial(make_loader, "train/"), validate=partial(make_loader, "val/"))
        trainer.fit(model, datamodule=data)

    Lightning starts its processes after the program has begun; only inside its hooks is it known how many there are,
    so this takes functions that make loaders, and calls them there.

    Lightning itself sets the epoch, moves batches, saves each loader's state in its checkpoints and loads it, at any
    step; `use_distributed_sampler` may stay on, since it leaves iterable data sets alone. Its warnings about
    `num_workers` and `__len__` of an iterable data set do not apply.

    What Lightning does not expect is that epochs differ in length, as after a resume on another number of devices:

        3 devices, 28 of 53 steps done, loaded on one device:   101 steps in this epoch, 157 in the next

    It asks for the length when it asks for a loader: once, and before it loads the state. So this saves and loads the
    state of the training loader itself as well, and has Lightning ask for the loaders at every epoch
    (`reload_dataloaders_every_n_epochs`), which are then the same ones. If the Trainer was given a number of epochs
    there, it is left alone, and loaders are made anew as often as it says.

    Of a loader that has no length (`count_rows=False`) Lightning always reads one batch more than it has trained on, to
    know which is the last. States of such loaders stand before that batch. On several devices they cannot be resumed,
    since a checkpoint has the state of one: saving one warns.
    """

    def __init__(
        self,
        train: LoaderFactory | None = None,
        *,
        validate: LoaderFactory | None = None,
        test: LoaderFactory | None = None,
        predict: LoaderFactory | None = None,
    ) -> None:
        """Hooks for which no function is given stay as Lightning has them: not overridden."""
        super().__init__()
        self._loaders: dict[str, TableDataLoader] = {}
        self._keeps_loaders = False
        self._saved: dict[str, Any] | None = None
        # Lightning takes a data module to have data for a stage if it has the hook.
        hooks = {
            "train_dataloader": train,
            "val_dataloader": validate,
            "test_dataloader": test,
            "predict_dataloader": predict,
        }
        for name, factory in hooks.items():
            if factory is not None:
                setattr(self, name, partial(self._give, name, factory))

    def setup(self, stage: str) -> None:
        """Forget the loaders of an earlier run, and have Lightning ask for those of this one at every epoch."""
        self._loaders.clear()
        self._saved = None
        trainer: Any = self.trainer  # None where a program calls the hooks itself, to look at batches
        if stage == "fit" and trainer is not None:
            self._keeps_loaders = self._keeps_loaders or trainer.reload_dataloaders_every_n_epochs == 0
            if self._keeps_loaders:
                trainer.reload_dataloaders_every_n_epochs = 1

    def teardown(self, stage: str) -> None:
        """Give the Trainer back as it was."""
        trainer: Any = self.trainer
        if stage == "fit" and self._keeps_loaders:
            trainer.reload_dataloaders_every_n_epochs = 0
            self._keeps_loaders = False

    def state_dict(self) -> dict[str, Any]:
        """Where the training loader stands; nothing before Lightning has asked for it."""
        loader = self._loaders.get("train_dataloader")
        if isinstance(loader, TableDataLoader):
            warn_of_lost_places(loader.dataset)
        return {"train": loader.state_dict()} if isinstance(loader, Stateful) else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state for the training loader, which is made later."""
        self._saved = state_dict.get("train")

    def _give(self, name: str, factory: LoaderFactory) -> TableDataLoader:
        trainer: Any = self.trainer
        loader = self._loaders.get(name) if self._keeps_loaders else None
        if loader is None:
            loader = self._loaders[name] = factory()
        if isinstance(loader, TableDataLoader):
            loader.progress.is_read_ahead = sized_len(loader) is None
        if name == "train_dataloader" and self._saved is not None:
            self._resume(loader, self._saved)
            self._saved = None
        elif name == "train_dataloader" and trainer is not None:
            # Lightning sets the epoch as well, but asks for the length before.
            epoch = trainer.fit_loop.epoch_progress.current.processed
            if getattr(loader, "epoch", epoch) != epoch:  # a plain DataLoader has none
                loader.set_epoch(epoch)
        return loader

    def _resume(self, loader: TableDataLoader, saved: Mapping[str, Any]) -> None:
        """Load `saved`, so that Lightning, which asks for the length next, gets that of this very epoch."""
        loader.load_state_dict(saved)
        trainer: Any = self.trainer
        if trainer is None:
            return
        progress = trainer.fit_loop.epoch_loop.batch_progress
        length = sized_len(loader)
        if progress.is_last_batch and length is not None:
            # Lightning compares the batches done with the length now, and would go on with an epoch that was over.
            progress.current.completed = length
