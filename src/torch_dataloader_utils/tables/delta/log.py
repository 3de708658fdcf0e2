"""Files of a Delta log: the versions of the table, and the log files that make one version.

    00000000000000000010.json                                  a commit: the actions of version 10
    00000000000000000010.checkpoint.parquet                    all of versions 0 to 10, in one file
    00000000000000000010.checkpoint.0000000001.0000000002.parquet    the same in parts
    00000000000000000010.checkpoint.<uuid>.parquet (or .json)  the same, with sidecar files
    00000000000000000011.00000000000000000014.compacted.json   the actions of versions 11 to 14, reconciled

`_last_checkpoint` and checksums are hints, and are not read.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from torch_dataloader_utils._core.arguments import hold_integers
from torch_dataloader_utils._core.table_snapshot import milliseconds_of, time_text
from torch_dataloader_utils._store import FileEntry, redact
from torch_dataloader_utils.errors import ConfigError, NoDataError
from torch_dataloader_utils.formats.errors import corrupt
from torch_dataloader_utils.tables.delta.actions import commit_time, read_commit
from torch_dataloader_utils.tables.table_files import TableFiles

LOG = "_delta_log"

_COMMIT = re.compile(r"(\d{20})\.json")
_COMPACTED = re.compile(r"(\d{20})\.(\d{20})\.compacted\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|(\.[0-9a-fA-F-]{36}))?\.(?:parquet|json)")

# From so many commits on, a checkpoint is read in their place: a commit is a request.
_MANY_COMMITS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChoice:
    """The user's choice of a version.

    version: Number of the version, None for the newest. timestamp: Time of the version, milliseconds since 1970 or a
    datetime (a naive datetime counts as UTC); kept as milliseconds. from_version: Read only files that were added after
    this version.

    Raises:
        ConfigError: both a version and a time, or a version below 0. ConfigTypeError: another type.
    """

    version: int | None = None
    timestamp: int | datetime | None = None
    from_version: int | None = None

    def __post_init__(self) -> None:
        if self.version is not None and self.timestamp is not None:
            raise ConfigError("version and timestamp each choose a version; pass one of them.")
        hold_integers(self, "version", "from_version", least=0)
        if self.timestamp is not None:
            object.__setattr__(self, "timestamp", milliseconds_of("timestamp", self.timestamp))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSteps:
    """Files that make one version: the files of a checkpoint (none: from version 0 on), then commits in their order.

    start: Version of the checkpoint, -1 for none. A compacted log takes the place of several commits.
    """

    start: int
    checkpoint: tuple[FileEntry, ...]
    commits: tuple[FileEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeltaLog:
    """Files of a log.

    name: Name of the table, for messages. commits: Files by version. compacted: Files by first and last version.
    checkpoints: (version, files) of each complete checkpoint, the newest first.
    """

    name: str
    commits: Mapping[int, FileEntry]
    compacted: Mapping[tuple[int, int], FileEntry]
    checkpoints: Sequence[tuple[int, tuple[FileEntry, ...]]]

    @property
    def newest(self) -> int:
        """Present version of the table."""
        return max((*self.commits, *(version for version, _ in self.checkpoints)))

    def ways(self, version: int) -> Iterator[LogSteps]:
        """Yield the ways to make a version, the best first. All give the same files, unless a file of a way is wrong.

        Commits define a table; checkpoints and compacted logs save requests. So commits alone come first unless the log
        has many, and a compacted log only takes the place of commits that are gone.

        Raises:
            ConfigError: the log of the version was cleaned up. CorruptFileError: a commit in the middle is missing.
        """
        starts = [each for each in self.checkpoints if each[0] <= version]
        starts.insert(0 if version < _MANY_COMMITS else len(starts), (-1, ()))
        is_there_one = False
        for start, checkpoint in starts:
            commits = self._commits(start + 1, version)
            if commits is not None:
                is_there_one = True
                yield LogSteps(start=start, checkpoint=checkpoint, commits=commits)
        if not is_there_one:
            raise self._missing(version, max(start for start, _ in starts))

    def _commits(self, first: int, last: int) -> tuple[FileEntry, ...] | None:
        """Return the files that hold the versions first to last; None if a version is missing."""
        found: dict[int, FileEntry] = {}
        at = first
        while at <= last:
            if at in self.commits:
                found[at] = self.commits[at]
                at += 1
                continue
            covering = [(end, start) for start, end in self.compacted if first <= start <= at <= end <= last]
            if not covering:
                return None
            end, start = max(covering)
            found = {each: file for each, file in found.items() if each < start}
            found[start] = self.compacted[start, end]
            at = end + 1
        return tuple(found.values())

    def _missing(self, version: int, start: int) -> Exception:
        missing = next(each for each in range(start + 1, version + 1) if each not in self.commits)
        if start < 0 and self.checkpoints and not any(each <= missing for each in self.commits):
            return ConfigError(
                f"{self.name}: the log of version {version} was cleaned up; the oldest that can be read is "
                f"{min(self.checkpoints)[0]}. Choose a later version."
            )
        return corrupt(f"{self.name}/{LOG}", f"commit {missing} is missing, which version {version} is made of")


def list_log(root: str, files: TableFiles) -> DeltaLog:
    """Return the log of the table at a resolved path, by one listing.

    Raises:
        NoDataError: the table has no log.
    """
    directory, name = f"{root}/{LOG}", redact(root)
    try:
        entries = files.store(directory).list_files(directory).entries
    except NoDataError as error:
        raise _no_table(name) from error
    commits: dict[int, FileEntry] = {}
    compacted: dict[tuple[int, int], FileEntry] = {}
    parts: dict[tuple[int, str], dict[int, FileEntry]] = {}
    for entry in entries:
        directory_of, _, base = entry.path.rpartition("/")
        if directory_of != directory:
            continue
        if found := _COMMIT.fullmatch(base):
            commits[int(found[1])] = entry
        elif found := _COMPACTED.fullmatch(base):
            compacted[int(found[1]), int(found[2])] = entry
        elif found := _CHECKPOINT.fullmatch(base):
            # The number of parts, or the UUID, says which files belong together.
            together = (int(found[1]), found[3] or found[4] or "")
            parts.setdefault(together, {})[int(found[2] or 1)] = entry
    checkpoints = [
        (version, tuple(those[number] for number in sorted(those)))
        for (version, kind), those in sorted(parts.items(), key=lambda each: each[0], reverse=True)
        if len(those) == max(those) == (int(kind) if kind.isdigit() else 1)
    ]
    if not commits and not checkpoints:
        raise _no_table(name)
    return DeltaLog(name=name, commits=commits, compacted=compacted, checkpoints=checkpoints)


def choose_version(log: DeltaLog, choice: VersionChoice, files: TableFiles) -> int:
    """Return the version that `choice` means.

    The time of a commit is its in-commit timestamp or, if the newest commit has none, the time of its file. Times
    ascend: a commit counts as written at least a millisecond after the commit before it, as for Spark.

    Raises:
        ConfigError: no such version, or the store does not say when its files were written.
        NoDataError: the table had no version at that time.
    """
    version = choice.version
    if isinstance(choice.timestamp, int):
        version = _at_time(log, choice.timestamp, files)
    if version is not None and version > log.newest:
        raise ConfigError(f"{log.name} has no version {version}; the newest is {log.newest}. Choose one up to that.")
    return log.newest if version is None else version


def _at_time(log: DeltaLog, milliseconds: int, files: TableFiles) -> int:
    versions = sorted(log.commits)
    if not versions:
        raise ConfigError(f"{log.name}: only a checkpoint is left of the log, which has no times. Pass version=.")
    if _own_time(log, versions[-1], files) is not None:
        place = bisect_right(versions, milliseconds, key=lambda version: _time(log, version, files))
    else:
        times: list[int] = []
        for version in versions:
            times.append(max(_time_of_file(log, version, files), times[-1] + 1 if times else 0))
        place = bisect_right(times, milliseconds)
    if place == 0:
        raise NoDataError(
            f"{log.name} had no version at {time_text(milliseconds)}, as far as its log says: the first is of "
            f"{time_text(_time(log, versions[0], files))}. Choose a later time, a datetime or milliseconds since 1970."
        )
    return versions[place - 1]


def _time(log: DeltaLog, version: int, files: TableFiles) -> int:
    own = _own_time(log, version, files)
    return _time_of_file(log, version, files) if own is None else own


def _own_time(log: DeltaLog, version: int, files: TableFiles) -> int | None:
    path = log.commits[version].path
    return commit_time(read_commit(path, files.read(path)))


def _time_of_file(log: DeltaLog, version: int, files: TableFiles) -> int:
    entry = log.commits[version]
    modified = entry.stat.modified_ns
    if modified is None:  # some listings leave the time out, while looking a file up gives it (obstore)
        modified = files.store(entry.path).stat(entry.path).modified_ns
    if modified is None:
        raise ConfigError(f"{log.name}: its store does not say when commits were written. Pass version=.")
    return modified // 1_000_000


def _no_table(name: str) -> NoDataError:
    return NoDataError(
        f"{name} is not a Delta table: it has no {LOG}/*.json. Pass the path of the directory that holds {LOG}."
    )


def commits_between(log: DeltaLog, first: int, last: int) -> Sequence[FileEntry]:
    """Return the commits of versions first to last.

    Raises:
        ConfigError: a commit was cleaned up.
    """
    for version in range(first, last + 1):
        if version not in log.commits:
            raise ConfigError(
                f"{log.name}: the increment up to version {last} needs commit {version}, which was cleaned up. Choose "
                "a later from_version, or read the whole version."
            )
    return [log.commits[version] for version in range(first, last + 1)]
