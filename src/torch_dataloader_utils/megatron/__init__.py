"""Megatron-Core's data pipeline, a product of its own in this package.

    corpora/      indexed token data sets, GPT samples, blends and samplers, with the files and orders of Megatron-Core
    schedules/    sequences of unequal length, packed and spread over data- and context-parallel ranks

`megatron` and the stages of tables do not import each other; only `corpora/corpus_build` reads tables.
"""
