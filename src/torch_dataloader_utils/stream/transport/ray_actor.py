"""Run workers in an actor of Ray, and make their responses, one request after the other."""

import copyreg
import os
import pickle
import socket
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np

from torch_dataloader_utils._core.program import WorkerInput
from torch_dataloader_utils._observe.counters import Int64s, WorkerCounters, counts_shape, totals
from torch_dataloader_utils.errors import InternalError
from torch_dataloader_utils.stream.decode import DecodeOptions
from torch_dataloader_utils.stream.transport.flat_buffers import FlatWriter
from torch_dataloader_utils.stream.transport.requests import BatchResponse
from torch_dataloader_utils.stream.transport.responder import Responder
from torch_dataloader_utils.stream.transport.sendable import with_sendable_results
from torch_dataloader_utils.stream.worker import Pipeline, WorkerStream

SIGNS = "signs"
"""Concurrency group of calls that ask for a sign of life."""


class ActorStart(NamedTuple):
    """Start of a worker of the plan with this input. group_length: see Responder. options: limits of decoding ahead."""

    worker: int
    work: WorkerInput
    group_length: int | None
    options: DecodeOptions


class _Running(NamedTuple):
    responder: Responder
    counters: WorkerCounters


class RayActor:
    """Actor that runs any number of workers. Calls come one after the other; workers decode ahead between calls.

    Ray runs `give_sign` in a thread of its own (the concurrency group `SIGNS`), so it answers during any other call.
    """

    def __init__(self) -> None:
        self._running: dict[int, _Running] = {}

    def place(self) -> str:
        """Return host and process of this actor, for messages."""
        return f"host {socket.gethostname()}, pid {os.getpid()}"

    def give_sign(self) -> None:
        """Return, to show that this process runs."""

    def respond(
        self, stream: int, most: int, start: ActorStart | None = None, pipeline: bytes = b""
    ) -> tuple[BatchResponse, Int64s]:
        """Return the next `most` batches (or batch groups) of a stream, and its counts since its start.

        The counts are int64 [len(COUNTED)].

        stream: unique number of a worker's start. start: start of the worker, in the first request. pipeline: pickled
        Pipeline, in the first request.
        """
        if start is not None:
            self._running[stream] = _begun(start, pickle.loads(pipeline))  # noqa: S301 - of our own trainer
        if stream not in self._running:
            raise InternalError(f"Stream {stream} got a request before its start. Please report this.")
        running = self._running[stream]
        response = running.responder.respond(most)
        counts = np.array(list(totals(running.counters.memory, perf_counter_ns()).values()), dtype=np.int64)
        return response, counts

    def end(self, stream: int) -> None:
        """End a stream and its decoding."""
        running = self._running.pop(stream, None)
        if running is not None:
            running.responder.close()


def pickle_as_processes_do() -> None:
    """Pickle Arrow data as worker processes do, only with its own rows. See shape/pickling.py."""
    reducers = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    copyreg.dispatch_table.update({kind: reducers[kind] for kind in reducers if kind.__module__.startswith("pyarrow")})


def _begun(start: ActorStart, pipeline: Pipeline) -> _Running:
    from ray.cloudpickle import CloudPickler

    counters = WorkerCounters(np.zeros(counts_shape(start.options.threads), dtype=np.int64))
    pickle_as_processes_do()
    pipeline = replace(pipeline, functions=with_sendable_results(pipeline.functions, CloudPickler))
    stream = WorkerStream(start.work, pipeline, start.options, counters)
    writer = None if pipeline.codec is None else FlatWriter(pipeline.codec)
    return _Running(Responder(start.worker, stream, start.group_length, writer), counters)
