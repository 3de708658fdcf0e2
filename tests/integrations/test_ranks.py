"""`num_ranks="auto"`, meshes and the warnings of loaders that nobody shares, without starting processes."""

import gc
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tests.integrations.jobs import write_rows
from torch_dataloader_utils import StructuredDataset
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.ranks.resolve import resolve_ranks


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """A process group of many ranks that this process is one of; collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    size, rank = request.param
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    yield size, rank
    dist.destroy_process_group()


def test_nothing_around_is_one_rank() -> None:
    assert resolve_ranks("auto", 0) == (1, 0)


def test_a_launcher_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    assert resolve_ranks("auto", 0) == (4, 3)


def test_a_worker_of_ray_train_is_asked_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # Stands in for Ray, whose workers take minutes to start: tests/examples runs the real one, where it is installed.
    context = SimpleNamespace(get_world_size=lambda: 4, get_world_rank=lambda: 2)
    monkeypatch.setitem(sys.modules, "ray.train", SimpleNamespace(get_context=lambda: context))
    monkeypatch.setenv("WORLD_SIZE", "9")
    monkeypatch.setenv("RANK", "8")
    assert resolve_ranks("auto", 0) == (4, 2)


@pytest.mark.parametrize("raised", [RuntimeError, DeprecationWarning])
def test_ray_outside_of_its_workers_is_not_asked(monkeypatch: pytest.MonkeyPatch, raised: type[Exception]) -> None:
    def get_context() -> None:
        raise raised("not in a worker")

    monkeypatch.setitem(sys.modules, "ray.train", SimpleNamespace(get_context=get_context))
    assert resolve_ranks("auto", 0) == (1, 0)


def test_half_a_launcher_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="no RANK"):
        resolve_ranks("auto", 0)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_what_is_no_number_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for each in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(each, "first" if each == name else "2")
    with pytest.raises(ConfigError, match=f"{name}='first' in the environment.*pass num_ranks and rank"):
        resolve_ranks("auto", 0)


@pytest.mark.parametrize("group", [(4, 3)], indirect=True)
def test_a_loader_does_not_hold_its_mesh(group: tuple[int, int], tmp_path: Path) -> None:
    write_rows(tmp_path / "table")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    loader, dataset = StructuredDataset.create_dataloader(tmp_path / "table", mesh=mesh, num_workers=0)
    held = set(map(id, (mesh, mesh.get_group("dp"), mesh.get_group("tp"))))
    seen: set[int] = set()
    left: list[object] = [loader, dataset]
    while left:
        each = left.pop()
        if id(each) not in seen and not isinstance(each, type | ModuleType | FunctionType):
            seen.add(id(each))
            left += gc.get_referents(each)
    assert not held & seen
    assert (dataset.plan.topology.num_ranks, dataset.rank) == (2, 1)


@pytest.mark.parametrize("group", [(8, rank) for rank in range(8)], indirect=True)
def test_data_parallel_dimensions_count_and_others_share(group: tuple[int, int]) -> None:
    rank = group[1]
    names = ("dp_replicate", "dp_shard", "tp")
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=names)
    assert resolve_ranks(1, 0, mesh) == (4, rank // 2)
    assert resolve_ranks("auto", 0, mesh["dp_replicate", "dp_shard"]) == (4, rank // 2)
    assert resolve_ranks(1, 0, mesh["dp_shard"]) == (2, rank // 2 % 2)
    assert resolve_ranks(1, 0, mesh["tp"]) == (1, 0)
    context = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_shard", "cp", "tp"))
    assert resolve_ranks("auto", 0, context) == (2, rank // 4)
    pipeline_first = init_device_mesh("cpu", (2, 4), mesh_dim_names=("pp", "dp"))
    assert resolve_ranks(1, 0, pipeline_first) == (4, rank % 4)
    assert resolve_ranks(1, 0, init_device_mesh("cpu", (8,))) == (8, rank)
    assert resolve_ranks("auto", 0) == (8, rank)


@pytest.mark.parametrize("group", [(4, 3)], indirect=True)
def test_a_mesh_that_does_not_say_who_shares_is_an_error(group: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="not known"):
        resolve_ranks(1, 0, init_device_mesh("cpu", (2, 2)))
    with pytest.raises(ConfigError, match="rows_and_columns"):
        resolve_ranks(1, 0, init_device_mesh("cpu", (4,), mesh_dim_names=("rows_and_columns",)))
    with pytest.raises(ConfigError, match="pass only mesh"):
        resolve_ranks(4, 3, init_device_mesh("cpu", (4,), mesh_dim_names=("dp",)))
    with pytest.raises(ConfigError, match="not in mesh"):
        resolve_ranks(1, 0, DeviceMesh("cpu", [0, 1], mesh_dim_names=("dp",)))


@pytest.mark.parametrize("group", [(2, 1)], indirect=True)
@pytest.mark.parametrize(
    ("num_ranks", "rank", "effect"),
    [
        (1, 0, "every one of them would read every row"),
        (4, 1, "some rows would never be read"),
        (2, 0, "some rows would be read twice and others never"),
    ],
)
def test_a_loader_for_other_ranks_than_those_that_run_is_an_error(
    group: tuple[int, int], tmp_path: Path, num_ranks: int, rank: int, effect: str
) -> None:
    table = write_rows(tmp_path / "table")
    with pytest.raises(ConfigError, match=effect):
        StructuredDataset.create_dataloader(table, num_ranks=num_ranks, rank=rank)
    loader, _ = StructuredDataset.create_dataloader(table, num_ranks=num_ranks, rank=rank, check_ranks=False)
    assert sum(batch.num_rows for batch in loader) > 0


def test_a_loader_for_another_rank_warns_before_the_group_is_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = write_rows(tmp_path / "table")
    monkeypatch.setenv("WORLD_SIZE", "2")
    StructuredDataset.create_dataloader(table, num_ranks=2)  # Lightning's launcher does not say which rank this is
    monkeypatch.setenv("RANK", "1")
    with pytest.warns(UserWarning, match=r"rank=0 of num_ranks=2, but this process is rank 1"):
        StructuredDataset.create_dataloader(table, num_ranks=2)
    StructuredDataset.create_dataloader(table, num_ranks=2, rank=1)
    StructuredDataset.create_dataloader(table, num_ranks=4, rank=0)
    monkeypatch.delenv("WORLD_SIZE")
    StructuredDataset.create_dataloader(table)


def test_a_rank_beside_auto_has_to_be_the_one_that_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"found rank 0 of 1, and rank=3 was passed. Leave rank out"):
        resolve_ranks("auto", 3)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    assert resolve_ranks("auto", 3) == (4, 3)


def test_a_loader_that_is_built_too_early_is_refused_where_it_is_used(tmp_path: Path) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    loader, _ = StructuredDataset.create_dataloader(write_rows(tmp_path / "table"), num_ranks="auto")
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        with pytest.raises(ConfigError, match="every one of them would read every row"):
            next(iter(loader))
    finally:
        dist.destroy_process_group()
