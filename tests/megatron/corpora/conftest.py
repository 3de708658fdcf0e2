"""The S3 server of the storage tests, and the corpus of the format's worked example."""

from pathlib import Path

import pytest

from tests.megatron.corpora.corpora import EXAMPLE, write_corpus
from tests.store.conftest import lasting_s3, s3, s3_access

__all__ = ["lasting_s3", "s3", "s3_access"]


@pytest.fixture
def example(tmp_path: Path) -> str:
    """Its prefix."""
    return write_corpus(tmp_path / "example", EXAMPLE)
