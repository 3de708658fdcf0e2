"""A TCP proxy that spoils connections: what no HTTP server can do to its client by itself."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Less than the time-outs of storage clients (15 s in s3fs), which must not be what ends a wait.
_SILENCE_SECONDS = 10


@dataclass(frozen=True)
class Toxic:
    """What is done to one connection, towards the client.

    reset_after: bytes after which the connection is reset. silent_after: bytes after which nothing comes and nothing
    is closed (0: it is accepted, and that is all). drip_seconds: between two pieces of one byte.
    """

    reset_after: int | None = None
    silent_after: int | None = None
    drip_seconds: float = 0.0


class TcpProxy:
    """Listens on `port`; `toxic(number)` says what happens to connection number 0, 1, ...

    outlasted: connections that were silent for longer than any client should wait.
    """

    def __init__(self, target_port: int, toxic: Callable[[int], Toxic]) -> None:
        self._target_port = target_port
        self._toxic = toxic
        self.connections = 0
        self.outlasted = 0
        self.port = 0
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        started.wait(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._loop.call_soon(started.set)
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        toxic = self._toxic(self.connections)
        self.connections += 1
        upstream, sink = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            await asyncio.gather(_copy(reader, sink, Toxic()), _copy(upstream, writer, toxic))
        except TimeoutError:
            self.outlasted += 1
            writer.transport.abort()
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            sink.close()
            writer.close()


async def _copy(source: asyncio.StreamReader, sink: Any, toxic: Toxic) -> None:
    sent = 0
    limits = [limit for limit in (toxic.reset_after, toxic.silent_after) if limit is not None]
    while data := await source.read(1 if toxic.drip_seconds and sent > 0 else 1 << 16):
        piece = data[: min(limits) - sent] if limits else data
        sink.write(piece)
        await sink.drain()
        sent += len(piece)
        await asyncio.sleep(toxic.drip_seconds)
        if toxic.reset_after is not None and sent >= toxic.reset_after:
            raise ConnectionResetError
        if toxic.silent_after is not None and sent >= toxic.silent_after:
            # Until it is cancelled. Something must know of it: of a task that waits for what nobody else knows, the
            # garbage collector takes the sockets.
            await asyncio.sleep(_SILENCE_SECONDS)
            raise TimeoutError
    sink.close()
