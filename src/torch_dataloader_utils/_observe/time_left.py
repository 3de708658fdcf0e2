"""The time that a pass still takes, in seconds and as text."""


def seconds_left(rows: int, num_rows: int | None, rows_per_second: float) -> float | None:
    """Seconds until all rows are delivered at this rate; None if that is not known."""
    if num_rows is None or rows_per_second <= 0:
        return None
    return max(0, num_rows - rows) / rows_per_second


def time_left(seconds: float) -> str:
    """The time left, in words for people.

    52.2   "0:52 left"      3700   "1:01:40 left"
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02} left" if hours else f"{minutes}:{seconds:02} left"
