"""Finds the number of ranks and the rank of this process, and checks the numbers that a user passed."""

import os
import sys
from typing import TYPE_CHECKING

import torch.distributed as dist

from torch_dataloader_utils._core.arguments import check_integer, is_integer
from torch_dataloader_utils._runtime.user_warning import warn_user
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


# Names of mesh dimensions in torchtitan, Accelerate, Lightning and PyTorch's tutorials. Along data dimensions,
# processes train on different rows; along model dimensions, they work on the same batch together.
_DATA_DIMENSIONS = frozenset(
    [
        "dp",
        "ddp",
        "fsdp",
        "hsdp",
        "batch",
        "data",
        "data_parallel",
        "replicate",
        "shard",
        "dp_replicate",
        "dp_shard",
        "dp_shard_mod_ep",
        "dp_shard_in_ep",
    ]
)
_MODEL_DIMENSIONS = frozenset(
    [
        "tp",
        "cp",
        "pp",
        "sp",
        "ep",
        "etp",
        "model",
        "tensor_parallel",
        "context_parallel",
        "pipeline_parallel",
        "sequence_parallel",
        "expert_parallel",
        "model_parallel",
    ]
)


def resolve_ranks(
    num_ranks: int | str, rank: int, mesh: "DeviceMesh | None" = None, *, check_ranks: bool = True
) -> tuple[int, int]:
    """Return (num_ranks, rank) among the processes that train on different rows.

    With a mesh: see `mesh_ranks`. "auto" asks torch.distributed if it is up, else a Ray Train worker's context, else
    RANK and WORLD_SIZE, else gives (1, 0).

    Before torch.distributed is up, a warning says if the launcher names another rank than `rank`.

    Raises:
        ConfigTypeError: num_ranks is neither "auto" nor a whole number.
        ConfigError: num_ranks is passed beside a mesh; the mesh or the environment names no rank for this process, or
            another rank than `rank`; or `check_running` fails, which check_ranks=False leaves out.
    """
    if mesh is not None:
        if num_ranks not in (1, "auto") or rank != 0:
            raise ConfigError(f"num_ranks={num_ranks!r}, rank={rank} and mesh: the mesh says both; pass only mesh.")
        return mesh_ranks(mesh)
    if num_ranks == "auto":
        return _checked_rank(rank, *_surrounding_ranks())
    if not is_integer(num_ranks):
        raise ConfigTypeError(f'num_ranks={num_ranks!r}: pass the number of training processes, or "auto".')
    num_ranks = check_integer("num_ranks", num_ranks, least=1)
    if check_ranks:
        check_running(num_ranks, rank)
        _warn_if_not_ours(num_ranks, rank)
    return num_ranks, rank


def mesh_ranks(mesh: "DeviceMesh") -> tuple[int, int]:
    """Return (num_ranks, rank) along the data-parallel dimensions of a mesh; other dimensions share their data.

        shape (2, 2, 2), names ("dp_replicate", "dp_shard", "tp")      global ranks 0 1  2 3  4 5  6 7
        gives num_ranks=4 and                                                 rank 0 0  1 1  2 2  3 3

    A mesh without names must have one dimension. Without a data-parallel dimension, all processes read everything.

    Raises:
        ConfigError: the kind of a dimension is not known, or this process is not in the mesh.
    """
    names = mesh.mesh_dim_names or (("dp",) if mesh.ndim == 1 else ())
    if not names or not set(names) <= _DATA_DIMENSIONS | _MODEL_DIMENSIONS:
        raise ConfigError(
            f"mesh has the dimensions {names or mesh.ndim}, and it is not known which dimensions are data-parallel. "
            'Pass the part of the mesh along which processes train on different rows, such as mesh["dp_replicate", '
            '"dp_shard"].'
        )
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ConfigError("This process is not in mesh. Pass the mesh of this process.")
    rank, num_ranks = 0, 1
    for name, size, place in zip(names, mesh.shape, coordinate, strict=True):
        if name in _DATA_DIMENSIONS:
            rank, num_ranks = rank * size + place, num_ranks * size
    return num_ranks, rank


def mesh_members(mesh: "DeviceMesh | None") -> tuple[int, ...]:
    """Return the global ranks of all processes of a mesh; () for None."""
    return () if mesh is None else tuple(mesh.mesh.flatten().tolist())


def running_ranks() -> int:
    """Return the number of processes of torch.distributed; 0 if it is not up."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 0


def check_running(num_ranks: int, rank: int) -> None:
    """Check num_ranks and rank of a loader against torch.distributed, if it is up.

    Raises:
        ConfigError: torch.distributed has another number of ranks, or another rank for this process.
    """
    running = running_ranks()
    if running == 0 or (num_ranks, rank) == (running, found := dist.get_rank()):
        return
    if num_ranks == 1:
        effect = "every one of them would read every row"
    elif num_ranks == running:
        effect = "some rows would be read twice and others never"
    else:
        effect = "some rows would be read several times" if num_ranks < running else "some rows would never be read"
    raise ConfigError(
        f"num_ranks={num_ranks} and rank={rank}, but torch.distributed runs {running} ranks, and this process is rank "
        f'{found}: {effect}. Pass num_ranks="auto", which finds both; mesh= where several processes train on the same '
        "rows (tensor or pipeline parallelism); or check_ranks=False if these numbers are meant."
    )


def _warn_if_not_ours(num_ranks: int, rank: int) -> None:
    """Warn if `rank` is not the launcher's: it was left out and so is 0 everywhere, or it is the local rank."""
    if running_ranks():
        return
    try:
        surrounding, found = _surrounding_ranks()
    except ConfigError:  # the launcher does not name the rank
        return
    if num_ranks > 1 and num_ranks == surrounding and rank != found:
        warn_user(
            f"rank={rank} of num_ranks={num_ranks}, but this process is rank {found}, as its launcher "
            'says: some rows would be read twice and others never. Pass num_ranks="auto", which finds both.'
        )


def _checked_rank(rank: int, num_ranks: int, found: int) -> tuple[int, int]:
    """Return (num_ranks, found); beside "auto", `rank` must be left out (0) or equal."""
    if rank not in (0, found):
        raise ConfigError(
            f'num_ranks="auto" found rank {found} of {num_ranks}, and rank={rank!r} was passed. Leave rank out, or '
            "pass num_ranks as a number too."
        )
    return num_ranks, found


def _surrounding_ranks() -> tuple[int, int]:
    running = running_ranks()
    if running:
        return running, dist.get_rank()
    ray_context = _ray_context()
    if ray_context is not None:
        return ray_context
    num_ranks, rank = _from_environment("WORLD_SIZE"), _from_environment("RANK")
    # Lightning's launcher sets only one of them, so the rank is unknown before torch.distributed is up.
    if rank is None and num_ranks is not None and num_ranks > 1:
        raise ConfigError(
            f'num_ranks="auto" found WORLD_SIZE={num_ranks} but no RANK, and torch.distributed is not up yet. Build '
            "the loader after it is (with Lightning: in train_dataloader of a DataModule), or pass num_ranks and rank."
        )
    return 1 if num_ranks is None else num_ranks, rank or 0


def processes_of_host() -> int:
    """Return the number of processes that a launcher such as torchrun started on this host; 1 if it does not say."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(int(text), 1) if text.isascii() and text.isdigit() else 1


def _from_environment(name: str) -> int | None:
    """Return the number in an environment variable of a launcher; None if it is not set."""
    text = os.environ.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(
            f'num_ranks="auto" found {name}={text!r} in the environment, which is not a whole number. Set it as '
            "launchers do, or pass num_ranks and rank."
        ) from error


def _ray_context() -> tuple[int, int] | None:
    """Return (num_ranks, rank) in a worker of Ray Train, else None. Never imports Ray."""
    ray_train = sys.modules.get("ray.train")
    if ray_train is None:
        return None
    try:
        context = ray_train.get_context()
    except (RuntimeError, DeprecationWarning):  # raised outside of a worker, and inside Ray Tune
        return None
    return context.get_world_size(), context.get_world_rank()
