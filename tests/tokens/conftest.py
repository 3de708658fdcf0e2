"""The S3 server of the storage tests."""

from tests.store.conftest import lasting_s3, s3, s3_access

__all__ = ["lasting_s3", "s3", "s3_access"]
