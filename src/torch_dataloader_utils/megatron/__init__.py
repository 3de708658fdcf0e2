"""Megatron-Core's data pipeline: a product of its own under this roof.

    corpora/      indexed token data sets, GPT samples, blends and samplers, with the files and orders of Megatron-Core
    schedules/    sequences of unequal length, packed and spread over data- and context-parallel ranks

No stage of tables imports this room, and this room imports no stage; only `corpora/corpus_build` reads tables.
"""
