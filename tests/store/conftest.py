"""One moto server for all tests of a folder: starting it takes a second, opening a client half of one."""

from collections.abc import Iterator

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
    return StoreAccess.of(lasting_s3.options, remote=RemoteOptions(retry=QUICK, keep_footers=False))
