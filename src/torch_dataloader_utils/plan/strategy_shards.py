"""Checks that a split strategy's `generate` returned shards of splits of files; reads generators once."""

import operator
from collections.abc import Iterable
from typing import TypeVar

from torch_dataloader_utils._core.arguments import is_integer
from torch_dataloader_utils._core.splits import DataFileInfo, RowRange, Shard, Split
from torch_dataloader_utils.errors import ConfigTypeError, of_type

Expected = TypeVar("Expected")


def take_shards(name: str, given: object) -> list[Shard]:
    """The shards that strategy `name` gave, each with a list of its splits. Generators are read here, once.

    Raises:
        ConfigTypeError: no list of shards of splits of files, or a worker or rows that are no whole numbers.
    """
    shards = given if isinstance(given, Iterable) else [given]
    return [_take_shard(name, _expect(name, each, Shard)) for each in shards]


def _take_shard(name: str, shard: Shard) -> Shard:
    try:
        worker = operator.index(shard.id)
    except TypeError as error:
        raise ConfigTypeError(
            f"{name}.generate() gave Shard({shard.id!r}, ...), whose id is no whole number. It is the worker that "
            "reads the shard: number shards from 0."
        ) from error
    if not isinstance(shard.splits, Iterable):
        raise ConfigTypeError(
            f"{name}.generate() gave Shard({worker}, ...) {of_type(shard.splits)} for its splits. Give it a "
            f"list of them: Shard({worker}, [Split(file), ...])."
        )
    return Shard(worker, [_check_split(name, _expect(name, each, Split)) for each in shard.splits])


def _check_split(name: str, split: Split) -> Split:
    if not isinstance(split.file, DataFileInfo):
        raise ConfigTypeError(
            f"{name}.generate() gave a Split of {of_type(split.file)}. Split one of the files that generate() "
            "is given, as it is: Split(file), not Split(file.path)."
        )
    if split.row_range is not None and not _is_range(split.row_range):
        raise ConfigTypeError(
            f"{name}.generate() gave a Split with row_range={split.row_range!r}. Pass RowRange(offset, length) with "
            "two whole numbers, or None for all rows of the file."
        )
    return split


def _is_range(rows: object) -> bool:
    return isinstance(rows, RowRange) and is_integer(rows.offset) and is_integer(rows.length)


def _expect(name: str, each: object, kind: type[Expected]) -> Expected:
    if not isinstance(each, kind):
        raise ConfigTypeError(
            f"{name}.generate() gave {of_type(each)} where shards of splits belong. Return a list with "
            "Shard(worker, [Split(file), ...]) for every worker."
        )
    return each
