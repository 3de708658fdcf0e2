"""Tests of cached tables read them from the store that the tests of storage read."""

from tests.store.conftest import lasting_s3, open_place, s3

__all__ = ["lasting_s3", "open_place", "s3"]
