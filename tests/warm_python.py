"""A Python that has imported torch before it is asked to run a program: each import takes three seconds.

    warm_python()                               a path, in place of sys.executable
    warm_python(*WITH_LOADER, "transformers")   with this library, what torchrun needs and that one, too

It is a client, which asks a server to fork. The child runs the program to the end of its interpreter with arguments,
environment, directory and standard streams of the client, which hands SIGINT and SIGTERM on to it and ends as it does.
Not there: the client's process group, its other open files, and options of Python but for -c, -m, -u and -W.
`make nightly` starts Python itself.
"""

import atexit
import functools
import gc
import importlib
import os
import runpy
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

ALWAYS = ("torch.utils.data", "pyarrow.dataset", "pyarrow.parquet", "fsspec.asyn")
WITH_LOADER = ("torch_dataloader_utils.datasets.build", "torch.distributed.launcher.api", "torch._dynamo")
# Libraries read these when they are imported.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg"}

_NUMBER = struct.Struct("i")
_CLIENT = """#!{python} -IS
import os, signal, socket, struct, sys
number, server = struct.Struct("i"), socket.socket(socket.AF_UNIX)
server.connect({address!r})
for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, lambda each, _: server.send(number.pack(each)))
given = [os.getcwd(), str(len(sys.argv)), *sys.argv, *(f"{{name}}={{value}}" for name, value in os.environ.items())]
request = os.fsencode("\\0".join(given))
socket.send_fds(server, [number.pack(len(request))], [0, 1, 2])
server.sendall(request)
(code,) = number.unpack(server.recv(number.size, socket.MSG_WAITALL))
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@functools.cache
def warm_python(*modules: str) -> str:
    """The path of the client of a server that has these modules; it is started now, and ends with this process."""
    if os.environ.get("HYPOTHESIS_PROFILE") == "nightly":
        return sys.executable
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    client, address = folder / "python", str(folder / "s")
    client.write_text(_CLIENT.format(python=sys.executable, address=address))
    client.chmod(0o700)
    # Its own path, without the empty one of -c, is that of its children.
    code = (
        "import sys; own = sys.path[1:]; sys.path[:0] = {!r}; from tests.warm_python import serve; serve(own, *{!r})()"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", code.format(sys.path, (address, str(client), *ALWAYS, *modules))],
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    atexit.register(server.communicate)  # it ends with its stdin
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    return str(client)


def serve(own_path: list[str], address: str, executable: str, *modules: str) -> Callable[[], None]:
    """Serve until stdin ends; what returns is a child, which is to call what it gets."""
    for module in modules:
        with suppress(ImportError):  # a trainer that is not installed
            importlib.import_module(module)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _nothing)
    clients: dict[int, socket.socket] = {}
    gc.collect()
    gc.freeze()
    with selectors.DefaultSelector() as selector:
        for source in (0, woken, listening):
            selector.register(source, selectors.EVENT_READ)
        os.write(1, b"ready\n")
        while True:
            for key, _ in selector.select():
                source = key.fileobj
                if source == 0:
                    shutil.rmtree(Path(executable).parent)
                    os._exit(0)
                elif source == woken:
                    os.read(woken, 1000)
                    _report_ended(clients, selector)
                elif source is listening:
                    client = listening.accept()[0]
                    try:
                        length, streams, _, _ = socket.recv_fds(client, _NUMBER.size, 3)
                        request = client.recv(*_NUMBER.unpack(length), socket.MSG_WAITALL)
                    except (OSError, struct.error):  # it was killed
                        client.close()
                        continue
                    pid = os.fork()
                    if not pid:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        for number, stream in enumerate(streams):
                            os.dup2(stream, number)
                        os.closerange(3, max(streams[-1], client.fileno(), woken, waking) + 1)
                        for each in (listening, client, *clients.values()):
                            each.detach()
                        return functools.partial(_run, own_path, executable, os.fsdecode(request).split("\0"))
                    for stream in streams:
                        os.close(stream)
                    clients[pid] = client
                    selector.register(client, selectors.EVENT_READ, pid)
                else:
                    with suppress(OSError, KeyError, ValueError):  # both have ended meanwhile
                        number = source.recv(_NUMBER.size)
                        # Nothing: it was killed.
                        os.kill(key.data, _NUMBER.unpack(number)[0] if number else signal.SIGKILL)
                        if not number:
                            selector.unregister(source)


def _report_ended(clients: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    while clients:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        client = clients.pop(pid)
        with suppress(KeyError):
            selector.unregister(client)
        with client, suppress(OSError):
            client.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))


def _nothing(number: int, frame: FrameType | None) -> None:
    pass


def _run(own_path: list[str], executable: str, request: list[str]) -> None:
    """Run the program of a request as `__main__`."""
    folder, count, *rest = request
    arguments, variables = rest[1 : int(count)], rest[int(count) :]
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variable.split("=", 1) for variable in variables)
    main: dict[str, Any] = sys.modules["__main__"].__dict__
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]
    while arguments[0] in ("-u", "-W"):
        if arguments.pop(0) == "-W":
            warnings._setoption(arguments.pop(0))  # type: ignore[attr-defined]
        else:
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    sys.executable = executable
    tempfile.tempdir = None
    sys.path[:] = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *own_path]
    sys.modules.pop("sitecustomize", None)
    with suppress(ImportError):
        importlib.import_module("sitecustomize")
    kind, *arguments = arguments
    if kind == "-m":
        sys.path.insert(0, folder)
        sys.argv = arguments
        runpy._run_module_as_main(arguments[0])  # type: ignore[attr-defined]
    elif kind == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec"), main)
    else:
        script = Path(kind).resolve()
        sys.path.insert(0, str(script.parent))
        sys.argv = [kind, *arguments]
        main["__file__"] = kind
        exec(compile(script.read_bytes(), kind, "exec"), main)
