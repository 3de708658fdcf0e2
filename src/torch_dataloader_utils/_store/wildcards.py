"""Patterns of paths: which paths are patterns, and whether they are well formed."""

import re

from torch_dataloader_utils._core.paths import redact
from torch_dataloader_utils.errors import ConfigError

_WILDCARDS = frozenset("*?[")


def is_web(path: str) -> bool:
    """Whether the path is a URL of a web server, where "?" begins a query and directories are pages with links."""
    return path.startswith(("http://", "https://"))


def is_pattern(path: str) -> bool:
    """Whether the path or URL holds a wildcard; of a web server only "*" counts, and not in the query."""
    if is_web(path):
        return "*" in path.partition("?")[0]
    return not _WILDCARDS.isdisjoint(path)


def check_pattern(pattern: str) -> None:
    """Raises ConfigError unless each "**" of a path or URL that is a pattern is a whole part.

    Inside of a name, glob takes it for "*", other tools for any depth, and fsspec refuses it.

        data/**/*.csv      a**.csv ConfigError

    Raises:
        ConfigError: one is not.
    """
    own = pattern.partition("?")[0] if is_web(pattern) else pattern
    wrong = next((part for part in own.split("/") if "**" in part and part != "**"), None)
    if wrong is not None:
        name = re.sub(r"\*+", "*", wrong)
        raise ConfigError(
            f'{redact(pattern)}: "**" is any number of directories, and must stand between slashes alone. Instead of '
            f'"{wrong}" write "{name}" for names in one directory, or "**/{name}" for those at any depth.'
        )


def before_wildcard(path: str) -> str:
    """The directory above the first part that holds a wildcard.

    /data/year=*/part-*.parquet      /data
    """
    wildcards = frozenset("*") if is_web(path) else _WILDCARDS
    parts = path.split("/")
    first = next((i for i, part in enumerate(parts) if not wildcards.isdisjoint(part)), len(parts) - 1)
    return "/".join(parts[:first])
