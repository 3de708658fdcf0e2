"""Which paths are patterns."""

_WILDCARDS = frozenset("*?[")


def is_pattern(path: str) -> bool:
    """Whether the path or URL holds a wildcard. In http "?" starts the query, so that only "*" counts there."""
    if path.startswith(("http://", "https://")):
        return "*" in path.partition("?")[0]
    return not _WILDCARDS.isdisjoint(path)


def before_wildcard(path: str) -> str:
    """The directory above the first part that holds a wildcard.

    /data/year=*/part-*.parquet      /data
    """
    parts = path.split("/")
    first = next((i for i, part in enumerate(parts) if is_pattern(part)), len(parts) - 1)
    return "/".join(parts[:first])
