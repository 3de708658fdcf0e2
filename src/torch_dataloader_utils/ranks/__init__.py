"""Communication between the ranks of a job. For tables, only this package uses torch.distributed.

    resolve     number of ranks, and the rank of this process
    agree       one result or one error for all ranks; collectives, so every rank calls them
    compare     check that all ranks read the same; no rank waits for a missing rank
    gather      metrics of all ranks in one value

Elsewhere, `megatron/corpora/dataset_builder.py` finds the first process of a host, `wrappers/sharded.py` reads the
group or mesh of a user, and `megatron/schedules/` uses groups of its own.
"""
