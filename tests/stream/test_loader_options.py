"""Options of the loader itself: another type is refused before anything is read, with or without worker processes."""

import multiprocessing
import sys
from functools import partial
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.stream.tables import write_table
from torch_dataloader_utils import (
    DevicePrefetcher,
    LoaderCallback,
    RemoteOptions,
    StructuredDataset,
    TableDataLoader,
    blend,
)
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError
from torch_dataloader_utils.stream.transport.sendable import check_functions


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    write_table(folder, [[13, 7]])
    return str(folder)


class Count(LoaderCallback):
    def __init__(self):
        self.batches = 0

    def on_batch(self, run, batch):
        self.batches += 1


def load(path, **options):
    return StructuredDataset.create_dataloader(path, **{"batch_size": 8, "num_workers": 0, **options})[0]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("callbacks", [1], "callbacks: 1 is not a LoaderCallback"),
        ("callbacks", "x", "callbacks is a str: pass a list"),
        ("callbacks", Count(), "callbacks is a Count: pass a list"),
        ("callbacks", [Count], "is not a LoaderCallback. Pass objects"),
        ("mesh", "x", "mesh is a str: pass a DeviceMesh"),
        ("timeout", None, "timeout=None: pass a finite number of seconds"),
        ("timeout", "", "timeout='': pass a finite number of seconds"),
        ("timeout", -1, "timeout=-1: pass a finite number of seconds"),
        ("pin_memory", "x", "pin_memory='x': pass True or False"),
        ("pin_memory_device", "cuda", "Unknown option 'pin_memory_device'; did you mean 'pin_memory'"),
        ("in_order", "x", "in_order='x': pass True or False"),
        ("worker_init_fn", 3, "worker_init_fn is an int: pass a function"),
        ("generator", 3, "generator is an int: pass a torch.Generator"),
        ("persistent_workers", "x", "persistent_workers='x': pass True or False"),
        ("prefetch_factor", "x", "prefetch_factor='x': pass a whole number of at least 1"),
        ("prefetch_factor", 0, "prefetch_factor=0: pass a whole number of at least 1"),
        ("multiprocessing_context", 3, "multiprocessing_context=3: pass one of"),
        ("multiprocessing_context", "thread", "multiprocessing_context='thread': pass one of"),
    ],
)
def test_an_option_of_another_type_is_refused(table, name, value, says, num_workers):
    with pytest.raises(ConfigError, match=says):
        load(table, num_workers=num_workers, **{name: value})


@pytest.mark.parametrize("name", ["timeout", "mesh", "callbacks", "in_order"])
def test_they_are_refused_before_anything_is_read(tmp_path, name):
    with pytest.raises(ConfigTypeError, match=name):
        load(tmp_path / "nothing there", **{name: "x"})


@pytest.mark.processes
def test_no_callbacks_and_numpy_values_are_taken(table):
    watch = Count()
    assert len(list(load(table, callbacks=None, pin_memory=np.False_, in_order=1, timeout=np.int64(0)))) == 3
    context = multiprocessing.get_context("fork")
    options = {"prefetch_factor": np.int64(2), "timeout": np.float32(60), "multiprocessing_context": context}
    assert len(list(load(table, num_workers=1, callbacks=iter([watch]), generator=torch.Generator(), **options))) == 3
    assert watch.batches == 3


def test_only_loaders_of_this_package_are_prefetched(table):
    for loader in (3, [1, 2], DataLoader([1, 2])):
        with pytest.raises(ConfigTypeError, match="pass a loader from create_dataloader or blend"):
            DevicePrefetcher(loader, "cpu")


@pytest.mark.parametrize("device", [None, 3.5, "cudaa", "", "cuda:x"])
def test_a_device_that_is_none_is_refused(table, device):
    with pytest.raises(ConfigError, match=r"pass a torch\.device or its name"):
        DevicePrefetcher(load(table), device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused(table):
    with pytest.raises(ConfigError, match="finds no CUDA device"):
        DevicePrefetcher(load(table), "cuda")


@pytest.mark.parametrize("depth", ["2", 1.5, None])
def test_a_depth_is_a_whole_number(table, depth):
    with pytest.raises(ConfigTypeError, match="depth"):
        DevicePrefetcher(load(table), "cpu", depth=depth)


@pytest.mark.processes
@pytest.mark.parametrize(("made_for", "asked"), [(2, 0), (2, 1), (0, 2), (1, 2)])
def test_a_loader_has_the_workers_that_its_data_set_is_planned_for(table, made_for, asked):
    dataset = StructuredDataset(table, batch_size=8, num_workers=made_for)
    with pytest.raises(ConfigError, match=f"num_workers={asked}, and the data set was made for {max(1, made_for)}"):
        TableDataLoader(dataset, num_workers=asked)
    assert TableDataLoader(dataset).num_workers == made_for
    assert sum(batch.num_rows for batch in TableDataLoader(dataset)) == 20


def test_a_loader_is_of_a_data_set_of_this_package(table):
    with pytest.raises(ConfigTypeError, match="TableDataLoader got an int: pass a StructuredDataset"):
        TableDataLoader(3, num_workers=0)
    with pytest.raises(ConfigTypeError, match="num_workers='2'"):
        TableDataLoader(StructuredDataset(table), num_workers="2")


@pytest.mark.parametrize("how", ["own loader", "blend"])
def test_credentials_that_cannot_be_sent_to_workers_are_refused_of_any_loader(table, how):
    dataset = StructuredDataset(table, batch_size=8, num_workers=1, credentials=lambda: {})  # noqa: PIE807
    multiprocessing.set_start_method("spawn", force=True)
    try:
        with pytest.raises(ConfigError, match="cannot be sent to worker processes"):
            TableDataLoader(dataset) if how == "own loader" else blend([dataset], [1])
    finally:
        multiprocessing.set_start_method(None, force=True)


def test_workers_are_not_forked_once_obstore_was_used(table):
    options = {"batch_size": 8, "num_workers": 1, "remote": RemoteOptions(backend="obstore")}
    loaders = [load(table, **options), TableDataLoader(StructuredDataset(table, **options))]
    assert [loader.multiprocessing_context.get_start_method() for loader in loaders] == ["forkserver", "forkserver"]
    spawned = TableDataLoader(StructuredDataset(table, **options), multiprocessing_context="spawn")
    assert spawned.multiprocessing_context.get_start_method() == "spawn"
    assert load(table, num_workers=0, remote=options["remote"]).multiprocessing_context is None


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_an_init_function_that_cannot_be_sent_to_workers_is_refused_when_the_loader_is_built(table, context):
    with pytest.raises(ConfigError, match=r"lambda.*cannot be sent to worker processes"):
        StructuredDataset.create_dataloader(
            table, num_workers=1, worker_init_fn=lambda _: None, multiprocessing_context=context
        )


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_function_of_a_notebook_cannot_go_to_processes_that_do_not_inherit_it(method, monkeypatch):
    main = ModuleType("__main__")
    exec("def double(batch): return 2 * batch", main.__dict__)
    double = main.double
    monkeypatch.setitem(sys.modules, "__main__", main)
    for functions in ([double], [dict, partial(map, double)]):
        with pytest.raises(ConfigError, match=r"is defined in a notebook .*Write it into a \.py file.*num_workers=0"):
            check_functions(functions, method)
    check_functions([double], "fork")
    check_functions([partial(dict, a=1)], method)
    monkeypatch.setattr(main, "__file__", "program.py", raising=False)
    check_functions([double], method)
