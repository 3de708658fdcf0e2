"""`tdu cache`: shows, checks or removes a cache on this host's disk."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import click

from torch_dataloader_utils._core.arguments import format_bytes
from torch_dataloader_utils.cli.options import json_option
from torch_dataloader_utils.cli.output import emit_json, print_facts, say
from torch_dataloader_utils.errors import NoDataError, plural

_EXAMPLES = """\b
Examples:
  tdu cache show /nvme                   size, and ranks that read it
  tdu cache verify /nvme                 check every entry, and remove damaged entries
  tdu cache clear /nvme                  remove the cache
"""


@click.group("cache", epilog=_EXAMPLES)
def command() -> None:
    """Show, check or remove a cache on this host's disk.

    DIRECTORY is the directory of HostCache(directory, max_bytes=...). A job that uses the cache may run meanwhile.
    """


_directory = click.argument("directory", type=click.Path(file_okay=False, path_type=Path))


def _subcommand(function: Callable[..., None]) -> Callable[..., None]:
    return command.command(function.__name__)(_directory(json_option(function)))


@_subcommand
def show(directory: Path, as_json: bool) -> None:
    """Show entries, bytes, and the number of ranks with known next reads."""
    from torch_dataloader_utils.cache.entries import EntryFiles, is_value
    from torch_dataloader_utils.cache.schedules import ReadSchedules

    root = _root(directory)
    sizes = list(EntryFiles(root).sizes())
    ranges = [size for name, size in sizes if not is_value(name)]
    values = [size for name, size in sizes if is_value(name)]
    ranks = len(ReadSchedules(root).living()) if (root / "schedules").is_dir() else 0
    if as_json:
        facts = {
            "entries": len(ranges),
            "entry_bytes": sum(ranges),
            "values": len(values),
            "value_bytes": sum(values),
        }
        emit_json({"directory": str(root), **facts, "ranks": ranks})
        return
    print_facts(
        [
            ("directory", str(root)),
            ("entries", f"{plural(len(ranges), 'range')}, {format_bytes(sum(ranges))}"),
            ("values", f"{len(values):,} (footers, row counts), {format_bytes(sum(values))}"),
            ("read by", plural(ranks, "rank")),
        ]
    )


@_subcommand
def verify(directory: Path, as_json: bool) -> None:
    """Check the bytes of every entry; remove damaged entries, which are fetched again when needed."""
    from torch_dataloader_utils._observe.work_bar import work_bar
    from torch_dataloader_utils._runtime.parallel import watched
    from torch_dataloader_utils.cache.entries import DamagedEntryError
    from torch_dataloader_utils.cache.index import CacheIndex

    index = CacheIndex(_root(directory), 0)
    names = [name for name, _ in index.files.sizes()]
    whole = damaged = 0
    with work_bar("entries") as on_progress:
        for name in watched(names, len(names), on_progress):
            try:
                whole += index.files.read(name) is not None
            except DamagedEntryError:
                damaged += 1
                index.remove(name)
    if as_json:
        emit_json({"whole": whole, "damaged": damaged})
        return
    say(f"Entries: {whole:,} whole, {damaged:,} damaged and removed.")


@_subcommand
def clear(directory: Path, as_json: bool) -> None:
    """Remove the cache from the directory; other files stay."""
    from torch_dataloader_utils.cache.entries import EntryFiles

    root = _root(directory)
    num_bytes = sum(size for _, size in EntryFiles(root).sizes())
    # In one step: a running job makes a new cache.
    aside = root.with_name(f"{root.name}-removed-{os.getpid()}")
    root.rename(aside)
    shutil.rmtree(aside)
    if as_json:
        emit_json({"removed_bytes": num_bytes})
        return
    say(f"Removed {format_bytes(num_bytes)}.")


def _root(directory: Path) -> Path:
    """Return this user's cache in a directory.

    Raises:
        NoDataError: the directory has no cache of this user.
    """
    from torch_dataloader_utils.cache.host_cache import cache_root

    root = cache_root(directory.absolute())
    if not root.is_dir():
        raise NoDataError(f"{directory} has no cache of this user. Pass the directory of HostCache(directory, ...).")
    return root
