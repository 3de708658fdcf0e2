"""The proof with two hosts on this machine: `python -m examples.prove [DATA]`.

A job on two hosts loses one of them (kill -9 of all its processes), goes on with other numbers of ranks, loses a host
again, and ends. Each host is a network namespace of its own, with its own folder of records; without the right to make
namespaces, both hosts share the network of this machine. Exits with 1 if a row came twice or never.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from examples.trips import find_trips

HOME = Path(".demo/prove").resolve()
ADDRESSES = ("10.213.77.1", "10.213.77.2")
# Processes of each host in each start of the job. The job is killed in all starts but the last.
STARTS = ((2, 2), (1, 2), (2, 1))


def main(data: str) -> int:
    """Run the job to its end, and audit it. Return the exit status of the audit."""
    shutil.rmtree(HOME, ignore_errors=True)
    draw = random.Random(4)
    with two_hosts() as hosts:
        for number, processes in enumerate(STARTS):
            is_last = number == len(STARTS) - 1
            print(f"\n{sum(processes)} ranks: {processes[0]} and {processes[1]} on two hosts", flush=True)
            before = saved_state()
            jobs = [start(hosts, host, count, data, 29500 + number) for host, count in enumerate(processes)]
            if not is_last:
                wait_for_state(before)
                time.sleep(draw.uniform(0.0, 1.5))
                victim = draw.randrange(2)
                print(f"kill -9 of all processes of host {victim}", flush=True)
                end(jobs[victim])
                end(jobs[1 - victim])  # it waits for the lost host; a cluster's manager ends it
            elif any(job.wait() for job in jobs):
                print(f"The job failed: {HOME}/host*/output.txt")
                return 1
    for host in range(2):
        shutil.copytree(HOME / f"host{host}" / "audits", HOME / "audits", dirs_exist_ok=True)
    print("", flush=True)
    return subprocess.run(
        [sys.executable, "-m", "torch_dataloader_utils.cli", "audit", str(HOME / "audits")]
    ).returncode


@contextmanager
def two_hosts() -> Iterator[list[list[str]]]:
    """Yield the commands that run a program on each host: in its network namespace, where that is possible."""
    names = [f"prove-{os.getpid()}-{host}" for host in range(2)]
    try:
        try:
            connect(names)
        except (OSError, subprocess.CalledProcessError):
            print("No right to make network namespaces: both hosts share this machine's network.")
            yield [[], []]
        else:
            print(f"Two network namespaces, {ADDRESSES[0]} and {ADDRESSES[1]}")
            yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            with suppress(OSError):
                subprocess.run(["ip", "netns", "del", name], capture_output=True)


def connect(names: list[str]) -> None:
    """Make a network namespace for each name, and a cable between them."""
    commands = [f"netns add {name}" for name in names]
    commands.append(f"link add cable0 netns {names[0]} type veth peer name cable1 netns {names[1]}")
    for host, name in enumerate(names):
        commands.append(f"-n {name} address add {ADDRESSES[host]}/24 dev cable{host}")
        commands += [f"-n {name} link set {link} up" for link in ("lo", f"cable{host}")]
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True, capture_output=True)


def start(hosts: list[list[str]], host: int, processes: int, data: str, port: int) -> subprocess.Popen[bytes]:
    """Start torchrun on one host, as the leader of a group of processes."""
    address, interface = (ADDRESSES[0], f"cable{host}") if hosts[0] else ("127.0.0.1", "lo")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(host)]
    torchrun += ["--nproc-per-node", str(processes), "--master-addr", address, "--master-port", str(port)]
    program = ["-m", "examples.prove.train", data, str(HOME / f"host{host}"), "--step-seconds", "0.05"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": interface}
    (HOME / f"host{host}").mkdir(parents=True, exist_ok=True)
    output = (HOME / f"host{host}" / "output.txt").open("ab")
    with output:
        return subprocess.Popen([*hosts[host], *torchrun, *program], env=environment, stdout=output, stderr=output)


def saved_state() -> str:
    """Return the state that rank 0 has saved; empty if there is none."""
    path = HOME / "host0" / "state.json"
    return path.read_text() if path.exists() else ""


def wait_for_state(before: str) -> None:
    """Wait until a job has saved another state, so that a kill hits a job that has come further."""
    while saved_state() == before:
        time.sleep(0.05)


def end(job: subprocess.Popen[bytes]) -> None:
    """Kill all processes of a host: torchrun, its ranks, and their workers."""
    processes = [job.pid]
    for process in processes:  # grows meanwhile
        with suppress(OSError):
            processes += map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())
    for process in processes:
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)
    job.wait()


if __name__ == "__main__":
    sys.exit(main(str(Path(sys.argv[1]).resolve()) if len(sys.argv) > 1 else find_trips()))
