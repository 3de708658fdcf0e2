"""Nothing waits for a storage that is down once its answer is not needed: neither the end of a process nor an error."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.faults.s3_server import Action, Rule, S3Server, change, error
from tests.faults.tables import parquet_bytes, table
from tests.faults.web_server import listening
from torch_dataloader_utils import Decoding, RowDataset, StructuredDataset, pack_tokens
from torch_dataloader_utils._store import RemoteOptions, RetryPolicy, StoreAccess, open_store
from torch_dataloader_utils.discover import scan_files
from torch_dataloader_utils.errors import StoreError
from torch_dataloader_utils.megatron.corpora import write_sequences

# What is under way at the end is given up long before its time: the cap is ten minutes, a stall is one after five.
PROGRAM = """
import sys
from concurrent.futures import ThreadPoolExecutor
from tests.faults.s3_server import options_for
from torch_dataloader_utils._store import RemoteOptions, RetryPolicy, StoreAccess, open_store
from torch_dataloader_utils.errors import StoreError

policy = RetryPolicy(most_seconds=600, first_delay_seconds=600, most_delay_seconds=600, progress_seconds=300)
access = StoreAccess.of(options_for(int(sys.argv[1])), remote=RemoteOptions(retry=policy))
store = open_store("s3://bucket/good", access)
store.ranges("s3://bucket/good", [(0, 4)])

def read():
    try:
        store.ranges("s3://bucket/bad", [(0, 4)])
    except StoreError as error:
        print(error)

pool = ThreadPoolExecutor(1)
pool.submit(read)
sys.stdin.read(1)
"""


@pytest.mark.processes
@pytest.mark.cases(1)
@pytest.mark.parametrize("action", [error(503, "SlowDown"), change(stall_after=2)], ids=["waits", "stalls"])
def test_a_process_ends_though_a_request_is_under_way(server: S3Server, action: Action) -> None:
    for name in ("good", "bad"):
        server.put(name, b"0123456789")
    asked = threading.Event()

    def fail(server: S3Server, request: Any, reply: Any) -> None:
        action(server, request, reply)
        asked.set()

    server.rules.append(Rule(fail, key="bad", count=None))
    job = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(server.port)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert asked.wait(200)
        output, _ = job.communicate("\n", timeout=50)
    finally:
        job.kill()
        job.communicate()
    assert job.returncode == 0
    assert "a request to the storage was given up" in output


LOOK_UP = """
import sys
from concurrent.futures import ThreadPoolExecutor
from torch_dataloader_utils._store import open_store
from torch_dataloader_utils.errors import StoreError

url, method = sys.argv[1:]

def look_up():
    try:
        getattr(open_store(url), method)(url)
    except StoreError as error:
        print(error)

ThreadPoolExecutor(1).submit(look_up)
sys.stdin.read(1)
"""


@pytest.mark.processes
@pytest.mark.cases(1)
@pytest.mark.parametrize(("method", "place"), [("stat", "f"), ("list_files", "f"), ("list_files", "d/*.parquet")])
def test_a_process_ends_though_a_look_up_or_a_listing_is_under_way(method: str, place: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(200)
        job = subprocess.Popen(
            [sys.executable, "-c", LOOK_UP, f"http://127.0.0.1:{silent.getsockname()[1]}/{place}", method],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        connection = None
        try:
            connection, _ = silent.accept()
            assert connection.recv(1)
            output, _ = job.communicate("\n", timeout=50)
        finally:
            job.kill()
            job.communicate()
            if connection is not None:
                connection.close()
    assert job.returncode == 0
    assert "a request to the storage was given up" in output


@pytest.mark.slow
def test_a_look_up_that_a_web_server_does_not_answer_is_sent_again() -> None:
    given_up = threading.Event()

    class LosesHeads(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            if given_up.wait(20):  # as the test ends
                return
            self.answer(0)

        def do_GET(self) -> None:
            self.answer(1024)

        def answer(self, size: int) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(size))
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    access = StoreAccess.of(remote=RemoteOptions(retry=RetryPolicy(progress_seconds=0.1)))
    with listening(LosesHeads) as port:
        url = f"http://127.0.0.1:{port}/f"
        try:
            assert open_store(url, access).stat(url).size == 1024
        finally:
            given_up.set()


Job = Callable[[], object]


def _scan(access: StoreAccess) -> Job:
    return lambda: scan_files("s3://bucket/data", storage_options=access)


def _take(access: StoreAccess) -> Job:
    rows = RowDataset("s3://bucket/data", storage_options=access, decoding=Decoding(threads=8))
    return lambda: rows.take(range(0, len(rows), 100))


def _pack(access: StoreAccess) -> Job:
    inventory = scan_files("s3://bucket/data", storage_options=access)
    pack = pack_tokens("tokens", 8, counts="read")
    return lambda: StructuredDataset(
        [], inventory=inventory, pack=pack, storage_options=access, decoding=Decoding(threads=8)
    )


def _describe(access: StoreAccess) -> Job:
    prefixes = [f"s3://bucket/data/{number}" for number in range(2, 6)]
    return lambda: write_sequences(prefixes, "never-written", storage_options=access)


@pytest.mark.slow
@pytest.mark.parametrize("begin", [_scan, _take, _pack, _describe])
def test_what_fails_does_not_wait_for_what_else_is_under_way(begin: Callable[[StoreAccess], Job]) -> None:
    answered, may_go = threading.Event(), threading.Event()

    def stall(server: S3Server, request: Any, reply: Any) -> None:
        if not may_go.wait(60):
            answered.set()

    server = S3Server()
    before = set(threading.enumerate())
    try:
        for number in range(6):
            rows = table(300 * number, 300)
            tokens = pa.FixedSizeListArray.from_arrays(rows["row"].combine_chunks(), 1).cast(pa.list_(pa.int64()))
            server.put(f"data/{number}.parquet", parquet_bytes(rows.append_column("tokens", tokens)))
        job = begin(StoreAccess.of(server.storage_options, remote=RemoteOptions(keep_footers=False)))
        for method in ("GET", "HEAD"):
            server.rules.append(Rule(error(403, "AccessDenied"), method=method, key="data/2", count=None))
            server.rules.append(Rule(stall, method=method, key="data/[345]", count=None))
        with pytest.raises(StoreError, match="data/2"):
            job()
        assert not answered.is_set()
    finally:
        may_go.set()
        for thread in set(threading.enumerate()) - before:
            if thread.name.startswith("tdu-"):
                thread.join(60)
        server.close()
