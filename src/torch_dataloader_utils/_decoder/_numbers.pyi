from typing import Any

def decode(
    pages: Any,
    memory: Any,
    columns: Any,
    chunks: Any,
    rows: Any,
    results: Any,
    most_page_bytes: int,
    checks_pages: bool,
    file: int = -1,
) -> list[str]: ...
def gather(parts: Any, part_rows: Any, outs: Any, width: int, order: Any, scratch: Any) -> None: ...
def count_values(pages: Any) -> int: ...
def has_codec(codec: int) -> bool: ...
def read_footer(footer: Any) -> tuple[int, int, int, int, int, bytes] | None: ...
