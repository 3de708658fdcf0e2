"""Who meets when: all that the ranks of a job say to each other. For tables, only this room uses torch.distributed.

    resolve     how many ranks there are, and which one this process is
    agree       one result or one error for all ranks: every rank calls it, or all wait
    compare     whether all ranks read the same: nobody waits for a rank that never comes
    gather      the metrics of all ranks in one value

Elsewhere, `megatron/corpora/dataset_builder.py` finds which process of a host goes first, `wrappers/sharded.py` reads
the group or mesh of a user, and `megatron/schedules/` uses groups of its own.
"""
