"""Options of remote stores: another type or a value out of range is refused by name when they are made."""

import math
from typing import Any

import numpy as np
import pytest

from torch_dataloader_utils import CoalesceLimits, RemoteOptions, RetryPolicy
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError


@pytest.mark.parametrize(
    ("kind", "name", "value", "says"),
    [
        (RemoteOptions, "connections", "8", "connections='8': pass a whole number of at least 1"),
        (RemoteOptions, "keep_footers", "no", "keep_footers='no': pass True or False"),
        (RemoteOptions, "retry", 3, r"retry is an int: pass RetryPolicy\(\.\.\.\)"),
        (RemoteOptions, "coalesce", None, r"coalesce is a NoneType: pass CoalesceLimits\(\.\.\.\)"),
        (RetryPolicy, "most_seconds", "60", "most_seconds='60': pass a finite number of seconds"),
        (RetryPolicy, "progress_bytes", 1.5, r"progress_bytes=1\.5: pass a whole number of at least 1"),
        (CoalesceLimits, "hole_bytes", "x", "hole_bytes='x': pass a whole number of at least 0"),
        (CoalesceLimits, "most_waste", "x", "most_waste='x': pass a number, 0 or more"),
    ],
)
def test_another_type_is_refused(kind: Any, name: str, value: Any, says: str) -> None:
    with pytest.raises(ConfigTypeError, match=says):
        kind(**{name: value})


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (RemoteOptions, "connections", 0),
        (RetryPolicy, "most_seconds", math.inf),
        (RetryPolicy, "first_delay_seconds", -1),
        (RetryPolicy, "progress_seconds", 0),
        (RetryPolicy, "progress_bytes", 0),
        (CoalesceLimits, "hole_bytes", -1),
        (CoalesceLimits, "most_bytes", 0),
        (CoalesceLimits, "most_waste", math.nan),
    ],
)
def test_a_value_out_of_range_is_refused(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name}={value}"):
        kind(**{name: value})


def test_numpy_numbers_are_taken_and_waste_may_have_no_limit() -> None:
    retry = RetryPolicy(most_seconds=np.float32(2), progress_bytes=np.int64(5))
    limits = CoalesceLimits(hole_bytes=np.int64(0), most_waste=math.inf)
    given = RemoteOptions(retry=retry, coalesce=limits, connections=np.int32(4), keep_footers=np.False_)
    assert repr(given) == repr(
        RemoteOptions(
            retry=RetryPolicy(most_seconds=2.0, progress_bytes=5),
            coalesce=CoalesceLimits(hole_bytes=0, most_waste=math.inf),
            connections=4,
            keep_footers=False,
        )
    )
