"""Which paths are patterns."""

_WILDCARDS = frozenset("*?[")


def is_web(path: str) -> bool:
    """Whether the path is a URL of a web server, where "?" begins a query and directories are pages with links."""
    return path.startswith(("http://", "https://"))


def is_pattern(path: str) -> bool:
    """Whether the path or URL holds a wildcard; of a web server only "*" counts, and not in the query."""
    if is_web(path):
        return "*" in path.partition("?")[0]
    return not _WILDCARDS.isdisjoint(path)


def before_wildcard(path: str) -> str:
    """The directory above the first part that holds a wildcard.

    /data/year=*/part-*.parquet      /data
    """
    wildcards = frozenset("*") if is_web(path) else _WILDCARDS
    parts = path.split("/")
    first = next((i for i, part in enumerate(parts) if not wildcards.isdisjoint(part)), len(parts) - 1)
    return "/".join(parts[:first])
