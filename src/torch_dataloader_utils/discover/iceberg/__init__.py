"""Iceberg tables: from a catalog or a metadata file to an inventory.

    catalog → metadata → snapshot → manifests → files and their deletes → row groups

In: a table name with catalog properties, or the place of a metadata file. Out: an `Inventory` of the live data files,
sorted by path, whose `extras` (`IcebergFile`) say how a reader maps columns by field id and which rows are deleted.
Deletes are read here only where positions count (position deletes, deletion vectors); equality deletes travel as
references.

pyiceberg parses metadata, manifests and partition transforms; it is imported on first use. Files are read through
`_store`, like all others. Sources: Iceberg table spec v1 to v3, Puffin spec.

The other places of Iceberg: `datasets/iceberg` (what users call), `_core/iceberg` (`IcebergFile`, which passes from
here to the reader), `read/iceberg`, `read/iceberg_fields` and `read/iceberg_deletes` (how its files are decoded).
"""
