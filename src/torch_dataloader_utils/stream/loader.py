"""The loader: a DataLoader that knows its length, its position and its plan."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.data import DataLoader

from torch_dataloader_utils._core.arguments import check_integer
from torch_dataloader_utils._core.block import Shaper
from torch_dataloader_utils._core.position import Position
from torch_dataloader_utils._core.slab_codec import SlabCodec
from torch_dataloader_utils._observe.meter import LoaderMeter
from torch_dataloader_utils._observe.metrics import Metrics
from torch_dataloader_utils._runtime.notebook import html_of
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, of_type
from torch_dataloader_utils.stream.dataset import BatchT, TableDataset
from torch_dataloader_utils.stream.epoch_pass import (
    BatchSource,
    PassPlan,
    PassSetup,
    RemoteSource,
    ThreadSource,
    epoch_pass,
)
from torch_dataloader_utils.stream.loader_options import LoaderOptions, check_has_workers
from torch_dataloader_utils.stream.open_passes import closed_at_exit
from torch_dataloader_utils.stream.progress import Progress
from torch_dataloader_utils.stream.trainer_hooks import EpochSampler, Placement, refuse_number
from torch_dataloader_utils.stream.transport.processes import WorkerProcesses, as_it_is
from torch_dataloader_utils.stream.transport.ray_workers import RayWorkerActors
from torch_dataloader_utils.stream.transport.sendable import check_functions
from torch_dataloader_utils.stream.worker import WorkerStream

if TYPE_CHECKING:
    from torch_dataloader_utils.plan.epoch_plan import EpochPlan
    from torch_dataloader_utils.stream.transport.worker_transport import WorkerTransport


class TableDataLoader(DataLoader[BatchT]):
    """Loader of one rank, with `state_dict`, `load_state_dict`, `set_epoch`, an exact `len`, `plan` and `metrics`.

    num_workers=0 decodes ahead in threads of this process. num_workers=N runs N worker processes, under all start
    methods, with DataLoader's options for workers (pinning, time-outs, persistent workers, in_order). A data set made
    with workers=RayWorkers(N) has N workers in actors of Ray.

    The loader is sharded already: `Accelerator.prepare` returns the same loader, and from then on batches arrive on
    the device. Trainers that set the epoch of a sampler (as Lightning does) set the loader's epoch.
    """

    # Accelerate saves and loads the states of loaders with this attribute, in save_state and load_state.
    use_stateful_dataloader = True

    dataset: TableDataset[BatchT]

    def __init__(
        self,
        dataset: TableDataset[BatchT],
        *,
        num_workers: int | None = None,
        **options: Any,
    ) -> None:
        """Make a loader of this data set.

        Args:
            dataset: data set of this package.
            num_workers: number of workers that the data set was made for; None for this number.
            options: fields of `LoaderOptions`. Other options of torch's DataLoader, which a trainer passes that makes
                the loader again (`batch_sampler=None`), go to DataLoader as they are.

        Raises:
            ConfigTypeError: `dataset` is not a data set of this package, or an option has another type.
            ConfigError: the number of workers differs, an option is out of range, or a function cannot be sent to
                workers.
        """
        num_workers = _check_workers(dataset, num_workers)
        own = {name: options.pop(name) for name in LoaderOptions.names() if name in options}
        checked, stages = LoaderOptions(**own), dataset.stages
        options |= checked.for_torch()
        check_has_workers(num_workers, stages.workers, options)
        processes = num_workers if stages.workers is None else 0
        if processes > 0 and options["multiprocessing_context"] is None:
            options["multiprocessing_context"] = stages.start_method
        super().__init__(dataset, batch_size=None, num_workers=processes, collate_fn=as_it_is, **options)
        self._meter = LoaderMeter((*stages.callbacks, *(checked.callbacks or ())), stages.row_tokens)
        # Set without DataLoader's guard, which forbids a sampler for an iterable data set; this one only takes epochs.
        self.__dict__["sampler"] = EpochSampler(dataset)
        self._placement: Placement | None = None
        self._decode = stages.decode
        self._workers: WorkerTransport | None = None
        if stages.workers is not None:
            self._workers = RayWorkerActors(stages.pipeline, stages.decode, stages.workers)
        elif num_workers > 0:
            begin = options["worker_init_fn"]
            to_check = stages.functions_to_check if begin is None else (*stages.functions_to_check, begin)
            check_functions(to_check, options["multiprocessing_context"])
            self._workers = WorkerProcesses(stages.pipeline, stages.decode, num_workers, options)

    def __repr__(self) -> str:
        engine = f"{self.num_workers} worker processes" if self.num_workers else "threads"
        if self.dataset.stages.workers is not None:
            engine = f"{self.dataset.stages.workers.num} Ray workers"
        read = self.metrics().describe_chunks()
        made = f"{self.dataset.topology.batch_size}-row batches by {engine}"
        return f"<TableDataLoader of {made} from {self.dataset!r}{read and '; ' + read}>"

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: a summary of the loader, and the plan of the pass that would begin now."""
        return html_of(repr(self), [("epoch", self.epoch)]) + self.plan._repr_html_()

    @property
    def progress(self) -> Progress:
        """Progress of the data set: its epoch and position."""
        return self.dataset.progress

    @property
    def codec(self) -> SlabCodec | None:
        """Codec that writes batches into flat buffers; None if the format of batches has no flat form."""
        return self.dataset.pipeline.codec

    @property
    def is_transformed(self) -> bool:
        """True if a function of the user makes the batches; then a batch may hold any object."""
        return bool(self.dataset.pipeline.functions)

    @property
    def next_position(self) -> Position:
        """Position where a pass would begin now."""
        return self.dataset.next_position

    @property
    def plan(self) -> "EpochPlan":
        """Plan of the pass that would begin now."""
        return self.dataset.plan

    @property
    def epoch(self) -> int:
        """Epoch of the present or next pass."""
        return self.dataset.epoch

    @property
    def decode_ahead_bytes(self) -> int:
        """Bytes that the next pass decodes ahead: the data set's number, or the number of `decode_within`."""
        return self._decode.budget_bytes

    def decode_within(self, budget_bytes: int) -> None:
        """Decode ahead at most `budget_bytes` from the next pass on. Persistent worker processes keep their budget.

        The row group in use and the next row group are held if their projected bytes fit, for any decoded size.
        """
        self._decode = replace(self._decode, budget_bytes=budget_bytes, least_groups=2)
        if self._workers is not None:
            self._workers.decode_as(self._decode)

    def metrics(self) -> Metrics:
        """Return counts since the loader was built: rows, bytes, requests, times. Any thread may call this."""
        return self._meter.metrics()

    @property
    def _is_accelerate_prepared(self) -> bool:
        """True, so that Accelerate leaves the loader as it is; else it would train every process on rank 0's rows."""
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, is_prepared: bool) -> None:
        """Record that Accelerate has prepared the loader; it writes this at the end of `prepare`."""
        if is_prepared and self._placement is None:
            self._placement = Placement.of_process(non_blocking=self.pin_memory)

    def place(self, device: torch.device | str | int | None, non_blocking: bool = False) -> None:
        """Give batches on `device` from the next pass on; Accelerate then follows each pass. None: do not move them."""
        self._placement = Placement(device=device, non_blocking=non_blocking)

    def set_epoch(self, epoch: int) -> None:
        """See TableDataset.set_epoch."""
        self.dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """See TableDataset.state_dict. Counts batches that the trainer received, not batches that were read ahead."""
        return self.dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """See TableDataset.load_state_dict."""
        self.dataset.load_state_dict(state)

    def __len__(self) -> int:
        """Return the number of batches of this rank in the present epoch, including batches already received.

        Raises:
            TypeError: row counts are not known, so only a pass can count them.
        """
        return len(self.dataset)

    def __getitem__(self, index: object) -> NoReturn:
        """Raise ConfigTypeError. See `refuse_number`."""
        refuse_number(self, index)

    def __iter__(self) -> Iterator[BatchT]:  # type: ignore[override]  # torch promises its own iterator class here
        # A generator, so that the pass begins with its first batch: Lightning makes the iterator, then sets the epoch.
        return closed_at_exit(epoch_pass(self.dataset, self._set_up))

    @property
    def gives_shaped_batches(self) -> bool:
        """True if batches are given as the shaper makes them, with no function, callback, worker or device between."""
        between = self._workers, self._placement, self._meter.callbacks, self.pin_memory, self.is_transformed
        return not any(between)

    def iterate_with(self, shaper: Shaper) -> Iterator[Any]:
        """Return a pass as `iter(loader)` does, whose batches another shaper makes. Needs `gives_shaped_batches`."""

        def set_up() -> PassSetup:
            return replace(self._set_up(), open_source=partial(self._open_threads, shaper=shaper))

        return closed_at_exit(epoch_pass(self.dataset, set_up))

    def _set_up(self) -> PassSetup:
        """Return the settings of a pass that begins now."""
        return PassSetup(
            topology=self.dataset.topology,
            open_source=self._open_source,
            num_processes=self.dataset.stages.num_processes,
            meter=self._meter,
            in_order=self.in_order,
            pins=self.pin_memory,
            placement=self._placement,
        )

    def _open_source(self, planned: PassPlan) -> BatchSource:
        """Start the threads, processes or actors of one pass."""
        if self._workers is None:
            return self._open_threads(planned, self.dataset.pipeline.shaper)
        self._workers = self._workers.reading(self.dataset.pipeline)
        rest_of = partial(planned.rest_of, self.dataset)
        delivered = self._workers.deliver(
            planned.inputs, planned.first_worker, planned.num_batches, self._meter, rest_of
        )
        return RemoteSource(delivered, planned.num_batches)

    def _open_threads(self, planned: PassPlan, shaper: Shaper) -> ThreadSource:
        pipeline, counters = replace(self.dataset.pipeline, shaper=shaper), self._meter.worker(self._decode.threads)
        return ThreadSource(WorkerStream(planned.inputs[0], pipeline, self._decode, counters), 0)


def _check_workers(dataset: object, num_workers: int | None) -> int:
    """Return the number of worker processes: the number that the data set's plan is made for."""
    if not isinstance(dataset, TableDataset):
        raise ConfigTypeError(
            f"TableDataLoader got {of_type(dataset)}: pass a StructuredDataset or an IcebergDataset, or use torch's "
            "DataLoader."
        )
    planned = dataset.topology.num_workers
    if num_workers is None:
        return dataset.stages.num_processes
    num_workers = check_integer("num_workers", num_workers, least=0)
    if max(1, num_workers) != planned:
        raise ConfigError(
            f"num_workers={num_workers}, and the data set was made for {planned}: each worker has its own part of the "
            "plan. Leave num_workers= out here, or make the data set with this number."
        )
    return num_workers
