"""A web server of files that can leave out what most servers do: etags, dates, sizes, ranges, conditions."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


@dataclass
class WebServer:
    """files: content by path. status: of every reply, if any. changes_after: (number of a GET, what happens to the
    files after it)."""

    files: dict[str, bytes] = field(default_factory=dict)
    etag: str = "strong"  # weak, none, head-only
    has_dates: bool = True
    has_sizes: bool = True
    has_ranges: bool = True
    honours_conditions: bool = True
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    after: dict[int, Callable[[], None]] = field(default_factory=dict)
    faults: dict[int, int] = field(default_factory=dict)  # of GETs: number to status
    status: int = 0
    date_minutes: int = 0
    port: int = 0

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def gets(self) -> list[dict[str, str]]:
        """Headers of every GET."""
        return [headers for method, _, headers in self.requests if method == "GET"]

    def answer(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        self.requests.append((method, path, headers))
        if method == "GET" and self.faults.get(len(self.gets())):
            return self.faults[len(self.gets())], {}, b""
        if self.status:
            return self.status, {}, b""
        data = self.files.get(path)
        if data is None:
            return 404, {}, b""
        etag = f'"{md5(data).hexdigest()}"'
        said = {"strong": etag, "weak": f"W/{etag}", "head-only": etag if method == "HEAD" else ""}.get(self.etag, "")
        reply = {"ETag": said} if said else {}
        if self.has_dates:
            reply["Last-Modified"] = f"Wed, 21 Oct 2026 07:{self.date_minutes:02}:00 GMT"
        if self.honours_conditions and headers.get("If-Match", etag) != etag:
            return 412, {}, b""
        span = re.match(r"bytes=(\d+)-(\d+)", headers.get("Range", ""))
        if span is None or not self.has_ranges:
            return 200, reply, data
        start, stop = int(span[1]), min(int(span[2]) + 1, len(data))
        if start >= len(data):
            return 416, {}, b""
        return 206, reply | {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}, data[start:stop]


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """A server on a port of this machine, in a thread of its own; gives the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def web_server() -> Iterator[WebServer]:
    """A running one."""
    files = WebServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, body = files.answer(
                self.command, unquote(self.path.lstrip("/").partition("?")[0]), dict(self.headers)
            )
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if files.has_sizes or status != 200:
                self.send_header("Content-Length", str(len(body)))
            else:
                self.send_header("Connection", "close")
                self.close_connection = True
            self.end_headers()
            if self.command == "GET":
                # Before the reply, which is made: once it is out, the next request may be there first.
                files.after.pop(len(files.gets()), lambda: None)()
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Quiet."""

    with listening(Handler) as files.port:
        yield files
