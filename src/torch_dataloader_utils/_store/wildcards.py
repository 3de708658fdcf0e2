"""Patterns of paths: which paths are patterns, and whether they are well formed."""

import re

from torch_dataloader_utils._core.paths import redact
from torch_dataloader_utils.errors import ConfigError

_WILDCARDS = frozenset("*?[")


def is_web(path: str) -> bool:
    """Return whether the path is a URL of a web server, where "?" begins a query and directories are pages of links."""
    return path.startswith(("http://", "https://"))


def is_pattern(path: str) -> bool:
    """Return whether the path or URL has a wildcard; on a web server only "*" counts, and not in the query."""
    if is_web(path):
        return "*" in path.partition("?")[0]
    return not _WILDCARDS.isdisjoint(path)


def check_pattern(pattern: str) -> None:
    """Raise ConfigError unless each "**" of a pattern (a path or URL) is a whole part.

    Inside a name, glob takes "**" for "*", other tools for any depth, and fsspec refuses it.

        data/**/*.csv      a**.csv ConfigError

    Raises:
        ConfigError: a "**" is only a part of a name.
    """
    own = pattern.partition("?")[0] if is_web(pattern) else pattern
    wrong = next((part for part in own.split("/") if "**" in part and part != "**"), None)
    if wrong is not None:
        name = re.sub(r"\*+", "*", wrong)
        raise ConfigError(
            f'{redact(pattern)}: "**" is any number of directories, and must stand between slashes alone. Instead of '
            f'"{wrong}" write "{name}" for names in one directory, or "**/{name}" for names at any depth.'
        )


def before_wildcard(path: str) -> str:
    """Return the directory above the first part that has a wildcard.

    /data/year=*/part-*.parquet      /data
    """
    wildcards = frozenset("*") if is_web(path) else _WILDCARDS
    parts = path.split("/")
    first = next((i for i, part in enumerate(parts) if not wildcards.isdisjoint(part)), len(parts) - 1)
    return "/".join(parts[:first])
