"""How long a pass still takes, in words."""

import pytest

from torch_dataloader_utils._observe.progress_bars import time_left


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00 left"), (59.6, "1:00 left"), (3599.4, "59:59 left"), (3700, "1:01:40 left")]
)
def test_hours_are_told_where_there_are_some(seconds, text):
    assert time_left(seconds) == text
