"""Iceberg tables: from a catalog or a metadata file to an inventory.

    catalog → metadata → snapshot → manifests → files and their deletes → row groups

In: a table name with catalog properties, or the place of a metadata file. Out: an `Inventory` of the live data files,
sorted by path. Its `extras` (`TableFile`) tell a reader how to map columns by field id, and which rows are deleted.
Only deletes with positions are read here (position deletes, deletion vectors); equality deletes travel as references.

pyiceberg parses metadata, manifests and partition transforms; it is imported on first use. Files are read through
`_store`, like all others. Sources: Iceberg table spec v1 to v3, Puffin spec.

Scanning: `catalog`, `table_scan`, `manifests`, `data_files`, `deletes`. Reading: `decode`, `stored_fields` (columns by
field id) and `equality_deletes`; readers import no pyiceberg.
"""
