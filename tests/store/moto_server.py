"""moto's S3 over HTTP, which counts its requests and fails those that a test chooses."""

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

from tests.faults.s3_server import error_body, options_for

BUCKET = "bucket"


@dataclass
class Failure:
    """Answers requests that match number first to first + count - 1 (None: all from `first` on) with an error.

    path: a pattern for path and query, such as r"/a\\.bin\\?.*partNumber=2". takes_effect: only the answer is lost.
    meanwhile: called before it is answered.
    """

    method: str
    path: str
    first: int = 0
    count: int | None = None
    status: str = "503 Slow Down"
    code: str = "SlowDown"
    takes_effect: bool = False
    meanwhile: Callable[[], object] = int
    seen: int = 0

    def applies(self, method: str, path: str) -> bool:
        """Whether this request fails; counts it if it matches."""
        if method != self.method or not re.search(self.path, path):
            return False
        number, self.seen = self.seen, self.seen + 1
        return number >= self.first and (self.count is None or number < self.first + self.count)


@dataclass
class MotoS3:
    """options: for s3fs. client: boto3's. requests: (method, path and query, range) of each request so far."""

    options: dict[str, Any]
    client: Any
    failures: list[Failure] = field(default_factory=list)
    requests: list[tuple[str, str, str]] = field(default_factory=list)

    def reset(self) -> None:
        """An empty bucket, no failures, nothing counted."""
        self.failures.clear()
        for found in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
            self.client.delete_object(Bucket=BUCKET, Key=found["Key"])
        self.requests.clear()

    def names(self) -> list[str]:
        """Names of all objects, sorted."""
        return sorted(found["Key"] for found in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", ()))

    def put(self, key: str, data: bytes) -> str:
        """Store an object; its URL."""
        self.client.put_object(Bucket=BUCKET, Key=key, Body=data)
        return f"s3://{BUCKET}/{key}"

    def get(self, key: str) -> bytes:
        """The content of an object."""
        data: bytes = self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return data

    def counts(self) -> dict[str, int]:
        """Requests by method since the last reset."""
        methods = [method for method, _, _ in self.requests]
        return {method: methods.count(method) for method in sorted(set(methods))}

    def expiring(self) -> tuple[dict[str, Any], Callable[[], dict[str, Any]], list[int]]:
        """Options without their secret, the function that gives it, and a list that grows with each call of that."""
        asked: list[int] = []

        def credentials() -> dict[str, Any]:
            asked.append(1)
            return {"secret": "canary"}

        return {name: value for name, value in self.options.items() if name != "secret"}, credentials, asked

    def answer(self, inner: Callable[..., Any], environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        """The WSGI application."""
        path = f"{environ['PATH_INFO']}?{environ['QUERY_STRING']}"
        method = environ["REQUEST_METHOD"]
        self.requests.append((method, path, environ.get("HTTP_RANGE", "")))
        failing = [failure for failure in list(self.failures) if failure.applies(method, path)]
        if not failing:
            return inner(environ, start_response)
        if failing[0].takes_effect:
            list(inner(environ, lambda *_: None))
        else:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        failing[0].meanwhile()
        body = b"" if method == "HEAD" else error_body(failing[0].code)
        start_response(failing[0].status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]


class Silence:
    """A request that is not answered until the test has ended: wait is what `Failure.meanwhile` calls.

    outlasted: whether somebody waited for the answer for too long. It ends before clients give up by themselves (s3fs
    after 15 s), which must not be what ends a wait.
    """

    def __init__(self) -> None:
        self.outlasted = False
        self._over = threading.Event()
        self._interrupted = threading.Event()

    def __enter__(self) -> "Silence":
        self._handler = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        signal.signal(signal.SIGINT, self._handler)

    def wait(self) -> None:
        """Until the block has ended."""
        self.outlasted |= not self._over.wait(10)

    def interrupt_and_wait(self) -> None:
        """As `wait`; the main thread gets Ctrl-C meanwhile."""
        # Again if need be: Python does not hear of a signal that comes just before it begins to wait for a lock.
        while not self._interrupted.wait(0.1):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        self.wait()

    def _interrupt(self, *_: object) -> None:
        if not self._interrupted.is_set():
            self._interrupted.set()
            raise KeyboardInterrupt


@contextmanager
def running_moto() -> Iterator[tuple[Any, Any]]:
    """(server, boto3 client) of a running server with one bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{server._server.server_port}",
        aws_access_key_id="test-key",
        aws_secret_access_key="test-secret",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=BUCKET)
    try:
        yield server._server, client
    finally:
        client.close()
        server.stop()


@contextmanager
def moto_s3() -> Iterator[MotoS3]:
    """A running server that counts and fails."""
    with running_moto() as (server, client):
        made = MotoS3(options=options_for(server.server_port), client=client)
        inner = server.app
        server.app = lambda environ, start_response: made.answer(inner, environ, start_response)
        yield made
