"""One server and one open client for all tests: opening a client takes s3fs half a second."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.faults.s3_server import S3Server
from torch_dataloader_utils._store import RemoteOptions, RetryPolicy, StoreAccess

# Without second requests, since tests count requests, and on a busy machine any reply may be late.
QUICK = RetryPolicy(most_seconds=20, first_delay_seconds=0.001, most_delay_seconds=0.01, hedge_share=0)
# On a busy machine it gives up replies that do come, too: for tests that do not count requests.
IMPATIENT = replace(QUICK, progress_seconds=0.3, progress_bytes=16 << 10)
# On a busy machine too it gives up only replies that have stopped: for tests that say which requests are made.
WATCHFUL = replace(IMPATIENT, progress_seconds=3)


@pytest.fixture(scope="session")
def lasting_server() -> Iterator[S3Server]:
    made = S3Server()
    yield made
    made.close()


@pytest.fixture
def server(lasting_server: S3Server) -> Iterator[S3Server]:
    """A server without objects, rules or memories."""
    lasting_server.reset()
    yield lasting_server
    lasting_server.reset()
    assert lasting_server.outlasted == 0


@pytest.fixture(scope="session")
def access(lasting_server: S3Server) -> StoreAccess:
    """How to reach it, with short waits and without caches."""
    remote = RemoteOptions(backend="fsspec", retry=QUICK, keep_footers=False)
    return StoreAccess.of(lasting_server.storage_options, remote=remote)


@pytest.fixture(scope="session")
def impatient_access(access: StoreAccess) -> StoreAccess:
    """By the same client; a reply that stalls is soon asked for again."""
    return replace(access, remote=replace(access.remote, retry=IMPATIENT))


@pytest.fixture(scope="session")
def watchful_access(access: StoreAccess) -> StoreAccess:
    """By the same client; a reply that stalls, and no other, is asked for again."""
    return replace(access, remote=replace(access.remote, retry=WATCHFUL))
