"""A job for test_audit: its process is killed again and again, at any moment, and goes on from its last state."""

import json
import os
import random
import signal
import sys
from pathlib import Path

from torch_dataloader_utils import StructuredDataset

EPOCHS = 2


def run(folder, received):
    """Read epochs from the last state on; write a byte after each batch."""
    loader, _ = StructuredDataset.create_dataloader(
        str(folder / "data"), batch_size=16, num_workers=0, shuffle=True, shuffle_rows=64, audit=folder / "audits"
    )
    state = folder / "state.json"
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    while loader.epoch < EPOCHS:
        for number, _ in enumerate(loader):
            os.write(received, b".")
            if number % 4 == 0:
                state.with_suffix(".new").write_text(json.dumps(loader.state_dict()))
                state.with_suffix(".new").replace(state)
        loader.set_epoch(loader.epoch + 1)


def run_until_killed(folder, batches):
    """Run the job in a forked process, and kill it some time after so many batches. Return whether it ended before."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        run(folder, write)
        os._exit(0)
    os.close(write)
    is_done = any(not os.read(read, 1) for _ in range(batches))
    if not is_done:
        os.kill(child, signal.SIGKILL)
    os.close(read)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


def main():
    folder, draw = Path(sys.argv[1]), random.Random(5)
    for _ in range(8):
        run_until_killed(folder, draw.randrange(1, 25))
    if not run_until_killed(folder, 10_000):
        sys.exit("the job failed")


if __name__ == "__main__":
    main()
