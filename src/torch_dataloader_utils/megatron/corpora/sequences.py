"""Write and read the sequences file: counts of many corpora in one JSON file.

A job with thousands of corpora opens one file at the start, not thousands. The file maps each prefix to
[sequence count, document entries], as Megatron-Core reads it. Token counts and identities of the files are under one
more key of our own, so Megatron-Core can still read the file.
"""

import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from torch_dataloader_utils._core.paths import redact
from torch_dataloader_utils._runtime.parallel import map_watched
from torch_dataloader_utils._runtime.publish import write_atomically
from torch_dataloader_utils._store import Credentials, FileStat, RemoteOptions, Secret, StoreAccess, censored_text
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, CorruptFileError, NoDataError, of_type
from torch_dataloader_utils.megatron.corpora.corpus_files import check_prefix, local_path
from torch_dataloader_utils.megatron.corpora.index_format import CorpusFacts
from torch_dataloader_utils.megatron.corpora.indexed_dataset import IndexedDataset

_EXTRAS = "torch_dataloader_utils"
_VERSION = 2

# Opening a remote corpus is three requests and no work.
_THREADS = 16


def describe_corpus(
    path_prefix: str,
    *,
    storage_options: Mapping[str, Any] | Secret | StoreAccess | None = None,
    credentials: Credentials | None = None,
    remote: RemoteOptions | None = None,
) -> CorpusFacts:
    """Return the facts of one corpus, from its header and the sizes of its files; the arrays are not checked.

    Arguments and errors are as for `IndexedDataset`.
    """
    access = StoreAccess.of(storage_options, credentials, remote)
    dataset = IndexedDataset(path_prefix, storage_options=access, trust_index=True)
    return CorpusFacts(
        sequence_count=len(dataset),
        document_count=dataset.header.document_count,
        token_count=dataset.token_count,
        identities=dataset.identities,
    )


def write_sequences(
    path_prefixes: Iterable[str | Path],
    path: str | Path,
    *,
    storage_options: Mapping[str, Any] | Secret | StoreAccess | None = None,
    credentials: Credentials | None = None,
    remote: RemoteOptions | None = None,
) -> None:
    """Write the sequences file of corpora, sorted by prefix, atomically.

    Prefixes are written exactly as given, since a job looks a corpus up by the same text.

    Args:
        path_prefixes: prefixes of the corpora.
        path: local path of the sequences file.
        storage_options: options of the storage client, as for `IndexedDataset`.
        credentials: function that returns storage options, as for `IndexedDataset`.
        remote: how remote corpora are read, as for `IndexedDataset`.

    Raises:
        ConfigTypeError: not a list of paths. ConfigError: `path` is the URL of a store.
        The errors of `IndexedDataset` for a corpus that is missing or damaged.
    """
    target = local_path("path", path)
    access = StoreAccess.of(storage_options, credentials, remote)
    if isinstance(path_prefixes, str | PurePath) or not isinstance(path_prefixes, Iterable):
        raise ConfigTypeError(f"path_prefixes={censored_text(repr(path_prefixes))}: pass a list of prefixes.")
    prefixes = sorted({check_prefix("A prefix of path_prefixes", prefix) for prefix in path_prefixes})
    describe = partial(describe_corpus, storage_options=access)
    corpora = dict(zip(prefixes, map_watched(describe, prefixes, threads=_THREADS, name="tdu-tokens"), strict=True))
    content: dict[str, Any] = {
        prefix: [facts.sequence_count, facts.document_count] for prefix, facts in corpora.items()
    }
    extras = {prefix: _encode_extras(facts) for prefix, facts in corpora.items()}
    content[_EXTRAS] = {"version": _VERSION, "corpora": extras}
    with write_atomically(target) as file:
        file.write(json.dumps(content, indent=1).encode())


def _encode_extras(facts: CorpusFacts) -> dict[str, Any]:
    identities = facts.identities or ()
    return {"tokens": facts.token_count, "files": [[stat.size, stat.identity] for stat in identities]}


def read_sequences(path: str | Path) -> dict[str, CorpusFacts]:
    """Return the facts of every corpus in a sequences file, written by us or by Megatron-Core's tool.

    Raises:
        ConfigTypeError: not a path. ConfigError: the URL of a store, or a file of another version.
        NoDataError: the file does not exist. CorruptFileError: not JSON, or not a sequences file.
    """
    path = local_path("path", path)
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise NoDataError(f"There is no sequences file {path}. Check the path, or call write_sequences.") from error
    except ValueError as error:
        raise CorruptFileError(f"{path} is not JSON: {error}. Write the sequences file again.") from error
    if not isinstance(content, dict):
        raise CorruptFileError(f"{path} holds {of_type(content)}, not an object of prefixes.")
    extras = content.pop(_EXTRAS, {"version": _VERSION, "corpora": {}})
    try:
        version, known = extras["version"], extras["corpora"]
        corpora = {prefix: _decode(counts, known.get(prefix)) for prefix, counts in content.items()}
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CorruptFileError(f"{path} is not a sequences file ({error!r}). Write it again.") from error
    if version != _VERSION:
        raise ConfigError(f"{path} has version {version}; this release reads version {_VERSION}. Write it again.")
    return corpora


def select_facts(corpora: Mapping[str, CorpusFacts] | None, path_prefix: str) -> CorpusFacts | None:
    """Return the facts of one corpus; None without a sequences file.

    Raises:
        ConfigError: the sequences file does not list this corpus.
    """
    if corpora is None:
        return None
    if path_prefix not in corpora:
        raise ConfigError(
            f"The sequences file does not know {redact(path_prefix)}; it has {len(corpora)} others. Write it again."
        )
    return corpora[path_prefix]


def _decode(counts: Any, extras: Any) -> CorpusFacts:
    sequence_count, document_count = counts
    if not all(isinstance(count, int) and count >= 0 for count in (sequence_count, document_count)):
        raise TypeError(f"counts {counts!r}")
    files: Iterable[Any] = extras["files"] if extras else ()
    identities = tuple(FileStat(size=int(size), identity=str(identity)) for size, identity in files)
    return CorpusFacts(
        sequence_count=sequence_count,
        document_count=document_count,
        token_count=extras["tokens"] if extras else None,
        identities=(identities[0], identities[1]) if identities else None,
    )
