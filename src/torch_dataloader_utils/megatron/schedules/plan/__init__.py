"""Plan which rank computes which sequences of a global batch: pure arithmetic on lengths.

In: the lengths of a global batch (tokens, in data-parallel rank order), a `PackingShape`, a `SchedulePolicy`,
a `CostModel`. Out: a `Schedule`: packs of sequences, each on a span of ranks of one microbatch.

Promises: every sequence once, no pack above its capacity, the same answer on every rank, in every process and on
every machine (integers only, no random numbers, ties by position). The standard library and numpy only.

Not for: moving data (see the modules of `schedules`), or packing documents into samples of one length
(`megatron.corpora` before training, `samples` while reading).
"""
