"""A reply that does not begin costs a second request and not a wait; second requests are few, and counted."""

import asyncio
import importlib.util
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from tests.faults.conftest import QUICK
from tests.faults.s3_server import Action, Reply, Request, Rule, S3Server, change, error
from tests.faults.tables import assert_rows, upload
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils._observe.counters import thread_counts
from torch_dataloader_utils._store import RemoteOptions, StoreAccess, hedge, open_store
from torch_dataloader_utils._store.conditional_reads import RangeReply
from torch_dataloader_utils._store.hedge import Race, ReplyTimes, run_races
from torch_dataloader_utils.errors import StoreError

BACKENDS = ["fsspec", "obstore"] if importlib.util.find_spec("obstore") else ["fsspec"]
SPAN = (100, 50_000)
CONTENT = bytes(range(256)) * 400


@pytest.fixture(params=BACKENDS)
def hedging(request: pytest.FixtureRequest, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> StoreAccess:
    """Replies that have not begun at once are late, whatever the machine does."""
    monkeypatch.setattr(hedge, "_UNKNOWN_SECONDS", 0.01)
    remote = RemoteOptions(backend=request.param, retry=replace(QUICK, hedge_share=1), keep_footers=False)
    return StoreAccess.of(server.storage_options, remote=remote)


def once_asked(least: int) -> Action:
    """Answers when so many requests have come, or when the test is over."""

    def act(server: S3Server, request: Request, reply: Reply) -> None:
        server.wait_for_requests(least)

    return act


def silence(server: S3Server, request: Request, reply: Reply) -> None:
    """Answers when the test is over; a client that waits for it has waited too long."""
    server.outlasted += not server.done.wait(10)


def read(store: Any, url: str, identity: str) -> tuple[bytes, dict[str, int]]:
    """The bytes of the span, and what was counted meanwhile."""
    counts = thread_counts()
    names = ("requests", "hedges", "retries", "fetched_bytes")
    before = {name: getattr(counts, name) for name in names}
    (data,) = store.ranges(url, [SPAN], identity)
    return bytes(data), {name: getattr(counts, name) - before[name] for name in names}


def test_a_silent_reply_is_overtaken_and_counted_once(server: S3Server, hedging: StoreAccess) -> None:
    url = server.put("a", CONTENT)
    server.rules[:] = [Rule(silence)]
    data, counted = read(open_store(url, hedging), url, server.objects["a"][1])
    assert data == CONTENT[SPAN[0] : sum(SPAN)]
    assert counted == {"requests": 2, "hedges": 1, "retries": 0, "fetched_bytes": SPAN[1]}
    assert server.rules[0].seen == 2


def test_two_replies_at_once_give_the_bytes_once(server: S3Server, hedging: StoreAccess) -> None:
    url = server.put("a", CONTENT)
    store, identity = open_store(url, hedging), server.objects["a"][1]
    server.rules[:] = [Rule(once_asked(2), count=None)]
    data, counted = read(store, url, identity)
    assert data == CONTENT[SPAN[0] : sum(SPAN)]
    assert counted == {"requests": 2, "hedges": 1, "retries": 0, "fetched_bytes": SPAN[1]}


def test_a_refusal_after_a_second_request_is_told(server: S3Server, hedging: StoreAccess) -> None:
    url = server.put("a", CONTENT)
    server.rules[:] = [Rule(once_asked(2), count=None), Rule(error(403, "AccessDenied"), count=None)]
    with pytest.raises(StoreError, match="no permission to read"):
        read(open_store(url, hedging), url, server.objects["a"][1])
    assert server.rules[0].seen == 2


def test_rows_are_the_same_and_the_loader_counts(server: S3Server, hedging: StoreAccess) -> None:
    total = upload(server)
    loader, _ = StructuredDataset.create_dataloader(
        "s3://bucket/data", batch_size=64, num_workers=0, storage_options=hedging
    )
    server.rules[:] = [Rule(silence, key="data/", first=1)]
    assert_rows(loader, total)
    assert loader.metrics().hedges >= 1


@pytest.mark.parametrize(("share", "most"), [(0.0, 0), (0.05, 2 + 5), (0.5, 2 + 50), (1.0, 100)])
def test_second_requests_are_a_share_of_all(share: float, most: int) -> None:
    times, hedges = ReplyTimes(), 0
    for _ in range(100):
        times.sent()
        hedges += times.allows_hedge(share)
    assert hedges == most


def test_the_limit_is_later_than_nearly_all_replies_and_follows_them() -> None:
    times = ReplyTimes()
    for _ in range(15):
        times.began(0.01)
    assert times.limit_seconds == hedge._UNKNOWN_SECONDS
    times.began(0.01)
    assert times.limit_seconds == hedge._LEAST_SECONDS
    for _ in range(200):
        times.began(2.0)
    assert times.limit_seconds == hedge._TIMES * 2.0
    for _ in range(200):
        times.began(0.01)
    assert times.limit_seconds == hedge._LEAST_SECONDS


def test_a_reply_that_begins_second_takes_no_byte() -> None:
    taken: list[str] = []

    async def run() -> None:
        first_may_begin = asyncio.Event()
        names = iter(["first", "second"])

        async def fetch() -> None:
            name = next(names)
            if name == "first":
                # A client that takes no notice of a cancellation.
                with suppress(asyncio.CancelledError):
                    await first_may_begin.wait()
            race.begun()
            taken.append(name)
            first_may_begin.set()

        race = Race(ReplyTimes(), fetch)
        assert await run_races([race], ReplyTimes(), 1.0, lambda: None) == [None]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hedge, "_UNKNOWN_SECONDS", 0.0)
        asyncio.run(run())
    assert taken == ["second"]


class Pieces:
    """A body of given pieces; `meanwhile` runs before each."""

    def __init__(self, pieces: list[bytes], meanwhile: Any = int) -> None:
        self.pieces, self.meanwhile = pieces, meanwhile

    async def read(self, _: int) -> bytes:
        self.meanwhile()
        return self.pieces.pop(0)


def test_no_byte_is_written_for_a_caller_that_has_left() -> None:
    memory = memoryview(bytearray(6))
    reply = RangeReply((0, 6), None, memory)
    body = Pieces([b"ab", b"cd", b"ef"])
    # The second piece comes after the caller was interrupted, and uses its memory for something else.
    body.meanwhile = lambda: len(body.pieces) == 2 and (reply.detach(), memory.__setitem__(slice(None), b"------"))
    asyncio.run(reply.receive(body, QUICK))
    assert bytes(memory) == b"------"
    assert bytes(reply.data) == b"abcdef"


@pytest.mark.parametrize("backend", BACKENDS)
def test_bytes_come_into_the_memory_of_the_caller_whatever_happens(server: S3Server, backend: Any) -> None:
    remote = RemoteOptions(backend=backend, retry=QUICK, keep_footers=False)
    url = server.put("a", CONTENT)
    server.rules[:] = [Rule(change(cut_after=20_000)), Rule(error(503, "SlowDown"), first=1)]
    memory = memoryview(bytearray(60_000))
    spans = [SPAN, (60_000, 10_000), (70_000, 10)]
    buffers = [memory[:50_000], memory[50_000:59_990], memory[59_990:]]
    spans = [(start, len(buffer)) for (start, _), buffer in zip(spans, buffers, strict=True)]
    open_store(url, StoreAccess.of(server.storage_options, remote=remote)).read_into(url, spans, buffers)
    assert [bytes(buffer) for buffer in buffers] == [CONTENT[start : start + length] for start, length in spans]
    assert server.rules[1].seen > 2


def test_an_interrupted_fetch_cancels_both_requests() -> None:
    cancelled: list[int] = []

    async def run() -> None:
        under_way = asyncio.Event()
        number = 0

        async def fetch() -> None:
            nonlocal number
            number += 1
            if number == 2:
                under_way.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(1)
                raise

        times = ReplyTimes()
        fetching = asyncio.ensure_future(run_races([Race(times, fetch)], times, 1.0, lambda: None))
        await under_way.wait()
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        await asyncio.sleep(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hedge, "_UNKNOWN_SECONDS", 0.0)
        asyncio.run(run())
    assert cancelled == [1, 1]
