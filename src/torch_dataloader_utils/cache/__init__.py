"""The cache of a host: bytes of remote files that all processes of a host keep and share on its disk.

In: spans of files with a known identity, and a function that fetches spans. Out: their bytes, fetched once a host.
`host_cache` is what users configure, `entries` are the files on disk, `index` knows the space and evicts, `schedules`
are the reads that plans announce, and `kept_files` is the small cache of footers and counts of rows.

Promises: bytes are those of the pinned identity, checked by a digest; a damaged or missing entry is fetched again. Not
for: deciding what is fetched, or how; `_store` asks this room.
"""
