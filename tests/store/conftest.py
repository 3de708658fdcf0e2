"""One moto server for all tests of a folder: starting it takes a second, opening a client half of one."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import QUICK
from tests.store.moto_server import MotoS3, moto_s3
from torch_dataloader_utils._store import RemoteOptions, StoreAccess


@pytest.fixture(scope="session")
def lasting_s3() -> Iterator[MotoS3]:
    with moto_s3() as made:
        yield made


@pytest.fixture
def s3(lasting_s3: MotoS3) -> Iterator[MotoS3]:
    """A server with an empty bucket."""
    lasting_s3.reset()
    yield lasting_s3
    lasting_s3.reset()


@pytest.fixture(scope="session")
def s3_access(lasting_s3: MotoS3) -> StoreAccess:
    """How to reach it, with short waits."""
    return StoreAccess.of(lasting_s3.options, remote=RemoteOptions(backend="fsspec", retry=QUICK, keep_footers=False))


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user may read, unlike those of pytest."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    yield place
    for directory in place.rglob("*"):
        directory.chmod(0o755)
    shutil.rmtree(place)
