"""Which equality delete files apply to which data files.

An equality delete applies to data files with a strictly smaller sequence number, in its own partition (the same spec
and values), or anywhere if its spec is unpartitioned. Source: Iceberg spec, "Scan Planning".
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch_dataloader_utils._core.iceberg import EqualityDeleteFile
from torch_dataloader_utils._store import redact
from torch_dataloader_utils.discover.faults import corrupt
from torch_dataloader_utils.discover.iceberg.files import Files
from torch_dataloader_utils.discover.iceberg.manifests import FORMATS, ManifestEntry
from torch_dataloader_utils.errors import UnsupportedFeatureError

Scope = tuple[int, tuple[object, ...]]
_EVERYWHERE: Scope = (-1, ())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EqualityIndex:
    """The equality delete files of a snapshot.

    by_scope: (sequence number, file) by partition, ascending.
    chosen: results of `of`, kept so that data files with the same deletes share one object, which is pickled once.
    """

    by_scope: dict[Scope, list[tuple[int, EqualityDeleteFile]]] = field(default_factory=dict)
    chosen: dict[tuple[Scope, int], tuple[EqualityDeleteFile, ...]] = field(default_factory=dict)

    def of(self, entry: ManifestEntry) -> tuple[EqualityDeleteFile, ...]:
        """The delete files that apply to a data file, sorted by path."""
        if not self.by_scope:
            return ()
        scope = _scope(entry)
        key = (scope, entry.sequence_number)
        if key not in self.chosen:
            near = (*self.by_scope.get(scope, ()), *self.by_scope.get(_EVERYWHERE, ()))
            applying = {file.path: file for number, file in near if number > entry.sequence_number}
            self.chosen[key] = tuple(applying[path] for path in sorted(applying))
        return self.chosen[key]

    @property
    def key_ids(self) -> frozenset[int]:
        """All field ids that keys have."""
        return frozenset(key for files in self.by_scope.values() for _, file in files for key in file.key_ids)


def index_equality_deletes(
    entries: Sequence[ManifestEntry], unpartitioned: frozenset[int], files: Files
) -> EqualityIndex:
    """The index of these delete files, with the identity that each has now.

    unpartitioned: ids of the specs whose deletes apply everywhere.

    Raises:
        UnsupportedFeatureError: a delete file in Avro. CorruptFileError: one without key columns.
    """
    index = EqualityIndex()
    for entry, file in zip(entries, files.map(lambda entry: _delete_file(entry, files), entries), strict=True):
        scope = _EVERYWHERE if entry.spec_id in unpartitioned else _scope(entry)
        index.by_scope.setdefault(scope, []).append((entry.sequence_number, file))
    return index


def _delete_file(entry: ManifestEntry, files: Files) -> EqualityDeleteFile:
    path = files.rules.resolve(entry.path)
    if entry.file_format not in FORMATS:
        raise UnsupportedFeatureError(
            f"{redact(path)}: delete files in {entry.file_format} are not supported; rewrite the table's deletes."
        )
    if not entry.equality_ids:
        raise corrupt(path, "the manifest names no key columns for this equality delete file")
    now = files.store(path).stat(path)
    return EqualityDeleteFile(
        path=path,
        file_size=now.size,
        identity=now.identity,
        file_format=FORMATS[entry.file_format],
        key_ids=tuple(sorted(set(entry.equality_ids))),
    )


def _scope(entry: ManifestEntry) -> Scope:
    # As text, NaN equals NaN, and -0.0 and 0.0 differ, as partitions do.
    values = (repr(value) if isinstance(value, float) else value for _, value in entry.partition)
    return (entry.spec_id, tuple(values))
