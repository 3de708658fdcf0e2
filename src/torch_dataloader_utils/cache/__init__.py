"""The cache of a host: bytes of remote files that all processes of a host keep and share on its disk.

In: spans of files with a known identity, and a function that fetches spans. Out: the bytes of the spans, fetched once a
host. `host_cache` is the cache that users configure, `entries` are the files on disk, `index` knows the space and
evicts, `schedules` are the reads that plans announce, `kept_values` are footers and row counts, and `breaker` decides
when a cache that fails is left alone.

Promises: bytes have the pinned identity and are checked by a digest; a damaged or missing entry is fetched again. Not
for deciding which bytes are fetched, or how; `_store` asks this room.
"""
