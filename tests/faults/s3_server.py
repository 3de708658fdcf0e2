"""An S3 server that misbehaves on request: objects in memory, GET and HEAD with ranges and conditions, listings.

What moto does well (conformance) is left to moto; this one exists to fail the n-th matching request in a given way,
and to count. Errors are S3's XML, so that clients see what they would see of S3.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"

# Less than the time-outs of storage clients (15 s in s3fs), which must not be what ends a wait.
_STALL_SECONDS = 10


@dataclass(frozen=True)
class Request:
    """One request as it came: span is (start, stop) of a ranged GET. sent: bytes of the body of the reply."""

    method: str
    key: str
    span: tuple[int, int] | None
    token: str
    if_match: str
    sent: int = 0


@dataclass
class Reply:
    """What is about to be answered; an action changes it.

    cut_after: bytes of the body after which the connection is reset. stall_after: bytes after which nothing comes.
    drip: bytes of the body every hundredth of a second.
    """

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut_after: int | None = None
    stall_after: int | None = None
    drip: int = 0
    delay_seconds: float = 0.0


Action = Callable[["S3Server", Request, Reply], None]


@dataclass
class Rule:
    """Does `action` to matching requests number first to first + count - 1 (None: to all from `first` on)."""

    action: Action
    method: str = "GET"
    key: str = "."
    first: int = 0
    count: int | None = 1
    seen: int = 0

    def applies(self, request: Request) -> bool:
        """Whether this request is one of them; counts it if it matches."""
        if request.method != self.method or not re.search(self.key, request.key):
            return False
        number, self.seen = self.seen, self.seen + 1
        return number >= self.first and (self.count is None or number < self.first + self.count)


def error(status: int, code: str, **headers: str) -> Action:
    """An S3 error."""

    def act(server: "S3Server", request: Request, reply: Reply) -> None:
        reply.status, reply.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}
        reply.body = b"" if request.method == "HEAD" else error_body(code)

    return act


def change(**changes: Any) -> Action:
    """Sets fields of the reply."""

    def act(server: "S3Server", request: Request, reply: Reply) -> None:
        for name, value in changes.items():
            setattr(reply, name, value)

    return act


def once_in_flight(least: int) -> Action:
    """Answers as soon as so many requests were under way at once, or after long."""

    def act(server: "S3Server", request: Request, reply: Reply) -> None:
        server.wait_for_requests(least)

    return act


def replace_object(key: str, data: bytes | None) -> Action:
    """Replaces (None: deletes) an object after this request was answered from the old one."""

    def act(server: "S3Server", request: Request, reply: Reply) -> None:
        server.objects.pop(key, None)
        if data is not None:
            server.put(key, data)

    return act


def error_body(code: str, token: str = "") -> bytes:
    """What S3 says of a failure; of a session token, the token too."""
    repeated = f"<Token-0>{token}</Token-0>" if token else ""
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message>{repeated}</Error>".encode()


class S3Server:
    """objects: (data, etag) by key. latency_seconds: before each answer. accepted_tokens: None for any.

    outlasted: replies that stalled for longer than any client should wait for them.
    """

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.rules: list[Rule] = []
        self.requests: list[Request] = []
        self.latency_seconds = 0.0
        self.page_keys = 1000
        self.accepted_tokens: set[str] | None = None
        self.most_in_flight = 0
        self.outlasted = 0
        self.done = threading.Event()
        self._in_flight = self._round = 0
        self._lock = threading.Condition()
        self._httpd = _Httpd(("127.0.0.1", 0), _Handler)
        self._httpd.s3 = self
        self._thread = threading.Thread(target=self._httpd.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._httpd.server_address[1])

    @property
    def storage_options(self) -> dict[str, Any]:
        """For s3fs."""
        return options_for(self.port)

    def close(self) -> None:
        self.done.set()
        self._httpd.shutdown()
        self._httpd.server_close()
        self._thread.join(10)

    def put(self, key: str, data: bytes) -> str:
        """Store an object; its URL."""
        self.objects[key] = (data, md5(data).hexdigest())
        return f"s3://{BUCKET}/{key}"

    def reset(self) -> None:
        """As new, and whatever stalls goes on."""
        self.done.set()
        self.done = threading.Event()
        with self._lock:  # requests that clients have given up may be under way for a moment longer
            self._in_flight = 0
            self._round += 1
        self.objects.clear()
        self.rules.clear()
        self.latency_seconds, self.page_keys, self.accepted_tokens = 0.0, 1000, None
        self.forget()

    def forget(self) -> None:
        """Start counting anew."""
        self.requests.clear()
        self.most_in_flight = 0

    def of(self, method: str) -> list[Request]:
        return [request for request in self.requests if request.method == method]

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        with self._lock:
            present = self._round
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            self._lock.notify_all()
        try:
            yield
        finally:
            with self._lock:
                self._in_flight -= present == self._round

    def wait_for_requests(self, least: int) -> None:
        """Until so many were under way at once since the last `forget`; not for longer than a client waits."""
        with self._lock:
            self._lock.wait_for(lambda: self.most_in_flight >= least, _STALL_SECONDS)

    def answer(self, request: Request, query: dict[str, list[str]]) -> Reply:
        """The reply, after rules."""
        reply = self._honest(request, query)
        with self._lock:
            rules = [rule for rule in self.rules if rule.applies(request)]
        for rule in rules:
            rule.action(self, request, reply)
        self.requests.append(Request(**{**request.__dict__, "sent": len(reply.body)}))
        return reply

    def _honest(self, request: Request, query: dict[str, list[str]]) -> Reply:
        if self.accepted_tokens is not None and request.token not in self.accepted_tokens:
            status, code = (400, "ExpiredToken")
            return Reply(status, body=b"" if request.method == "HEAD" else error_body(code, request.token))
        if not request.key:
            return self._list(query)
        found = self.objects.get(request.key)
        if found is None:
            return Reply(404, body=b"" if request.method == "HEAD" else error_body("NoSuchKey"))
        data, etag = found
        if request.if_match and request.if_match.strip('"') != etag:
            return Reply(412, body=error_body("PreconditionFailed"))
        headers = {"ETag": f'"{etag}"', "Last-Modified": "Wed, 21 Oct 2026 07:28:00 GMT", "Accept-Ranges": "bytes"}
        if request.method == "HEAD":
            return Reply(200, {**headers, "Content-Length": str(len(data))})
        if request.span is None:
            return Reply(200, headers, data)
        start, stop = request.span[0], min(request.span[1], len(data))
        if start >= len(data):
            return Reply(416, body=error_body("InvalidRange"))
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        return Reply(206, headers, data[start:stop])

    def _list(self, query: dict[str, list[str]]) -> Reply:
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        names = sorted(key for key in self.objects if key.startswith(prefix))
        after = query.get("continuation-token", [""])[0]
        names = [name for name in names if name > after]
        folders = set[str]()
        if delimiter:
            folders = {
                prefix + n[len(prefix) :].split(delimiter)[0] + delimiter
                for n in names
                if delimiter in n[len(prefix) :]
            }
            names = [name for name in names if delimiter not in name[len(prefix) :]]
        page, rest = names[: self.page_keys], names[self.page_keys :]
        contents = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>2026-10-21T07:28:00.000Z</LastModified>"
            f'<ETag>"{self.objects[name][1]}"</ETag><Size>{len(self.objects[name][0])}</Size></Contents>'
            for name in page
        )
        contents += "".join(f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in sorted(folders))
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if rest else ""
        return Reply(
            200,
            body=(
                f"<?xml version='1.0'?><ListBucketResult><Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix>"
                f"<KeyCount>{len(page)}</KeyCount><MaxKeys>1000</MaxKeys>"
                f"<IsTruncated>{'true' if rest else 'false'}</IsTruncated>{more}{contents}</ListBucketResult>"
            ).encode(),
        )


def options_for(port: int) -> dict[str, Any]:
    """s3fs's options for a server on a port of this machine."""
    return {
        "key": "test-key",
        "secret": "test-secret",
        "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1"},
    }


class _Httpd(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    s3: S3Server

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is nothing to print."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Httpd

    def do_GET(self) -> None:
        s3 = self.server.s3
        done = s3.done
        with s3.in_flight():
            parts = urlsplit(self.path)
            key = unquote(parts.path).lstrip("/").partition("/")[2]
            span = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            request = Request(
                method=self.command,
                key=key,
                span=(int(span[1]), int(span[2]) + 1) if span else None,
                token=self.headers.get("x-amz-security-token", ""),
                if_match=self.headers.get("If-Match", ""),
            )
            reply = s3.answer(request, parse_qs(parts.query))
            time.sleep(s3.latency_seconds + reply.delay_seconds)
            self._send(s3, reply, done)

    do_HEAD = do_GET  # noqa: N815

    def _send(self, s3: S3Server, reply: Reply, done: threading.Event) -> None:
        self.send_response(reply.status)
        self.send_header("x-amz-request-id", "REQUEST-ID")
        for name, value in ({"Content-Length": str(len(reply.body))} | reply.headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        stop = min(n for n in (reply.cut_after, reply.stall_after, len(reply.body)) if n is not None)
        if reply.drip:
            self._drip(s3, reply, done)
            return
        self.wfile.write(reply.body[:stop])
        self.wfile.flush()
        if reply.stall_after is not None and not done.wait(_STALL_SECONDS):
            s3.outlasted += 1
        if stop < len(reply.body):
            self.close_connection = True
            self.connection.setsockopt(1, 13, b"\x01\x00\x00\x00\x00\x00\x00\x00")  # SO_LINGER 0: reset, not FIN
            self.connection.close()

    def _drip(self, s3: S3Server, reply: Reply, done: threading.Event) -> None:
        begin = time.monotonic()
        for start in range(0, len(reply.body), reply.drip):
            self.wfile.write(reply.body[start : start + reply.drip])
            if done.wait(0.01):
                return
            if time.monotonic() - begin > _STALL_SECONDS:
                s3.outlasted += 1
                self.close_connection = True
                return

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Quiet."""
