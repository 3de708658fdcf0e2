"""Programs that end in the middle of a pass: nothing on stderr, and no process, shared memory or file is left."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.stream.tables import TABLE, write_table

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]

# A module that refers to the package and has a function is kept whole until all modules are emptied.
BEFORE = """
import atexit, os, sys, threading
from multiprocessing import active_children
from torch.utils.data import DataLoader
{first}
import torch_dataloader_utils as tdu

class Told(tdu.LoaderCallback):
    def on_epoch_end(self, run, *, completed):
        print("completed" if completed else "broken off", flush=True)

def load(**options):
    options = {{"batch_size": 8, "num_workers": 0, "columns": ["row", "payload"], "callbacks": [Told()], **options}}
    return tdu.StructuredDataset.create_dataloader(sys.argv[1], **options)[0]

def begun(batches):
    batches = iter(batches)
    next(batches)
    return batches

if __name__ == "__main__":
    print(os.getsid(0), flush=True)
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    write_table(folder, TABLE)
    return folder


def run(tmp_path, table, *statements, first=""):
    """The lines that a program prints, which ends well and in silence, and leaves nothing.

    first: a statement that runs before the package is imported.
    """
    script, scratch = tmp_path / "program.py", tmp_path / "t"  # a short name: sockets have little room for theirs
    script.write_text(BEFORE.format(first=first) + "".join(f"    {line}\n" for line in statements))
    scratch.mkdir()
    job = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script), str(table)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}/src", "TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    output, errors = job.communicate(timeout=300)
    session, *lines = output.splitlines()
    _, alive = psutil.wait_procs(processes_of_session(int(session)), timeout=60)
    assert (errors, job.returncode, alive, list(scratch.iterdir())) == ("", 0, [], [])
    return lines


def processes_of_session(session):
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError):
            if os.getsid(process.pid) == session:
                found.append(process)
    return found


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("passes", "count"),
    [
        ("begun(load()), begun(load(shuffle=True, shuffle_rows=30, output_format='dict'))", 2),
        ("begun(tdu.DevicePrefetcher(load(), 'cpu'))", 1),
        ("begun(tdu.blend([load(), load()], [1, 1], per='sample'))", 2),
        (
            "begun(DataLoader(load().dataset, batch_size=None)), "
            "begun(DataLoader(tdu.RowDataset(sys.argv[1], columns=['row'])))",
            0,
        ),
        # Of Python's own types: torch and multiprocessing leave a directory where a worker has shared a tensor.
        ("begun(DataLoader(load(output_format='dict').dataset, batch_size=None, num_workers=1))", 0),
    ],
    ids=["threads", "prefetcher", "blend", "plain DataLoader", "plain DataLoader with a worker"],
)
def test_passes_that_are_open_at_the_end_of_a_program_are_closed(tmp_path, table, passes, count):
    assert run(tmp_path, table, f"passes = {passes}") == count * ["broken off"]


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("method", "persistent"), [("fork", False), ("fork", True), ("forkserver", False), ("spawn", True)]
)
def test_worker_processes_end_with_the_pass_that_a_program_leaves_open(tmp_path, table, method, persistent):
    workers, told = run(
        tmp_path,
        table,
        f"batches = begun(load(num_workers=2, multiprocessing_context='{method}', persistent_workers={persistent}))",
        "print(*[child.pid for child in active_children()])",
    )
    assert (len(workers.split()), told) == (2, "broken off")
    left = [path.name for path in Path("/dev/shm").glob("torch_*")]
    assert [name for name in left if name.split("_")[1] in workers.split()] == []


@pytest.mark.cases(1)
@pytest.mark.parametrize("moment", ["before", "after_in_parent"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_while_workers_are_forked_is_neither_lost_nor_leaves_one_of_them(tmp_path, table, name, moment):
    lines = run(
        tmp_path,
        table,
        'loader = load(num_workers=2, multiprocessing_context="fork", callbacks=[])',
        f"signal.signal(signal.{name}, signal.default_int_handler)",
        f"once = iter([signal.{name}])",
        f"os.register_at_fork({moment}=lambda: [signal.raise_signal(number) for number in once])",
        "try:",
        "    print(len(list(loader)))",
        "except KeyboardInterrupt:",
        "    print('interrupted', len(psutil.Process().children()))",
        "print(len(list(loader)) == len(loader))",
        first="import psutil, signal",
    )
    assert lines == ["interrupted 0", "True"]


def test_the_end_of_a_forked_child_leaves_its_parents_passes_alone(tmp_path, table):
    lines = run(
        tmp_path,
        table,
        "batches = begun(load())",
        "child = os.fork()",
        "if not child:",
        "    atexit._run_exitfuncs()",
        "    os._exit(0)",
        "print(os.waitpid(child, 0)[1])",
    )
    assert lines == ["0", "broken off"]


@pytest.mark.full
@pytest.mark.parametrize("made_by", ["daemon", "main"])
def test_a_pass_of_a_daemon_thread_goes_on_as_long_as_the_thread(tmp_path, table, made_by):
    """It would take the end of a pass that was closed for the end of the epoch."""
    lines = run(
        tmp_path,
        table,
        "def work():",
        f"    for batch in {'load()' if made_by == 'daemon' else 'batches'}:",
        "        print(batch.num_rows, flush=True)",
        "        has_begun.set()",
        "        is_ending.wait()",
        "        has_ended.release()",
        "        threading.Event().wait()",
        "batches = iter(load())",
        "has_begun, is_ending, has_ended = threading.Event(), threading.Event(), threading.Semaphore(0)",
        "threading.Thread(target=work, daemon=True).start()",
        "has_begun.wait()",
        # What was registered before the package runs after it.
        first="atexit.register(lambda: (is_ending.set(), has_ended.acquire()))",
    )
    assert lines == ["8"]


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("options", "leave"),  # multiprocessing's own end of a process does not know of os.fork
    [("", "sys.exit()"), ("num_workers=2, multiprocessing_context='fork'", "os._exit(0)")],
    ids=["threads", "processes"],
)
@pytest.mark.parametrize("child", ["goes on", "lets go"])
def test_a_pass_goes_on_in_its_own_process_alone(tmp_path, table, options, leave, child):
    use = ["try: next(batches)", "except tdu.LoaderError as error: print(type(error).__name__, flush=True)"]
    lines = run(
        tmp_path,
        table,
        f"loader = load({options})",
        "batches = begun(loader)",
        "child = os.fork()",
        "if child == 0:",
        *[f"    {line}" for line in (use if child == "goes on" else ["del batches"])],
        "    print(sum(1 for batch in load()), flush=True)",
        f"    {leave}",
        "print(os.waitpid(child, 0)[1], flush=True)",
        "print(1 + sum(1 for batch in batches))",
    )
    refused = ["ConfigError"] if child == "goes on" else []
    assert lines == [*refused, "completed", "18", "0", "completed", "18"]


FORKED = "load(num_workers=2, multiprocessing_context='fork', persistent_workers={})"


def test_a_forked_child_has_persistent_workers_of_its_own(tmp_path, table):
    lines = run(
        tmp_path,
        table,
        f"loader = {FORKED.format(True)}",
        "batches = begun(loader)",
        "child = os.fork()",
        "if child == 0:",
        "    print(sum(1 for batch in loader), flush=True)",
        "    os._exit(0)",
        "print(os.waitpid(child, 0)[1], flush=True)",
        "print(1 + sum(1 for batch in batches))",
    )
    assert lines == ["completed", "18", "0", "completed", "18"]


def test_a_forked_child_that_lets_go_of_a_loader_leaves_its_parents_workers_alone(tmp_path, table):
    lines = run(
        tmp_path,
        table,
        f"loader = {FORKED.format(True)}",
        "pids = lambda: {child.pid for child in active_children()}",
        "print(sum(1 for batch in loader), flush=True)",
        "before, child = pids(), os.fork()",
        "if child == 0:",
        "    del loader",
        "    os._exit(0)",
        "print(os.waitpid(child, 0)[1], sum(1 for batch in loader), pids() == before)",
    )
    assert lines == ["completed", "18", "completed", "0 18 True"]


@pytest.mark.full
def test_workers_that_outlive_a_killed_child_do_not_remove_its_parents_sockets(tmp_path, table):
    lines = run(
        tmp_path,
        table,
        f"loader = {FORKED.format(False)}",
        "first, (reading, writing) = sum(1 for batch in loader), os.pipe()",
        "child = os.fork()",
        "if child == 0:",
        f"    batches = begun({FORKED.format(False)})",
        "    os.kill(os.getpid(), 9)",
        "os.close(writing)",
        "os.read(reading, 1)",  # until the child and its workers have ended
        "print(os.waitpid(child, 0)[1], len(os.listdir(os.environ['TMPDIR'])), sum(1 for batch in loader))",
    )
    assert lines == ["completed", "completed", "9 1 18"]


def test_a_pass_has_a_directory_for_sockets_even_if_the_last_one_was_cleaned_away(tmp_path, table):
    lines = run(
        tmp_path,
        table,
        "import shutil",
        "clean = lambda: [shutil.rmtree(entry.path) for entry in os.scandir(os.environ['TMPDIR'])]",
        f"loader = {FORKED.format(False)}",
        "print(sum(1 for batch in loader), len(clean()), sum(1 for batch in loader), len(clean()), flush=True)",
        "os._exit(0)",  # multiprocessing would look for what it has made
    )
    assert lines == ["completed", "completed", "18 1 18 1"]
