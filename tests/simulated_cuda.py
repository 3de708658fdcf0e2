"""A CUDA device in main memory that does everything as late as a device may, and refuses what one refuses.

It stands in for a GPU where there is none, and shows what a GPU shows only now and then: a copy that is used before it
has arrived, a page-locked buffer that is written while a copy still reads it, memory that a stream uses and the
allocator does not know of, tensors of two devices in one operation. It says nothing of speed.

    with simulated_cuda():
        for batch in DevicePrefetcher(loader, "cuda:0"): ...
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("cuda:0")
# Copies; and indices may be on the CPU.
_MIX_DEVICES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default, torch.ops.aten.index.Tensor)


class Upload(NamedTuple):
    """One copy to the device."""

    num_bytes: int
    is_page_locked: bool
    is_async: bool
    stream: "SimulatedStream"


class SimulatedStream:
    """Work in its order, done when somebody waits for it, or earlier by chance.

    host_waits: how often the host stood still for what was not done yet.
    """

    def __init__(self, luck: Random | None = None) -> None:
        self.device = DEVICE
        self.done = 0
        self.host_waits = 0
        self._luck = luck
        self._work: deque[Callable[[], Any]] = deque()

    @property
    def given(self) -> int:
        return self.done + len(self._work)

    def add(self, work: Callable[[], Any]) -> None:
        self._work.append(work)

    def run_to(self, number: int) -> None:
        while self.done < number:
            self._work.popleft()()
            self.done += 1

    def go_on(self) -> None:
        """As far as the device happens to have come by now."""
        if self._luck is not None:
            self.run_to(self._luck.randint(self.done, self.given))

    def wait_event(self, event: "SimulatedEvent") -> None:
        self.add(event.reach)


class SimulatedEvent:
    """A place in the work of a stream."""

    def __init__(self) -> None:
        self._stream: SimulatedStream | None = None
        self._number = 0

    def record(self, stream: SimulatedStream) -> None:
        self._stream, self._number = stream, stream.given

    def query(self) -> bool:
        if self._stream is None:
            return True
        self._stream.go_on()
        return self._stream.done >= self._number

    def reach(self) -> None:
        if self._stream is not None:
            self._stream.run_to(self._number)

    def synchronize(self) -> None:
        if self._stream is not None and self._stream.done < self._number:
            self._stream.host_waits += 1
        self.reach()


class DeviceMemory:
    """What one allocation is known to be used by."""

    def __init__(self, stream: SimulatedStream) -> None:
        self.streams = {stream}


class DeviceTensor(torch.Tensor):
    """A tensor on the simulated device; `numbers` is what lies there."""

    numbers: torch.Tensor
    memory: DeviceMemory
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers: torch.Tensor, memory: DeviceMemory) -> "DeviceTensor":
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=DEVICE,
        )
        tensor.numbers, tensor.memory = numbers, memory
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} of a device tensor, where no device is simulated")

    def record_stream(self, stream: SimulatedStream) -> None:
        self.memory.streams.add(stream)

    # What follows asks for a driver before it asks for an operation.

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def item(self) -> Any:
        return self.cpu().item()

    def nonzero(self) -> Any:
        return torch.ops.aten.nonzero(self)

    def copy_(self, source: torch.Tensor) -> Any:
        return torch.ops.aten.copy_(self, source)

    def __int__(self) -> int:
        return int(self.cpu())

    def __getitem__(self, index: Any) -> torch.Tensor:
        tensor: torch.Tensor = self
        dim = 0
        for part in index if isinstance(index, tuple) else (index,):
            if part is None:
                tensor = torch.ops.aten.unsqueeze(tensor, dim)
            elif isinstance(part, slice):
                tensor = torch.ops.aten.slice(tensor, dim, part.start, part.stop, 1 if part.step is None else part.step)
            elif isinstance(part, torch.Tensor):
                tensor = torch.ops.aten.index(tensor, [None] * dim + [part])
            else:
                tensor, dim = torch.ops.aten.select(tensor, dim, part), dim - 1
            dim += 1
        return tensor


class SimulatedCuda(TorchDispatchMode):
    """The device, for what this thread does.

    page_locked: every page-locked piece of memory there was, kept, so that nothing else comes to lie there.
    uploads: every copy to the device that was begun. streams: those that were made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stream = SimulatedStream()
        self.page_locked: dict[int, torch.UntypedStorage] = {}
        self.uploads: list[Upload] = []
        self.streams: list[SimulatedStream] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.ops.aten.is_pinned.default:
            return self.is_page_locked(args[0])
        if func is torch.ops.aten._pin_memory.default:
            return self._lock_pages(args[0].clone())
        if kwargs.pop("pin_memory", False):
            return self._lock_pages(func(*args, **kwargs))
        device_tensors = self._checked(func, list(_leaves((*args, *kwargs.values()))))
        to = kwargs.get("device")
        if to is not None and to.type == "cuda":
            if func is torch.ops.aten._to_copy.default and not device_tensors:
                return self._uploaded(args[0], kwargs)
            kwargs["device"] = torch.device("cpu")
        numbers = func(*_numbers(args), **_numbers(kwargs)) if device_tensors else func(*args, **kwargs)
        if not device_tensors if to is None else to.type != "cuda":
            return numbers
        memory = device_tensors[0].memory if device_tensors and _is_alias(func) else DeviceMemory(self.stream)
        return _with(numbers, torch.Tensor, lambda tensor: DeviceTensor(tensor, memory))

    def _checked(self, func: Any, inputs: list[Any]) -> list[DeviceTensor]:
        """The device tensors among the inputs of an operation that may run, after all that is before it."""
        device_tensors = [tensor for tensor in inputs if isinstance(tensor, DeviceTensor)]
        if not device_tensors:
            return []
        if func not in _MIX_DEVICES:
            strangers = [t for t in inputs if isinstance(t, torch.Tensor) and t.is_cpu and t.dim() > 0]
            assert not strangers, f"{func}: tensors on cuda:0 and on the CPU"
        if _is_view(func):  # nothing that the device does
            return device_tensors
        for tensor in device_tensors:
            assert self.stream in tensor.memory.streams, f"{func}: the allocator was not told of this stream"
        self.stream.run_to(self.stream.given)
        return device_tensors

    def _uploaded(self, source: torch.Tensor, options: dict[str, Any]) -> DeviceTensor:
        """A copy that comes late; it reads page-locked memory when it comes, other memory at once."""
        assert options["device"] == DEVICE, f"there is no {options['device']}"
        there = source.to(options.get("dtype"), copy=True)
        is_async = bool(options.get("non_blocking"))
        if source.layout == torch.strided:
            is_page_locked = self.is_page_locked(source)
            self.uploads.append(Upload(source.nbytes, is_page_locked, is_async, self.stream))
            there.fill_(1)  # what lies there meanwhile
            read = source if is_page_locked and is_async else source.clone()
            self.stream.add(lambda: there.copy_(read))
        if not is_async:
            self.stream.run_to(self.stream.given)
        return DeviceTensor(there, DeviceMemory(self.stream))

    def is_page_locked(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cpu and tensor.untyped_storage().data_ptr() in self.page_locked

    def _lock_pages(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self.page_locked[storage.data_ptr()] = storage
        return tensor

    def new_stream(self, device: torch.device, luck: Random | None) -> SimulatedStream:
        assert device == DEVICE, f"there is no {device}"
        self.streams.append(SimulatedStream(luck))
        return self.streams[-1]

    def current_stream(self, device: torch.device = DEVICE) -> SimulatedStream:
        assert device == DEVICE, f"there is no {device}"
        return self.stream

    @contextmanager
    def on_stream(self, stream: SimulatedStream) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before


@contextmanager
def simulated_cuda(seed: int | None = None) -> Iterator[SimulatedCuda]:
    """Inside, this thread has the device cuda:0.

    seed: how far copies come by themselves. None: nowhere, each must be waited for.
    """
    luck = None if seed is None else Random(seed)
    with (
        SimulatedCuda() as device,
        patch("torch.cuda._lazy_init", lambda: None),
        patch("torch.cuda.is_available", lambda: True),
        patch("torch.cuda.device_count", lambda: 1),
        patch("torch.cuda.Stream", lambda where: device.new_stream(where, luck)),
        patch("torch.cuda.Event", SimulatedEvent),
        patch("torch.cuda.stream", device.on_stream),
        patch("torch.cuda.current_stream", device.current_stream),
    ):
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=) begins on the CPU
        try:
            yield device
        finally:
            torch._C._set_only_lift_cpu_tensors(False)


@contextmanager
def simulated_nccl(seed: int | None = None) -> Iterator[SimulatedCuda]:
    """Inside, process groups of gloo say that they are of NCCL, and take tensors of the simulated device alone."""

    def on_numbers(collective: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            tensors = [leaf for leaf in _leaves((*args, *kwargs.values())) if isinstance(leaf, torch.Tensor)]
            assert all(isinstance(tensor, DeviceTensor) for tensor in tensors), "NCCL was given a tensor on the CPU"
            return collective(*_numbers(args), **_numbers(kwargs))

        return call

    names = ("broadcast", "all_reduce", "all_gather", "all_to_all_single")
    with (
        simulated_cuda(seed) as device,
        patch.multiple(dist, **{name: on_numbers(getattr(dist, name)) for name in names}),
        patch("torch.distributed.get_backend_config", lambda _=None: "cuda:nccl"),
        patch("torch.cuda.current_device", lambda: 0),
    ):
        yield device


# As `tree_leaves` and `tree_map_only` of torch for what operations take and give, in a fraction of the time.


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _leaves(value)
        else:
            yield value


def _with(values: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    if isinstance(values, kind):
        return change(values)
    if isinstance(values, list | tuple):
        return type(values)([_with(value, kind, change) for value in values])
    if isinstance(values, dict):
        return {name: _with(value, kind, change) for name, value in values.items()}
    return values


def _numbers(values: Any) -> Any:
    return _with(values, DeviceTensor, lambda tensor: tensor.numbers)


def _is_alias(func: Any) -> bool:
    return any(result.alias_info is not None for result in func._schema.returns)


def _is_view(func: Any) -> bool:
    return _is_alias(func) and not any(result.alias_info.is_write for result in func._schema.returns)
