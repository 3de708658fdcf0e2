"""How ranks agree before the first batch: on their numbers, on shares of the work, and on equal options."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from torch_dataloader_utils._arrow.row_filter import filter_text
from torch_dataloader_utils._core.division import Share
from torch_dataloader_utils._core.inventory import short_digest
from torch_dataloader_utils.datasets.options import TableOptions
from torch_dataloader_utils.errors import ConfigError
from torch_dataloader_utils.plan.strategy_call import find_strategy, strategy_name
from torch_dataloader_utils.ranks.agree import add_over_ranks, all_or_none, counting_part, takes_cpu_tensors
from torch_dataloader_utils.ranks.compare import check_alike, name_of_call, options_record, publish
from torch_dataloader_utils.ranks.resolve import mesh_members, resolve_ranks, running_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Number of ranks that read different rows, and the rank of this process.

    peers: Global ranks that are compared: () for the whole process group, None to compare nothing.
    """

    num_ranks: int = 1
    rank: int = 0
    peers: tuple[int, ...] | None = None

    @classmethod
    def of(cls, options: TableOptions) -> "Ranks":
        """Find the ranks of a job; see `resolve_ranks`."""
        num_ranks, rank = resolve_ranks(options.num_ranks, options.rank, options.mesh, check_ranks=options.check_ranks)
        return cls(num_ranks=num_ranks, rank=rank, peers=mesh_members(options.mesh) if options.check_ranks else None)


def shows_bars(options: TableOptions) -> bool:
    """Return whether this process shows progress bars before the first batch: rank 0 with show_progress."""
    return options.show_progress and options.rank == 0


def counting_share(options: TableOptions, ranks: Ranks) -> Share:
    """Return the share of this process: its part if a process group of all ranks runs, else all the work."""
    threads = options.threads
    index, count = counting_part(ranks.num_ranks, ranks.rank)
    if count == 1:
        return Share(threads=threads)
    return Share(
        index=index,
        count=count,
        exchange=add_over_ranks,
        together=all_or_none,
        check_alike=check_alike,
        threads=threads,
    )


def compared_options(options: TableOptions, num_ranks: int) -> dict[str, str]:
    """Return the options that must be equal on all ranks, as texts."""
    shown = {each.name: getattr(options, each.name) for each in fields(options) if not each.metadata["is_of_rank"]}
    shown["num_ranks"] = num_ranks
    # A state says for all ranks how rows were assigned to workers.
    shown["num_workers"] = max(1, options.worker_processes)
    # Literals are values of the data, which no message repeats.
    shown["filters"] = "none" if options.filters is None else short_digest(filter_text(options.filters).encode())
    if options.split_strategy is not None:
        shown["split_strategy"] = strategy_name(find_strategy(options.split_strategy)) or None
    shown["sequences"] = options.sequences and options.sequences.describe()
    shown["pack"] = options.pack and options.pack.describe(joins=True)
    return options_record(shown)


def is_scanned_once(options: TableOptions, ranks: Ranks, *, is_remote: bool) -> bool:
    """Return whether rank 0 scans for all ranks.

    By default each rank scans local files: each host may have a copy of the files, with times of its own.
    """
    if options.broadcast_inventory is not None:
        return options.broadcast_inventory
    # With NCCL alone, ranks that have not chosen their GPU yet would all use the first GPU.
    can_meet = is_remote and options.check_ranks and running_ranks() > 1 and takes_cpu_tensors()
    return can_meet and counting_part(ranks.num_ranks, ranks.rank)[1] > 1


def check_refreshable(num_ranks: int, peers: Sequence[int] | None) -> bool:
    """Return whether the ranks of a data set look for newer data together; False for a process that reads alone.

    Args:
        peers: Global ranks of its mesh; () for the whole process group, None if ranks are not compared.

    Raises:
        ConfigError: several ranks without a process group of all ranks, which might find different data.
    """
    running = running_ranks()
    if running > 1 and running in (num_ranks, len(peers or ())):
        return True
    if num_ranks > 1:
        raise ConfigError(
            f"A refresh of {num_ranks} ranks needs a process group of them, so that all read what rank 0 finds, and "
            f"torch.distributed runs {running or 'no'} ranks. Initialise it first, or make new loaders of one snapshot."
        )
    return False


def compare_options(options: TableOptions, ranks: Ranks, *, meets: bool) -> None:
    """Compare the options of all ranks.

    Args:
        meets: Compare now, since a collective follows. Otherwise ranks compare at their second batch.

    Raises:
        ConfigError: the options differ.
    """
    if not options.check_ranks or ranks.peers is None or running_ranks() < 2:
        return
    comparison = publish(name_of_call("build"), ranks.peers, compared_options(options, ranks.num_ranks))
    if meets:
        comparison.wait()


def scanning_share(options: TableOptions, ranks: Ranks) -> Share:
    """Return the share of a scan: all ranks, if the ranks read together after the scan, so that all get its errors."""
    return counting_share(options, ranks) if options.reads_before_plan else Share()
