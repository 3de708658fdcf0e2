from typing import Any

Chunk = tuple[Any, ...]

def decode(
    chunks: list[Chunk], most_page_bytes: int, checks_pages: bool, file: int = -1
) -> list[tuple[int, int, str, int]]: ...
def count_values(pages: Any) -> int: ...
def has_codec(codec: int) -> bool: ...
def decode_groups(
    pages: Any,
    memory: Any,
    columns: Any,
    chunks: Any,
    rows: Any,
    nulls: Any,
    most_page_bytes: int,
    checks_pages: bool,
) -> str: ...
def read_footer(footer: Any) -> tuple[int, int, int, int, int, bytes] | None: ...
