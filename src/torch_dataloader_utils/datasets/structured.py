"""`StructuredDataset`: data sets of files, and their loaders. `build.py` wires the stages for it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, Unpack, overload

import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from torch_dataloader_utils._core.splits import SplitStrategy
from torch_dataloader_utils.datasets.built_dataset import BuiltDataset
from torch_dataloader_utils.datasets.files import (
    FileDatasetKeywords,
    FileLoaderKeywords,
    FilePlainKeywords,
    Files,
    FileSource,
)
from torch_dataloader_utils.datasets.option_fields import arguments_of, explains
from torch_dataloader_utils.datasets.options import LOADER_TEXT, TableOptions
from torch_dataloader_utils.shape.shapers import OutputFormat
from torch_dataloader_utils.shape.tensor_batch import TensorBatch
from torch_dataloader_utils.stream.loader import TableDataLoader

T = TypeVar("T")


class StructuredDataset(BuiltDataset):
    """Parquet, ORC, CSV, JSON or Arrow files as an iterable data set of batches, one rank's share of them.

    `create_dataloader` is the usual way in. The constructor is for those who build their own DataLoader: pass the
    data set with batch_size=None and any number of workers; the plan is made for as many as there are.
    """

    def __init__(
        self,
        path: Files,
        format: str = "parquet",  # noqa: A002  # the field's name for it
        *,
        storage_options: Mapping[str, Any] | None = None,
        partitioning: Literal["hive"] | None = None,
        **options: Unpack[FileDatasetKeywords],
    ) -> None:
        """A data set of these files.

        Args:
            path: files, or data files of a split strategy; see `create_dataloader`, as for all other options.

        Raises:
            ConfigError, DataError, StoreError: see `create_dataloader`.
        """
        self._without_loader(FileSource, arguments_of(locals()))

    # The type of batches is what the last function of the user returns, or follows from the output format.
    @overload
    @classmethod
    def create_dataloader(
        cls,
        path: Files,
        format: str = "parquet",
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        *,
        collate_fn: Callable[[Any], T],
        transform: Callable[[Any], Any] | None = None,
        output_format: OutputFormat = "torch",
        **options: Unpack[FilePlainKeywords],
    ) -> tuple[TableDataLoader[T], "StructuredDataset"]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        path: Files,
        format: str = "parquet",
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        *,
        transform: Callable[[Any], T],
        collate_fn: None = None,
        output_format: OutputFormat = "torch",
        **options: Unpack[FilePlainKeywords],
    ) -> tuple[TableDataLoader[T], "StructuredDataset"]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        path: Files,
        format: str = "parquet",
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        *,
        output_format: Literal["torch"] = "torch",
        transform: None = None,
        collate_fn: None = None,
        **options: Unpack[FilePlainKeywords],
    ) -> tuple[TableDataLoader[TensorBatch], "StructuredDataset"]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        path: Files,
        format: str = "parquet",
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        *,
        output_format: Literal["numpy"],
        transform: None = None,
        collate_fn: None = None,
        **options: Unpack[FilePlainKeywords],
    ) -> tuple[TableDataLoader[dict[str, npt.NDArray[Any]]], "StructuredDataset"]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        path: Files,
        format: str = "parquet",
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        *,
        output_format: Literal["arrow"],
        transform: None = None,
        collate_fn: None = None,
        **options: Unpack[FilePlainKeywords],
    ) -> tuple[TableDataLoader[pa.RecordBatch], "StructuredDataset"]: ...
    @overload
    @classmethod
    def create_dataloader(
        cls,
        path: Files,
        format: str = "parquet",
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        *,
        output_format: Literal["dict"],
        transform: None = None,
        collate_fn: None = None,
        **options: Unpack[FilePlainKeywords],
    ) -> tuple[TableDataLoader[dict[str, list[Any]]], "StructuredDataset"]: ...
    @classmethod
    @explains(FileSource, TableOptions, more=LOADER_TEXT)
    def create_dataloader(
        cls,
        path: Files,
        format: str = "parquet",  # noqa: A002  # the field's name for it
        batch_size: int = 1024,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | None = None,
        shuffle: bool = False,
        shuffle_seed: int = 42,
        split_bytes: int | str | None = None,
        split_rows: int | None = None,
        split_strategy: SplitStrategy | str | None = None,
        num_workers: int | None = None,
        output_format: OutputFormat = "torch",
        storage_options: Mapping[str, Any] | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        partitioning: Literal["hive"] | None = None,
        num_ranks: int | str = 1,
        rank: int = 0,
        show_progress: bool = False,
        progress_interval_sec: float = 120.0,
        shuffle_buffer_size: int | None = None,
        **options: Unpack[FileLoaderKeywords],
    ) -> tuple[TableDataLoader[Any], "StructuredDataset"]:
        """A loader of one rank's batches, and its data set.

        All options are on the page "Options" of the reference, and in `help()` of this function: those of the files,
        those of every table (`TableOptions`), and those of torch's DataLoader.

        Returns:
            (loader, dataset). `len(loader)` is exact (a TypeError if row counts are not known). Call
            `dataset.set_epoch(epoch)` before each epoch if shuffling.

        Raises:
            ConfigError: arguments that do not fit each other or the data. NoDataError: nothing to read.
            DataError: files that are corrupt or do not share one schema. StoreError: the storage failed.
        """
        return cls._with_loader(FileSource, arguments_of(locals()))
