"""Lightning: builds loaders once the ranks are known, and resumes loaders from Lightning's checkpoints."""

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
    """LightningDataModule with loaders of this library, for a Trainer of Lightning 2.

        def make_loader(path):
            return StructuredDataset.create_dataloader(path, shuffle=True, num_ranks="auto")[0]

        data = TableDataModule(partial(make_loader, "train/"), validate=partial(make_loader, "val/"))
        trainer.fit(model, datamodule=data)

    The module takes functions that make loaders, because Lightning starts its processes after the program has begun:
    the number of processes is known only inside Lightning's hooks, where the module calls the functions.

    Lightning itself sets the epoch, moves batches, and saves and loads each loader's state in its checkpoints, at any
    step. `use_distributed_sampler` may stay on, because it leaves iterable data sets alone. Ignore Lightning's warnings
    about `num_workers` and about `__len__` of an iterable data set.

    Lightning does not expect epochs of different lengths, for example after a resume on another number of devices:

        3 devices, 28 of 53 steps done, loaded on one device:   101 steps in this epoch, 157 in the next

    Lightning asks a loader for its length once, before it loads the state. So the module saves and loads the state of
    the training loader itself as well, and sets `reload_dataloaders_every_n_epochs` to 1: Lightning asks for the
    loaders at every epoch, and gets the same loaders. If the Trainer has another number there, the number stays, and
    loaders are made anew as often as it says.

    If a loader has no length (`count_rows=False`), Lightning reads one batch ahead of training to find the last batch.
    The loader's states stand before the batch that was read ahead. On several devices these states cannot be resumed,
    because a checkpoint holds the state of one rank; saving such a state warns.
    """

    def __init__(
        self,
        train: LoaderFactory | None = None,
        *,
        validate: LoaderFactory | None = None,
        test: LoaderFactory | None = None,
        predict: LoaderFactory | None = None,
    ) -> None:
        """Override the hooks for which a function is given; other hooks stay as Lightning has them."""
        super().__init__()
        self._loaders: dict[str, TableDataLoader] = {}
        self._keeps_loaders = False
        self._saved: dict[str, Any] | None = None
        # If a data module has a hook, Lightning concludes that it has data for the hook's stage.
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
        """Forget the loaders of an earlier run, and let Lightning ask for loaders at every epoch."""
        self._loaders.clear()
        self._saved = None
        trainer: Any = self.trainer  # None if a program calls the hooks itself, to look at batches
        if stage == "fit" and trainer is not None:
            self._keeps_loaders = self._keeps_loaders or trainer.reload_dataloaders_every_n_epochs == 0
            if self._keeps_loaders:
                trainer.reload_dataloaders_every_n_epochs = 1

    def teardown(self, stage: str) -> None:
        """Restore the Trainer's `reload_dataloaders_every_n_epochs`."""
        trainer: Any = self.trainer
        if stage == "fit" and self._keeps_loaders:
            trainer.reload_dataloaders_every_n_epochs = 0
            self._keeps_loaders = False

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the training loader; an empty dict before Lightning has asked for the loader."""
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
            # Lightning sets the epoch too, but only after it asked for the length.
            epoch = trainer.fit_loop.epoch_progress.current.processed
            if getattr(loader, "epoch", epoch) != epoch:  # a plain DataLoader has none
                loader.set_epoch(epoch)
        return loader

    def _resume(self, loader: TableDataLoader, saved: Mapping[str, Any]) -> None:
        """Load `saved` before Lightning asks for the length, so that it gets the length of the resumed epoch."""
        loader.load_state_dict(saved)
        trainer: Any = self.trainer
        if trainer is None:
            return
        progress = trainer.fit_loop.epoch_loop.batch_progress
        length = sized_len(loader)
        if progress.is_last_batch and length is not None:
            # Lightning compares this number with the present length, and would go on with an epoch that was over.
            progress.current.completed = length
