"""Handlers that wait while workers are started come back, whatever is raised meanwhile."""

import signal

import pytest

from torch_dataloader_utils._runtime import processes as held_signals
from torch_dataloader_utils._runtime.processes import held


@pytest.mark.parametrize("at", [1, 2])
def test_all_handlers_come_back_where_one_that_is_back_already_raises(monkeypatch, at):
    numbers, calls, put = (signal.SIGUSR1, signal.SIGUSR2), [], signal.signal

    def interrupted(number, handler):
        calls.append(number)
        if len(calls) == at:
            raise KeyboardInterrupt
        return put(number, handler)

    before = [put(number, lambda number, frame: None) for number in numbers]
    try:
        handlers = [signal.getsignal(number) for number in numbers]
        hold = held(*numbers)
        hold.__enter__()
        assert [signal.getsignal(number) for number in numbers] != handlers
        monkeypatch.setattr(held_signals.signal, "signal", interrupted)
        with pytest.raises(KeyboardInterrupt):
            hold.__exit__(None, None, None)
        assert [signal.getsignal(number) for number in numbers] == handlers
    finally:
        monkeypatch.undo()
        for number, handler in zip(numbers, before, strict=True):
            put(number, handler)
