"""How long a pass still takes."""


def seconds_left(rows: int, num_rows: int | None, rows_per_second: float) -> float | None:
    """Seconds until all rows are through at this pace; None where that cannot be said."""
    if num_rows is None or rows_per_second <= 0:
        return None
    return max(0, num_rows - rows) / rows_per_second
