"""Calls a split strategy, turns its shards into units, and checks that every row comes exactly once."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from torch_dataloader_utils._core.fingerprints import short_digest
from torch_dataloader_utils._core.inventory import Int64s
from torch_dataloader_utils._core.paths import redact
from torch_dataloader_utils._core.rows import RowSpace
from torch_dataloader_utils._core.splits import DataFileInfo, Split, SplitStrategy
from torch_dataloader_utils._core.units import Units
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.plan.cover import find_fault
from torch_dataloader_utils.plan.strategies import file_starts
from torch_dataloader_utils.plan.strategy_shards import take_shards

RankUnits = tuple[Units, ...]

_WITHOUT_RANKS = ("files", "num_workers", "epoch")


def strategy_name(strategy: SplitStrategy | None) -> str:
    """The name of a strategy in states and messages, with its settings that differ from their defaults; "" for None.

    Settings are known of dataclasses only: the fields with compare=True whose values are plain values, enum members, or
    lists, tuples and dicts of these. Of a field with repr=False only a digest is shown, so that states hold no secret.

        RoundRobinSplitStrategy(shuffle=True)      "RoundRobinSplitStrategy(shuffle=True)"
    """
    if strategy is None:
        return ""
    settings: tuple[Field[Any], ...] = fields(strategy) if is_dataclass(strategy) else ()
    changed = []
    for each in settings:
        value = getattr(strategy, each.name)
        default = each.default if each.default_factory is MISSING else each.default_factory()
        text = _plain_text(value) if each.compare else None
        if text is not None and value != default:
            changed.append(f"{each.name}={text if each.repr else short_digest(text.encode())}")
    name = type(strategy).__qualname__
    return f"{name}({', '.join(changed)})" if changed else name


def _plain_text(value: Any) -> str | None:
    """The value as text that is the same in every process; None for a value that may have no such text."""
    value = value.item() if isinstance(value, np.generic) else value
    match value:
        case Enum():
            return str(value)
        case None | int() | float() | str():
            return repr(value)
        case list() | tuple():
            parts = [_plain_text(part) for part in value]
            known = [part for part in parts if part is not None]
            return f"[{', '.join(known)}]" if len(known) == len(parts) else None
        case dict():
            return _plain_text(sorted(value.items(), key=repr))
        case _:
            return None


def takes_ranks(strategy: SplitStrategy) -> bool:
    """Whether `generate` accepts num_ranks and rank: by name, or through **kwargs."""
    parameters = inspect.signature(strategy.generate).parameters
    return "num_ranks" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


@dataclass(frozen=True, kw_only=True, eq=False)
class StrategyCall:
    """A strategy and the files that it deals; `units` calls it and checks the result."""

    strategy: SplitStrategy
    files: Sequence[DataFileInfo]
    space: RowSpace

    def units(self, epoch: int, num_ranks: int, num_workers: int) -> tuple[RankUnits, ...]:
        """Every rank's units, worker by worker. Strategies without rank arguments give every rank everything.

        Raises:
            ConfigError: a row is lost or repeated, or a shard names a file or worker that does not exist.
            ConfigTypeError: `generate` does not take these arguments, or gave no list of shards of splits.
        """
        if not takes_ranks(self.strategy):
            with self._noted(f"epoch {epoch}"):
                mine = self._workers(self._generate(list(self.files), num_workers, epoch), num_workers)
            self._check([mine])
            return (mine,) * num_ranks
        ranks = []
        for rank in range(num_ranks):
            with self._noted(f"epoch {epoch}, rank {rank} of {num_ranks}"):
                given = self._generate(
                    files=list(self.files), num_workers=num_workers, epoch=epoch, num_ranks=num_ranks, rank=rank
                )
                ranks.append(self._workers(given, num_workers))
        self._check(ranks)
        return tuple(ranks)

    @contextmanager
    def _noted(self, asked_for: str) -> Iterator[None]:
        """Adds a note to errors, also of the strategy's own code: which strategy, and for which epoch and rank."""
        try:
            yield
        except Exception as error:
            error.add_note(f"Split strategy {self._name} was asked for {asked_for}.")
            raise

    def _generate(self, *given: Any, **named: Any) -> object:
        """Call `generate`, after a check that it takes these arguments: a TypeError then comes from its own code."""
        signature = inspect.signature(self.strategy.generate)
        try:
            signature.bind(*given, **named)
        except TypeError as error:
            raise ConfigTypeError(
                f"{self._name}.generate({', '.join(signature.parameters)}) cannot be called with "
                f"{', '.join(named or _WITHOUT_RANKS)}: {error}. Write generate(self, files, num_workers, epoch, "
                "num_ranks, rank), with these names."
            ) from error
        return self.strategy.generate(*given, **named)

    def _workers(self, given: object, num_workers: int) -> RankUnits:
        """Each worker's units, from the shards of one rank."""
        starts = file_starts(self.space, len(self.files))
        index = {file.path: position for position, file in enumerate(self.files)}
        bounds: list[list[tuple[int, int]]] = [[] for _ in range(num_workers)]
        for shard in take_shards(self._name, given):
            if not 0 <= shard.id < num_workers:
                raise ConfigError(
                    f"{self._name} gave a shard for worker {shard.id} of {num_workers}. Number shards from 0."
                )
            bounds[shard.id] += [self._plan_rows(split, index, starts) for split in shard.splits]
        pairs = [np.array([pair for pair in of_worker if pair[1] > pair[0]]).reshape(-1, 2) for of_worker in bounds]
        return tuple(Units.plain(pair[:, 0].astype(np.int64), pair[:, 1].astype(np.int64)) for pair in pairs)

    def _plan_rows(self, split: Split, index: Mapping[str, int], starts: Int64s) -> tuple[int, int]:
        """The plan rows [begin, end) of a split. index: files by path. starts: the first plan row of each file."""
        position = index.get(split.file.path)
        if position is None:
            raise ConfigError(
                f"{self._name} gave a split of {redact(split.file.path)}, which is not in the data set. Split the "
                "files that generate() is given."
            )
        begin, end = int(starts[position]), int(starts[position + 1])
        if split.row_range is None:
            return begin, end
        offset, rows = split.row_range.offset, split.row_range.length
        if not 0 <= offset <= offset + rows <= end - begin:
            raise ConfigError(
                f"{self._name} gave rows [{offset}, {offset + rows}) of {redact(split.file.path)}, which has "
                f"{end - begin}. Ranges begin at 0 in each file; check its generate()."
            )
        return begin + offset, begin + offset + rows

    @property
    def _name(self) -> str:
        return strategy_name(self.strategy)

    def _check(self, ranks: Sequence[RankUnits]) -> None:
        """Raise ConfigError unless the units cover [0, num_rows) once."""
        everything = Units.concat([units for workers in ranks for units in workers])
        fault = find_fault(everything.start, everything.stop, self.space.num_rows)
        if fault is None:
            return
        starts = file_starts(self.space, len(self.files))
        file = int(np.searchsorted(starts, fault.start, side="right")) - 1
        first, last = fault.start - int(starts[file]), min(fault.stop, int(starts[file + 1])) - int(starts[file])
        in_all = f", {fault.total_rows:,} rows in all" if fault.total_rows > last - first else ""
        raise ConfigError(
            f"Split strategy {self._name} {fault.verb} rows: {redact(self.files[file].path)} rows [{first}, {last})"
            f"{in_all}. Over all ranks and workers every row must come exactly once; check its generate()."
        )
