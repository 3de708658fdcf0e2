"""Lightning: loaders that are built where the ranks are known, resumed from its checkpoints, in the epoch it is in."""

from collections.abc import Callable
from functools import partial

from lightning.pytorch import LightningDataModule

from torch_dataloader_utils.stream.loader import TableDataLoader

LoaderFactory = Callable[[], TableDataLoader]


def _make(factory: LoaderFactory) -> TableDataLoader:
    """Call `factory`; a function, because Lightning looks at the code of hooks, and other callables have none."""
    return factory()


class TableDataModule(LightningDataModule):
    """Loaders of this library for a Trainer of Lightning 2.

        def make_loader(path):
            return StructuredDataset.create_dataloader(path, shuffle=True, num_ranks="auto")[0]

        data = TableDataModule(partial(make_loader, "train/"), validate=partial(make_loader, "val/"))
        trainer.fit(model, datamodule=data)

    Lightning starts its processes after the program has begun; only inside its hooks is it known how many there are,
    so this takes functions that make loaders, and calls them there.

    Lightning itself sets the epoch, moves batches, saves each loader's state in its checkpoints and loads it, at any
    step and on another number of devices; `use_distributed_sampler` may stay on, since it leaves iterable data sets
    alone. Its warnings about `num_workers` and `__len__` of an iterable data set do not apply.
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
        # Lightning takes a data module to have data for a stage if it has the hook.
        hooks = {
            "train_dataloader": train,
            "val_dataloader": validate,
            "test_dataloader": test,
            "predict_dataloader": predict,
        }
        for name, factory in hooks.items():
            if factory is not None:
                setattr(self, name, partial(_make, factory))
