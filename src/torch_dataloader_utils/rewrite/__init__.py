"""Write a table again in a random order of all rows: `shuffle_table`.

In: whatever loaders read. Out: a directory of plain Parquet files in a layout that loaders read fast, verified against
the source. The order is a pure function of inventory and seed. Not for the shuffle of an epoch: loaders mix chunks and
windows while they read.

This module imports nothing: worker processes import single modules of the room, which need no torch.
"""
