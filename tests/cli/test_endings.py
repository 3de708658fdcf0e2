"""How commands end: signals, full disks, workers that must not outlive their parent."""

import errno
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures.process import BrokenProcessPool

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.shell import one_line, tdu
from tests.faults.web_server import web_server
from torch_dataloader_utils import _engine
from torch_dataloader_utils.cache.kept_values import VARIABLE
from torch_dataloader_utils.cli.process_pool import process_pool
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.megatron import corpora

pytestmark = pytest.mark.processes

# Two tasks that never end, each with a temporary directory; others wait for their turn, and are cancelled as
# `build_corpus` does with the parts that it no longer wants.
POOL = """
import os, sys, tempfile, time
from torch_dataloader_utils.cli.app import sigterm_as_interrupt
from torch_dataloader_utils.cli.process_pool import process_pool
from torch_dataloader_utils.errors import ConfigError

def stay(pipe):
    tempfile.mkdtemp()
    os.write(1, b"up\\n")
    time.sleep(3600)

if __name__ == "__main__":
    with sigterm_as_interrupt(), process_pool(2) as pool:
        futures = [pool.submit(stay, 1) for _ in range(9)]
        try:
            futures[0].result()
        finally:
            for future in futures:
                future.cancel()
"""


# One that is sent to the whole group reaches the workers too: a terminal sends Ctrl-C so, and supervisors SIGTERM.
@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("number", "send"),
    [
        (signal.SIGKILL, os.kill),
        (signal.SIGTERM, os.kill),
        (signal.SIGTERM, os.killpg),
        (signal.SIGINT, os.killpg),
    ],
)
def test_workers_end_with_their_parent_and_leave_no_temporary_file(tmp_path, number, send):
    script, temporary = tmp_path / "pool.py", tmp_path / "temporary"
    script.write_text(POOL)
    temporary.mkdir()
    command = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    try:
        assert [command.stdout.readline() for _ in range(2)] == [b"up\n"] * 2
        send(command.pid, number)
        # The end of stdout, which the workers hold too, is the end of all of them.
        output, errors = command.communicate(timeout=900)
    except BaseException:
        os.killpg(command.pid, signal.SIGKILL)
        raise
    assert output == b""
    assert command.returncode != 0
    assert list(temporary.iterdir()) == []
    assert errors.count(b"Traceback") == (0 if number == signal.SIGKILL else 1)


# Ctrl-C once the process is there and before it is told what to do. Another thread than the one that starts it takes
# the signal, as Arrow's do.
STARTING = """
import multiprocessing.util, os, signal, threading, time
from torch_dataloader_utils.cli.process_pool import process_pool

def spawn(path, arguments, descriptors):
    process = start(path, arguments, descriptors)
    if "--multiprocessing-fork" in arguments:
        signal.pthread_kill(other.ident, signal.SIGINT)
        os.read(came, 1)
    return process

if __name__ == "__main__":
    came, sent = os.pipe()
    os.set_blocking(sent, False)
    signal.set_wakeup_fd(sent)
    other = threading.Thread(target=time.sleep, args=(3600,), daemon=True)
    other.start()
    start, multiprocessing.util.spawnv_passfds = multiprocessing.util.spawnv_passfds, spawn
    try:
        with process_pool(1) as pool:
            pool.submit(int)
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_a_worker_that_is_interrupted_as_it_starts_prints_nothing(tmp_path):
    script = tmp_path / "pool.py"
    script.write_text(STARTING)
    done = subprocess.run([sys.executable, script], capture_output=True, timeout=900)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"interrupted\n", b"")


def test_a_pool_ends_when_one_of_its_workers_is_killed():
    with process_pool(2) as pool:
        # Python's pool looks after a worker from the first event after its start, such as this result.
        first = pool.submit(os.getpid).result()
        busy = [pool.submit(signal.pause) for _ in range(2)]
        os.kill(first, signal.SIGKILL)
        with pytest.raises(BrokenProcessPool):
            busy[0].result()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_workers_leave_it_to_their_parent_what_a_signal_means(number):
    with process_pool(1) as pool:
        assert pool.submit(signal.raise_signal, number).result() is None


def test_an_interrupt_is_told_where_a_library_was_imported_in_that_moment():
    # numpy, half imported, cannot be imported again.
    script = """
import sys
sys.modules["numpy"] = None
from torch_dataloader_utils.cli.app import Terminated, of_interrupt
of_interrupt(Terminated()).show()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, b"tdu: Terminated.\n")


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["verify", "bench"])
def test_ctrl_c_does_not_wait_for_a_store_that_does_not_answer(tmp_path, name):
    pq.write_table(pa.table({"id": range(9)}), tmp_path / "a.parquet")
    reads, may_go = threading.Event(), threading.Event()

    def stall():
        reads.set()
        may_go.wait(1000)

    with web_server() as web:
        web.files["a.parquet"] = (tmp_path / "a.parquet").read_bytes()
        web.after = dict.fromkeys(range(2, 100), stall)  # the first is for the footer
        command = subprocess.Popen(
            [sys.executable, "-m", "torch_dataloader_utils.cli", name, web.url("a.parquet")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, VARIABLE: "off"},
        )
        try:
            assert reads.wait(900)
            command.send_signal(signal.SIGINT)
            _, errors = command.communicate(timeout=900)
        finally:
            may_go.set()
            command.kill()
            command.communicate()
    # Without the engine a warning comes first.
    assert (command.returncode, errors.splitlines()[-1]) == (130, b"tdu: Interrupted.")
    assert errors.count(b"\n") == 1 + (not _engine.IS_BUILT and errors.startswith(b"warning: The compiled decoder"))


@pytest.mark.cases(1)
@pytest.mark.parametrize("options", [(), ("--json",), ("--files",)])
def test_a_reader_that_leaves_is_not_data_that_is_wrong(tmp_path, options):
    pq.write_table(pa.table({"id": range(9)}), tmp_path / "a.parquet")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [sys.executable, "-m", "torch_dataloader_utils.cli", "scan", str(tmp_path), *options]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=300)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_pool_gives_what_its_tasks_give():
    with process_pool(2) as pool:
        assert pool.submit(divmod, 7, 2).result() == (3, 1)
        with pytest.raises(ZeroDivisionError):
            pool.submit(divmod, 7, 0).result()


def build(tmp_path, *options, code):
    return one_line(
        tdu("tokens", "build", tmp_path / "a.parquet", tmp_path / "corpus", "--column", "text", *options, code=code)
    )


@pytest.mark.parametrize(
    ("number", "word", "code"), [(signal.SIGTERM, "Terminated", 143), (signal.SIGINT, "Interrupted", 130)]
)
def test_a_signal_ends_a_build_and_says_how_to_go_on(tmp_path, monkeypatch, number, word, code):
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a library of another test, as Ray, may have left its own
    try:
        monkeypatch.setattr(corpora, "build_corpus", lambda *_, **__: signal.raise_signal(number))
        line = build(tmp_path, code=code)
        assert line.startswith(f"tdu: {word}. Finished parts stay; the same command continues")
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_full_disk_is_the_storage(tmp_path, monkeypatch):
    def fill(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(corpora, "build_corpus", fill)
    line = build(tmp_path, code=1)
    assert "No space left on device. Free some space" in line
    assert line.endswith("the same command continues with them.")


@pytest.mark.parametrize(
    ("number", "code", "advice"),
    [(errno.ENOSPC, 1, "Free some space"), (errno.EIO, 1, "storage failed"), (errno.EACCES, 2, "permissions")],
)
def test_errors_of_the_system_are_told_apart(tmp_path, monkeypatch, number, code, advice):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number), "part")

    monkeypatch.setattr(corpora, "merge_corpora", fail)
    assert advice in one_line(tdu("tokens", "merge", "a", tmp_path / "b", code=code))


def test_a_file_that_is_no_tokenizer_is_named(tmp_path):
    pq.write_table(pa.table({"text": ["a b"]}), tmp_path / "a.parquet")
    (tmp_path / "bad.json").write_text("{}")
    assert "bad.json is not a tokenizer.json" in build(tmp_path, "--tokenizer", tmp_path / "bad.json", code=2)


def test_a_corpus_that_exists_asks_for_the_flag(tmp_path):
    pq.write_table(pa.table({"text": [[1], [2]]}), tmp_path / "a.parquet")
    tdu("tokens", "build", tmp_path / "a.parquet", tmp_path / "corpus", "--column", "text")
    line = build(tmp_path, code=2)
    assert "--overwrite" in line
    assert "overwrite=" not in line


def test_a_format_that_is_another_names_the_argument_of_corpora(tmp_path):
    pq.write_table(pa.table({"text": [[1], [2]]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match='pass file_format="parquet"'):
        corpora.build_corpus(tmp_path / "a.parquet", tmp_path / "corpus", column="text", file_format="orc")
