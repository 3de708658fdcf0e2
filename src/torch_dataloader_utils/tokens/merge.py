"""Finding the corpora of a directory, and merging corpora into one."""

from collections.abc import Sequence
from pathlib import Path

from torch_dataloader_utils._store import censored_text
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, NoDataError
from torch_dataloader_utils.tokens.builder import IndexedDatasetBuilder
from torch_dataloader_utils.tokens.indexed_dataset import IndexedDataset
from torch_dataloader_utils.tokens.local_files import local_path
from torch_dataloader_utils.tokens.open_corpus import bin_path, index_path


def find_corpora(directory: str | Path) -> list[str]:
    """Prefixes of all corpora directly in `directory`, sorted by name; the order a merge of the directory takes.

    At least one: a merge of several directories would leave out an empty one without a word.

    Raises:
        ConfigTypeError: no path. NoDataError: no such directory on a local disk, or no corpus in it.
        ConfigError: an .idx without its .bin, or the other way round; the URL of a store.
    """
    folder = local_path("directory", directory)
    if not folder.is_dir():
        raise NoDataError(f"There is no directory {folder}. Check the spelling, or list its parent directory.")
    indexes = {path.with_suffix("") for path in folder.glob("*.idx")}
    bins = {path.with_suffix("") for path in folder.glob("*.bin")}
    if lonely := indexes ^ bins:
        raise ConfigError(f"{sorted(map(str, lonely))[0]} has only one of its two files. Remove it or build it again.")
    if not indexes:
        raise NoDataError(f"There is no corpus in {folder}, no .idx beside a .bin. Name the directory that has them.")
    return sorted(str(prefix) for prefix in indexes)


def merge_corpora(path_prefixes: Sequence[str], output_prefix: str, *, multimodal: bool = False) -> None:
    """Append the corpora in the given order into one; it takes the dtype of the first.

    Raises:
        ConfigTypeError: no list of paths.
        ConfigError: nothing to merge, a corpus that is not on a local disk, or the output among what is merged.
        SchemaError: dtypes differ, or some corpora have modes: all of them must with `multimodal`, none without.
    """
    if isinstance(path_prefixes, str) or not isinstance(path_prefixes, Sequence):
        raise ConfigTypeError(f"path_prefixes={censored_text(repr(path_prefixes))}: pass a list of prefixes.")
    if not path_prefixes:
        raise ConfigError("There is no corpus to merge: path_prefixes is empty. Pass one prefix or more.")
    # Checked before any corpus is opened.
    merged = [local_path("path_prefix", path_prefix).resolve() for path_prefix in path_prefixes]
    if local_path("output_prefix", output_prefix).resolve() in merged:
        raise ConfigError(
            f"{output_prefix} is both merged and written, as when a merge of its directory is repeated: its documents "
            "would come again each time. Leave it out of path_prefixes, or write another one."
        )
    dtype = IndexedDataset(path_prefixes[0], multimodal=multimodal).dtype
    with IndexedDatasetBuilder(bin_path(output_prefix), dtype=dtype, multimodal=multimodal) as builder:
        for path_prefix in path_prefixes:
            builder.add_index(path_prefix)
        builder.finalize(index_path(output_prefix))
