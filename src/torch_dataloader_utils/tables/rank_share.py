"""The part of this process in the reading before the first batch, and whether it shows progress bars for that."""

from torch_dataloader_utils._core.share import Share
from torch_dataloader_utils.stream.alike import check_alike
from torch_dataloader_utils.stream.rank_work import add_over_ranks, all_or_none, counting_part
from torch_dataloader_utils.stream.ranks import resolve_ranks
from torch_dataloader_utils.tables.table_options import TableOptions


def shows_bars(options: TableOptions) -> bool:
    """Whether this process shows progress bars before the first batch: rank 0 does, if show_progress is set."""
    if not options.show_progress:
        return False
    if options.num_ranks == "auto" or options.mesh is not None:
        return resolve_ranks(options.num_ranks, options.rank, options.mesh)[1] == 0
    return options.rank == 0


def counting_share(options: TableOptions, num_ranks: int, rank: int) -> Share:
    """The share of this process: its part if a process group of `num_ranks` runs, else all the work."""
    index, count = counting_part(num_ranks, rank)
    threads = options.threads
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


def scanning_share(options: TableOptions) -> Share:
    """The share of a scan: with all ranks if they read together after it, so that an error reaches all of them."""
    if not options.reads_before_plan or (options.num_ranks == 1 and options.mesh is None):
        return Share()
    return counting_share(options, *resolve_ranks(options.num_ranks, options.rank, options.mesh))
