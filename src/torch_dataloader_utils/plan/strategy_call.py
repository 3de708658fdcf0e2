"""Call a split strategy, turn its shards into units, and check that every row comes exactly once."""

import inspect
import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, Literal, TypeVar

import numpy as np

from torch_dataloader_utils._core.arguments import is_integer
from torch_dataloader_utils._core.inventory import Int64s, Inventory, short_digest
from torch_dataloader_utils._core.options import Topology
from torch_dataloader_utils._core.paths import redact
from torch_dataloader_utils._core.position import Segment
from torch_dataloader_utils._core.splits import (
    DataFileInfo,
    IcebergDataFileInfo,
    RowGroups,
    RowRange,
    Shard,
    Split,
    SplitStrategy,
)
from torch_dataloader_utils._core.table_file import TableFile
from torch_dataloader_utils._core.units import RowSpace, Units
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.plan.strategies import file_starts

Expected = TypeVar("Expected")


def take_shards(name: str, returned: object) -> list[Shard]:
    """Return the shards that strategy `name` returned, each with a list of its splits. Generators are read here, once.

    Raises:
        ConfigTypeError: `returned` is not a list of shards of splits of files, or a worker or row number is not a
            whole number.
    """
    shards = returned if isinstance(returned, Iterable) else [returned]
    return [_take_shard(name, _expect(name, each, Shard)) for each in shards]


def _take_shard(name: str, shard: Shard) -> Shard:
    try:
        worker = operator.index(shard.id)
    except TypeError as error:
        raise ConfigTypeError(
            f"{name}.generate() gave Shard({shard.id!r}, ...): the id is not a whole number. The id is the worker that "
            "reads the shard: number shards from 0."
        ) from error
    if not isinstance(shard.splits, Iterable):
        raise ConfigTypeError(
            f"{name}.generate() gave Shard({worker}, ...) {of_type(shard.splits)} for its splits. Give the shard a "
            f"list of splits: Shard({worker}, [Split(file), ...])."
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFault:
    """First rows [start, stop) that are lost or repeated. total_rows: number of all lost rows, or of all repeats."""

    verb: Literal["lost", "repeated"]
    start: int
    stop: int
    total_rows: int


def find_fault(start: Int64s, stop: Int64s, num_rows: int) -> RowFault | None:
    """Return the first fault of the spans [start[i], stop[i]), or None if they cover [0, num_rows) exactly once.

    No span may be empty.

    [0, 5) [3, 8) [2, 4)     of 8      rows [2, 4) are repeated, 4 rows in all: 2, 3, 3, 4
    [0, 5) [8, 9)            of 10     rows [5, 8) are lost, 4 rows in all
    """
    order = np.argsort(start, kind="stable")
    start, stop = start[order], stop[order]
    covered = np.concatenate([np.zeros(1, dtype=np.int64), np.maximum.accumulate(stop)])
    following = np.append(start, num_rows)
    lost = following - covered
    repeated = np.minimum(stop, covered[:-1]) - start
    wrong = np.flatnonzero(lost)
    if not len(wrong):
        return None
    first = wrong[0]
    if lost[first] > 0:
        return RowFault(
            verb="lost", start=int(covered[first]), stop=int(following[first]), total_rows=int(lost[lost > 0].sum())
        )
    again = int(repeated[first])
    return RowFault(
        verb="repeated",
        start=int(start[first]),
        stop=int(start[first]) + again,
        total_rows=int(repeated[repeated > 0].sum()),
    )


RankUnits = tuple[Units, ...]

_WITHOUT_RANKS = ("files", "num_workers", "epoch")


def strategy_name(strategy: SplitStrategy | None) -> str:
    """Return the name of a strategy for states and messages, with the settings that are not defaults; "" for None.

    Only dataclasses have settings: fields with compare=True that hold plain values, enum members, or lists, tuples and
    dicts of plain values and enum members. A field with repr=False is shown as a digest, so that states hold no secret.

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


def _plain_text(value: object) -> str | None:
    """Return the value as text that is the same in every process; None if the text could differ."""
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
    """Return whether `generate` accepts num_ranks and rank, by name or through **kwargs."""
    parameters = inspect.signature(strategy.generate).parameters
    return "num_ranks" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


@dataclass(frozen=True, kw_only=True, eq=False)
class StrategyCall:
    """Split strategy with the files that it assigns. `units` calls the strategy and checks the result."""

    strategy: SplitStrategy
    files: Sequence[DataFileInfo]
    space: RowSpace

    @property
    def is_shared(self) -> bool:
        """Whether every rank reads everything, because `generate` has no rank arguments."""
        return not takes_ranks(self.strategy)

    def check_resume(self, received: Segment, topology: Topology) -> None:
        """Raise ConfigError if every rank reads everything, and a rank of `topology` would have no rest of its own."""
        before = received.topology.num_ranks
        if self.is_shared and (not received.has_common_steps or topology.num_ranks != before):
            raise ConfigError(
                f"Split strategy {self._name} has no rank arguments: every rank reads everything, and the rest of the "
                "epoch cannot be assigned to another number of ranks, or to ranks that had drifted apart. Resume on "
                f"num_ranks={before}, with a state of one step on all ranks, or give generate() num_ranks and rank."
            )

    def units(self, epoch: int, num_ranks: int, num_workers: int) -> tuple[RankUnits, ...]:
        """Return every rank's units, worker by worker. Strategies without rank arguments give every rank all units.

        Raises:
            ConfigError: a row is lost or repeated, or a shard names a file or worker that does not exist.
            ConfigTypeError: `generate` does not take these arguments, or did not return a list of shards of splits.
        """
        if self.is_shared:
            with self._noted(f"epoch {epoch}"):
                mine = self._workers(self._generate(list(self.files), num_workers, epoch), num_workers)
            self._check([mine])
            return (mine,) * num_ranks
        ranks = []
        for rank in range(num_ranks):
            with self._noted(f"epoch {epoch}, rank {rank} of {num_ranks}"):
                returned = self._generate(
                    files=list(self.files), num_workers=num_workers, epoch=epoch, num_ranks=num_ranks, rank=rank
                )
                ranks.append(self._workers(returned, num_workers))
        self._check(ranks)
        return tuple(ranks)

    @contextmanager
    def _noted(self, asked_for: str) -> Iterator[None]:
        """Add a note to errors, also to errors of the strategy's own code: the strategy, the epoch and the rank."""
        try:
            yield
        except Exception as error:
            error.add_note(f"Split strategy {self._name} was asked for {asked_for}.")
            raise

    def _generate(self, *arguments: Any, **named: Any) -> object:
        """Check that `generate` takes these arguments, and call it: a TypeError then comes from the strategy's code."""
        signature = inspect.signature(self.strategy.generate)
        try:
            signature.bind(*arguments, **named)
        except TypeError as error:
            raise ConfigTypeError(
                f"{self._name}.generate({', '.join(signature.parameters)}) cannot be called with "
                f"{', '.join(named or _WITHOUT_RANKS)}: {error}. Write generate(self, files, num_workers, epoch, "
                "num_ranks, rank), with these names."
            ) from error
        return self.strategy.generate(*arguments, **named)

    def _workers(self, returned: object, num_workers: int) -> RankUnits:
        """Return each worker's units, from the shards of one rank."""
        bounds: list[list[tuple[int, int]]] = [[] for _ in range(num_workers)]
        for shard in take_shards(self._name, returned):
            if not 0 <= shard.id < num_workers:
                raise ConfigError(
                    f"{self._name} gave a shard for worker {shard.id} of {num_workers}. Number shards from 0."
                )
            bounds[shard.id] += [self._plan_rows(split) for split in shard.splits]
        pairs = [np.array([pair for pair in of_worker if pair[1] > pair[0]]).reshape(-1, 2) for of_worker in bounds]
        return tuple(Units.plain(pair[:, 0].astype(np.int64), pair[:, 1].astype(np.int64)) for pair in pairs)

    @cached_property
    def _starts(self) -> Int64s:
        """First plan row of every file, and the end of the last file."""
        return file_starts(self.space, len(self.files))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """Number of each file by its path."""
        return {file.path: number for number, file in enumerate(self.files)}

    def _plan_rows(self, split: Split) -> tuple[int, int]:
        """Return the plan rows [begin, end) of a split."""
        position = self._numbers.get(split.file.path)
        if position is None:
            raise ConfigError(
                f"{self._name} gave a split of {redact(split.file.path)}, which is not in the data set. Split the "
                "files that generate() is given."
            )
        begin, end = self._starts[position : position + 2].tolist()
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
        """Raise ConfigError unless the units cover [0, num_rows) exactly once."""
        everything = Units.concat([units for workers in ranks for units in workers])
        fault = find_fault(everything.start, everything.stop, self.space.num_rows)
        if fault is None:
            return
        starts = self._starts
        file = int(np.searchsorted(starts, fault.start, side="right")) - 1
        first, last = fault.start - int(starts[file]), min(fault.stop, int(starts[file + 1])) - int(starts[file])
        in_all = f", {fault.total_rows:,} rows in all" if fault.total_rows > last - first else ""
        raise ConfigError(
            f"Split strategy {self._name} {fault.verb} rows: {redact(self.files[file].path)} rows [{first}, {last})"
            f"{in_all}. Over all ranks and workers every row must come exactly once; check its generate()."
        )


def describe_files(inventory: Inventory) -> list[DataFileInfo]:
    """Describe each file with its row groups and, for an Iceberg table, its partition values."""
    groups, num_files = inventory.groups, inventory.num_files
    bounds = np.searchsorted(groups.file, np.arange(num_files + 1), side="left").tolist()
    files = []
    for file, path in enumerate(inventory.files.paths):
        mine = slice(bounds[file], bounds[file + 1])
        rows = groups.live_rows[mine]
        known = bool((rows >= 0).all())
        row_groups = RowGroups(rows=rows, bytes=groups.projected_bytes[mine]) if known else None
        count = int(rows.sum()) if known else None
        size = int(inventory.files.sizes[file])
        info = DataFileInfo(path=path, file_size=size, record_count=count, row_groups=row_groups)
        extra = inventory.files.extras[file] if inventory.files.extras else None
        # Files of Delta tables have these extras too, but no snapshot.
        if isinstance(extra, TableFile) and extra.table.snapshot_id is not None:
            info = _of_table(info, extra)
        files.append(info)
    return files


def _of_table(info: DataFileInfo, extra: TableFile) -> IcebergDataFileInfo:
    return IcebergDataFileInfo(
        path=info.path,
        file_size=info.file_size,
        record_count=info.record_count,
        row_groups=info.row_groups,
        partition=dict(extra.partition),
        snapshot_id=extra.table.snapshot_id,
    )


ENTRY_POINT_GROUP = "torch_dataloader_utils.split_strategies"


def find_strategy(strategy: SplitStrategy | str | None) -> SplitStrategy | None:
    """Return the strategy: an object as it is, or the entry point of that name (a class is called without arguments).

    Raises:
        ConfigError: the entry point does not exist or does not load.
        ConfigTypeError: `strategy` is a class, or an object without `generate`.
    """
    found = _load(strategy) if isinstance(strategy, str) else strategy
    if isinstance(found, type):
        raise ConfigTypeError(
            f"split_strategy={found.__name__} is a class: pass an object of it, such as {found.__name__}()."
        )
    if found is not None and not callable(getattr(found, "generate", None)):
        raise ConfigTypeError(
            f"split_strategy={found!r} has no generate(files, num_workers, epoch, num_ranks, rank) method. "
            "Write one, or use a built-in strategy."
        )
    return found


def _load(name: str) -> SplitStrategy:
    installed = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in installed:
        names = f"installed are {', '.join(map(repr, sorted(installed)))}" if installed else "none is installed"
        raise ConfigError(
            f"No split strategy {name!r}: {names}. A package announces a strategy as an entry point in the group "
            f"{ENTRY_POINT_GROUP!r}. Strategies of this library have no names: pass an object, such as "
            "RoundRobinSplitStrategy()."
        )
    point = installed[name]
    try:
        loaded = point.load()
        strategy: SplitStrategy = loaded() if isinstance(loaded, type) else loaded
    except Exception as error:
        raise ConfigError(
            f"Split strategy {name!r} ({point.value}) does not load: {type(error).__name__}: {error}. Correct the "
            "package that announces the strategy. A class is called without arguments: pass an object if the class "
            "needs arguments."
        ) from error
    return strategy
