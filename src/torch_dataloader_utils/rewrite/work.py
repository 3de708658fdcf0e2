"""`Work`: runs the jobs that no earlier call has finished, here or in an executor."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from torch_dataloader_utils._runtime.parallel import OnProgress
from torch_dataloader_utils._runtime.threads import Executor

Receipt = TypeVar("Receipt", covariant=True)


class Job(Protocol[Receipt]):
    """Job whose result is kept."""

    def finished(self) -> Receipt | None:
        """Return the receipt of an earlier run, None if there is none."""

    def run(self) -> Receipt:
        """Do the work."""


class Work:
    """Runner of jobs, in an executor or in this process. A finished job does not run again.

    total: Number of jobs of all calls of `run`, for progress.
    """

    def __init__(self, executor: Executor | None, on_progress: OnProgress | None, total: int) -> None:
        self._executor, self._on_progress, self.total = executor, on_progress, total
        self._done = self.reused = 0

    def run(self, jobs: Sequence[Job[Receipt]]) -> list[Receipt]:
        """Return the receipts of the jobs, in their order."""
        receipts = [job.finished() for job in jobs]
        missing = [place for place, receipt in enumerate(receipts) if receipt is None]
        self.reused += len(jobs) - len(missing)
        self._note(len(jobs) - len(missing))
        futures = [self._executor.submit(run_job, jobs[place]) for place in missing] if self._executor else []
        try:
            for number, place in enumerate(missing):
                receipts[place] = futures[number].result() if futures else jobs[place].run()
                self._note(1)
        finally:
            for future in futures:
                future.cancel()
        return receipts  # type: ignore[return-value]

    def _note(self, done: int) -> None:
        self._done += done
        if done and self._on_progress is not None:
            self._on_progress(self._done, self.total)


def run_job(job: Job[Receipt]) -> Receipt:
    """Run a job. Executors call this function, whose module imports no torch."""
    return job.run()
