"""The worker processes of one loader, as the trainer's process sees them: tickets out, batches in.

docs/design/0001-house.md, "The life of a batch in a worker process", has all messages and who holds what memory.
"""

import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from torch_dataloader_utils._core.program import WorkerInput, drawn_rows
from torch_dataloader_utils._observe.meter import LoaderMeter
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.receiver import Delivered, Receiver
from torch_dataloader_utils.stream.sendable import check_functions, check_socket_names
from torch_dataloader_utils.stream.slabs import SlabReader
from torch_dataloader_utils.stream.tickets import Answer, Demand, TicketSampler, TicketWorker
from torch_dataloader_utils.stream.worker import Pipeline
from torch_dataloader_utils.stream.worker_death import Notes, answers_of, share_temporary_directory

# Bytes of batches that travel as one. A hand-over costs some 300 us however large it is, and both sides wake up for it:
# runs of 16 MiB are 1.2 times as fast as runs of 4.
_RUN_BYTES = 16 << 20
# Rows of text and lists, encoded well, are larger in memory than their sizes in the files.
_MOST_BATCHES = 64
# Copying so much takes as long as saying where 51 columns lie.
_ALONE_BYTES = 1 << 20


def as_it_is(batch: Any) -> Any:
    """The collate function of a loader whose batches are made where they are read."""
    return batch


class WorkerProcesses:
    """A DataLoader of worker processes, and what the trainer's side of each pass needs.

    options: those of DataLoader, among them in_order; without it batches come as they are ready, whoever's turn it is.
    """

    def __init__(self, pipeline: Pipeline, decode: DecodeOptions, num_workers: int, options: Mapping[str, Any]) -> None:
        self._pipeline = pipeline
        self._decode = decode
        self._options = options
        self._in_order = options.get("in_order", True)
        self._has_timeout = bool(options.get("timeout"))
        if pipeline.codec is not None or pipeline.functions:
            check_socket_names()  # tensors need them
        check_functions(pipeline.functions, options.get("multiprocessing_context"))
        self._num_workers = num_workers
        # Persistent workers keep their slabs, and batches of earlier passes may be looked at still.
        self._readers = self._new_readers() if options.get("persistent_workers") else None
        self._sampler = TicketSampler()
        self._notes = Notes(num_workers)
        self._worker = TicketWorker(pipeline, self._share(), self._notes)
        self._loader: DataLoader[Answer] = DataLoader(
            self._worker,
            batch_size=None,
            sampler=self._sampler,
            num_workers=num_workers,
            collate_fn=as_it_is,
            **{name: value for name, value in options.items() if not name.startswith("pin_memory")},
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy has workers of its own, and no pass."""
        return WorkerProcesses, (self._pipeline, self._decode, self._num_workers, self._options)

    def decode_as(self, decode: DecodeOptions) -> None:
        """Let processes that are started from now on decode so far ahead, all together."""
        self._decode = decode
        self._worker.options = self._share()

    def _share(self) -> DecodeOptions:
        """What one process decodes ahead."""
        decode = self._decode
        return replace(decode, threads=decode.worker_threads, budget_bytes=decode.budget_bytes // self._num_workers)

    def deliver(
        self, works: Sequence[WorkerInput], first_worker: int, left: int | None, meter: LoaderMeter
    ) -> Generator[Delivered]:
        """The batches of one pass.

        works: the inputs of all workers. first_worker: whose batch comes first. left: how many there are; None if
        only reading can tell. meter: hears of every answer.
        """
        counted = left if self._in_order else None
        readers = self._readers or self._new_readers()
        workers = [(first_worker + process) % len(works) for process in range(len(works))]
        demand = self._sampler.start(
            works,
            workers=workers,
            count=counted,
            run_length=None if counted is None else run_length(works, self._pipeline),
            readers=readers,
        )
        receiver = Receiver(dict(zip(workers, readers, strict=True)), meter)
        self._worker.directory = share_temporary_directory()
        try:
            if left == 0:
                return
            # Closed by name: an error that came with its traceback (tblib) keeps the frames that it was unpickled in.
            with closing(answers_of(self._loader, self._notes)) as arriving:
                answers = meter.answers(self._of_pass(demand, arriving))
                if counted is not None:
                    yield from receiver.in_turn(self._paced(answers, demand), workers, counted)
                else:
                    yield from receiver.as_they_come(_until_ended(answers, len(works), left))
        finally:
            self._sampler.forget(demand)

    def _new_readers(self) -> list[SlabReader]:
        """A reader of slabs for each process.

        With in_order=False they have no codec, and batches come through the queue: a ticket may reach any process then,
        and would name slabs that this one does not have.
        """
        codec = self._pipeline.codec if self._in_order else None
        return [SlabReader(codec) for _ in range(self._num_workers)]

    def _of_pass(self, demand: Demand, answers: Iterator[Answer]) -> Iterator[Answer]:
        """The answers, as long as they are those of this pass: persistent workers work for the latest one only."""
        while self._readers is None or self._sampler.is_latest(demand):
            answer = next(answers, None)
            if answer is None:
                return
            yield answer
        raise ConfigError(
            "Another iterator over this loader was made since, and persistent workers work for one at a time. Finish "
            "one before you make the next, build two loaders, or leave persistent_workers out."
        )

    def _paced(self, answers: Iterator[Answer], demand: Demand) -> Iterator[Answer]:
        """All answers; the latest one says how many batches are asked for next.

        With DataLoader's `timeout` they ask for one: the time is meant for a batch, and measured for an answer.
        """
        for answer in answers:
            if not self._has_timeout:
                demand.batches = answer.pace
            yield answer


def _until_ended(answers: Iterator[Answer], num_workers: int, count: int | None) -> Iterator[Answer]:
    """Answers until there were `count` batches, or until every worker has ended."""
    ended = set[int]()
    received = 0
    for answer in answers:
        if answer.ended:
            ended.add(answer.worker)
        received += len(answer.batches)
        yield answer
        if received == count or len(ended) == num_workers:
            return


def run_length(works: Sequence[WorkerInput], pipeline: Pipeline) -> int | None:
    """How many batches travel as one: some megabytes, but no more rows than a row group has, which come at once.

    None: each travels as a copy, since the user's functions made it, or it is no tensors, or it is small and larger
    than a row group.
    """
    if pipeline.codec is None or pipeline.functions:
        return None
    schedule = works[0].program.schedule
    group_rows = np.concatenate([work.group_stop - work.group_start for work in works])
    num_bytes = sum(int(work.inventory.groups.projected_bytes.sum()) for work in works)
    batch_rows = drawn_rows(schedule.draws(0)) if schedule.num_batches else 0
    if not batch_rows or not group_rows.any():
        return None
    # Equal parts of a row group: a batch that spans two of them is put together.
    # Repeated values are stored in a fraction of what they take.
    whole, row_bytes = int(group_rows.max()), max(num_bytes / int(group_rows.sum()), pipeline.row_bytes)
    parts = math.ceil(max(whole * row_bytes / _RUN_BYTES, 1))
    length = min(max(1, whole // parts // batch_rows), _MOST_BATCHES)
    return None if length == 1 and batch_rows * row_bytes < _ALONE_BYTES else length
